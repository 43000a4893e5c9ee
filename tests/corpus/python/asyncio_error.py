import asyncio


async def fails():
    await asyncio.sleep(0)
    raise RuntimeError("task failed")


async def main():
    await asyncio.gather(fails(), asyncio.sleep(0))


asyncio.run(main())
