import asyncio


async def fetch(name, delay):
    await asyncio.sleep(delay)
    return f"{name} done"


async def main():
    results = await asyncio.gather(fetch("b", 0.02), fetch("a", 0.01))
    print(results)
    queue = asyncio.Queue()

    async def produce():
        for number in range(3):
            await queue.put(number)
        await queue.put(None)

    async def consume():
        total = 0
        while (item := await queue.get()) is not None:
            total += item
        return total

    _, total = await asyncio.gather(produce(), consume())
    print("total", total)
    try:
        await asyncio.wait_for(asyncio.sleep(10), 0.01)
    except asyncio.TimeoutError:
        print("timed out")


asyncio.run(main())
