from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace


@dataclass(order=True, frozen=True)
class Point:
    x: float
    y: float = 0.0
    tags: tuple[str, ...] = field(default=(), compare=False)

    def __add__(self, other: Point) -> Point:
        return replace(self, x=self.x + other.x, y=self.y + other.y)


points = sorted([Point(3, 1), Point(1, 2, ("a",)), Point(1, 1)])
print(points)
print(asdict(points[1]), sum(points, Point(0)))
try:
    points[0].x = 5
except AttributeError as error:
    print(type(error).__name__, error)
