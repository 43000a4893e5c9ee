import multiprocessing as mp
import os
import sys
from multiprocessing import shared_memory

print(__name__, sys.argv, len(sys.path))


def square(x):
    return x * x


def report(queue):
    queue.put((len(sys.path), __name__, __file__, sys.argv, mp.current_process().name, mp.parent_process().name))


def fill(name):
    memory = shared_memory.SharedMemory(name)
    memory.buf[0] = 7
    memory.close()


def fails():
    raise ValueError("from the child")


def leaves():
    sys.exit(5)


if __name__ == "__main__":
    context = mp.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=report, args=(queue,))
    child.start()
    print(queue.get())
    child.join()
    print(child.exitcode)
    with context.Pool(2) as pool:
        print(pool.map(square, range(5)))
    memory = shared_memory.SharedMemory(create=True, size=10)
    child = context.Process(target=fill, args=(memory.name,))
    child.start()
    child.join()
    print(memory.buf[0], child.exitcode)
    memory.close()
    memory.unlink()
    with context.Manager() as manager:
        shared = manager.dict()
        shared["a"] = 1
        print(dict(shared))
    for target in (leaves, fails):
        child = context.Process(target=target)
        child.start()
        child.join()
        print(child.exitcode)
    lock, value = context.Lock(), context.Value("i", 3)
    with lock:
        print(value.value, context.Event().is_set(), mp.cpu_count() > 0)
    left, right = context.Pipe()
    left.send([1, 2])
    print(right.recv())
