import asyncio
import os
import signal
import sys


async def main():
    loop = asyncio.get_running_loop()
    print(type(loop), loop.get_debug())
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(input())", stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE)
    print(await child.communicate(b"through\n"), child.returncode)
    shell = await asyncio.create_subprocess_shell("exit 4")
    print(await shell.wait())
    caught = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, caught.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await caught.wait()
    print("signal", await loop.run_in_executor(None, sum, [1, 2]))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(asyncio.sleep(0.01, n)) for n in range(3)]
    print([task.result() for task in tasks])
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    server.close()
    await server.wait_closed()
    try:
        await asyncio.wait_for(asyncio.sleep(9), 0.01)
    except TimeoutError:
        print("timeout")


asyncio.run(main())
