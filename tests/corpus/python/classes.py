from abc import ABC, abstractmethod
from enum import Enum, Flag, auto


class Color(Enum):
    RED = 1
    GREEN = auto()


class Permission(Flag):
    READ = auto()
    WRITE = auto()


class Shape(ABC):
    @abstractmethod
    def area(self): ...

    @property
    def name(self):
        return type(self).__name__.lower()


class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side ** 2

    def __repr__(self):
        return f"Square({self.side!r})"


print(Color.GREEN, Color(1).name, bool(Permission.READ & Permission.WRITE))
print(Square(3), Square(3).area(), Square(3).name)
try:
    Shape()
except TypeError as error:
    print(type(error).__name__)
