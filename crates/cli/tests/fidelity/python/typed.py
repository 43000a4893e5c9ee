import dataclasses
import enum
import typing


@dataclasses.dataclass
class Point:
    x: int
    y: "Point | None" = None


class Color(enum.Enum):
    RED = 1


print(Point(1), typing.get_type_hints(Point), Color.RED, repr(Color), Point.__module__)
