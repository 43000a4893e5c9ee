class Node:
    def __init__(self, value, next_node=None):
        self.value, self.next = value, next_node


class LinkedList:
    def __init__(self, values=()):
        self.head = None
        for value in reversed(list(values)):
            self.head = Node(value, self.head)

    def __iter__(self):
        node = self.head
        while node:
            yield node.value
            node = node.next

    def reverse(self):
        previous, node = None, self.head
        while node:
            node.next, previous, node = previous, node, node.next
        self.head = previous


numbers = LinkedList([1, 2, 3, 4])
numbers.reverse()
print(list(numbers))
print(LinkedList().head.value)
