import heapq
from collections import OrderedDict, deque

queue = deque(maxlen=3)
for number in range(6):
    queue.append(number)
queue.rotate(1)
print(queue, heapq.nlargest(3, [5, 1, 9, 7]), heapq.nsmallest(2, "hello"))
tasks = []
for priority, name in [(3, "c"), (1, "a"), (2, "b")]:
    heapq.heappush(tasks, (priority, name))
print([heapq.heappop(tasks)[1] for _ in range(3)])
cache = OrderedDict(a=1, b=2)
cache.move_to_end("a")
print(list(cache))
print(deque([]).popleft())
