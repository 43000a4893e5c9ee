import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

lock, total = threading.Lock(), 0


def add(count):
    global total
    for _ in range(count):
        with lock:
            total += 1


workers = [threading.Thread(target=add, args=(1000,)) for _ in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(total)
with ThreadPoolExecutor(4) as pool:
    print(list(pool.map(lambda n: n * n, range(8))))
queue = Queue()
threading.Thread(target=lambda: queue.put("from a thread")).start()
print(queue.get(timeout=30))
