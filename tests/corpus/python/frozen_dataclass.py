from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0
    label: str = field(default="", repr=False)


p = Point(1, 2)
print(p, hash(p) == hash(Point(1, 2)), {p: "here"}[Point(1, 2)])
p.x = 5
