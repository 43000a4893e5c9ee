import bisect
import heapq
import time
import timeit


def quicksort(values):
    if len(values) < 2:
        return values
    pivot, *rest = values
    return [*quicksort([v for v in rest if v < pivot]), pivot,
            *quicksort([v for v in rest if v >= pivot])]


values = [(n * 7919) % 1009 for n in range(300)]
assert quicksort(values) == sorted(values)
heap = values[:]
heapq.heapify(heap)
print([heapq.heappop(heap) for _ in range(5)], heapq.nlargest(3, values))
print(bisect.bisect_left(sorted(values), 500))
began = time.perf_counter()
assert timeit.timeit(lambda: sorted(values), number=10) >= 0
print(time.perf_counter() > began)
