from multiprocessing import Pool, Process, Queue


def square(n):
    return n * n


def send(queue):
    queue.put("hello")


if __name__ == "__main__":
    with Pool(2) as pool:
        print(pool.map(square, range(6)))
    queue = Queue()
    process = Process(target=send, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
    print(process.exitcode)
