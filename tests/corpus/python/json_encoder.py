import json
from datetime import date
from decimal import Decimal
from enum import Enum


class Colour(Enum):
    RED = 1


class Encoder(json.JSONEncoder):
    def default(self, value):
        if isinstance(value, (date, Decimal)):
            return str(value)
        if isinstance(value, Enum):
            return value.name
        return super().default(value)


values = {"day": date(2024, 2, 29), "price": Decimal("1.10"), "c": Colour.RED}
print(json.dumps(values, cls=Encoder))
print(json.dumps({"bad": object}, cls=Encoder))
