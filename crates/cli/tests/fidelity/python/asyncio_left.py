import asyncio


async def forever():
    try:
        await asyncio.sleep(99)
    finally:
        print("cancelled")


async def never():
    pass


async def main():
    asyncio.create_task(forever())
    await asyncio.sleep(0)
    never()

asyncio.run(main())
loop = asyncio.new_event_loop()
loop.create_task(forever(), name="pending")
loop.run_until_complete(asyncio.sleep(0))
print("the end")
