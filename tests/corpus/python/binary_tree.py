from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tree:
    key: int
    left: Tree | None = None
    right: Tree | None = None

    def insert(self, key):
        side = "left" if key < self.key else "right"
        child = getattr(self, side)
        if child is None:
            setattr(self, side, Tree(key))
        else:
            child.insert(key)

    def walk(self):
        if self.left:
            yield from self.left.walk()
        yield self.key
        if self.right:
            yield from self.right.walk()


tree = Tree(50)
for key in (30, 70, 20, 40, 60, 80):
    tree.insert(key)
print(list(tree.walk()))
