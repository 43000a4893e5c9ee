import copy
import pickle
import struct


class Node:
    def __init__(self, value):
        self.value, self.children = value, []

    def __eq__(self, other):
        return (self.value, self.children) == (other.value, other.children)


tree = Node(1)
tree.children.append(Node([2, 3]))
again = pickle.loads(pickle.dumps(tree))
shallow, deep = copy.copy(tree), copy.deepcopy(tree)
tree.children[0].value.append(4)
print(again == deep, shallow.children is tree.children, deep.children[0].value)
print(struct.pack(">IhB", 1, -2, 255).hex(), struct.unpack("<f", b"\x00\x00\x80?"))
