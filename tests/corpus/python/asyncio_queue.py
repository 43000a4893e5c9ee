import asyncio


async def producer(queue):
    for number in range(5):
        await queue.put(number)
    await queue.put(None)


async def consumer(queue):
    total = 0
    while (item := await queue.get()) is not None:
        total += item
    return total


async def main():
    queue = asyncio.Queue(maxsize=2)
    _, total = await asyncio.gather(producer(queue), consumer(queue))
    print(total)


asyncio.run(main())
