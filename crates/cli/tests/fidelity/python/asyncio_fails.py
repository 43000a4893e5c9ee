import asyncio


async def inner():
    raise ValueError("inner")


async def main():
    asyncio.create_task(inner(), name="forgotten")
    await asyncio.sleep(0)
    async with asyncio.TaskGroup() as group:
        group.create_task(inner())
        group.create_task(inner())


asyncio.run(main())
