from dataclasses import asdict, dataclass, field, replace


@dataclass(order=True)
class Item:
    name: str
    price: float = 0.0
    tags: list = field(default_factory=list, compare=False)

    def __post_init__(self):
        if self.price < 0:
            raise ValueError(f"negative price: {self.price}")


items = [Item("pen", 1.5, ["office"]), Item("book", 12.0)]
print(sorted(items))
print(asdict(items[0]), replace(items[1], price=10.0))
Item("error", -1)
