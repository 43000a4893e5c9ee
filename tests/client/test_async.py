"""Every method of the asynchronous client, files excepted."""

import asyncio
import uuid

import baponi
import pytest
from baponi import AsyncBaponi

from test_sync import COUNT, SLEEP


def run(url, key, work):
    async def main():
        async with AsyncBaponi(key, base_url=url, max_retries=0) as client:
            return await work(client)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("language", "code"),
    [("python", "print('hi')"), ("node", "console.log('hi')"), ("bash", "echo hi")],
)
def test_execute_in_three_languages(url, key, language, code):
    async def work(client):
        return await client.execute(code, language=language)

    assert run(url, key, work).stdout == "hi\n"


def test_errors(url, key, key_of_plan):
    async def work(client):
        thread = f"t-{uuid.uuid4().hex}"
        handle = await client.execute_webhook(SLEEP, thread_id=thread)
        with pytest.raises(baponi.ThreadBusyError):
            await client.execute("1", thread_id=thread)
        await handle.cancel()
        with pytest.raises(baponi.APIValidationError):
            await client.execute("1", sub_paths=["/data/nothing/here"])
        with pytest.raises(baponi.APITimeoutError):
            await client.execute(SLEEP, timeout=1)

    run(url, key, work)

    async def refused(client):
        with pytest.raises(baponi.RateLimitError):
            await client.execute("1", timeout=61)

    run(url, key_of_plan("free"), refused)

    async def unknown(client):
        with pytest.raises(baponi.AuthenticationError):
            await client.execute("1")

    run(url, "sk-us-wrong", unknown)


def test_execute_stream_with_cancel(url, key):
    async def work(client):
        stream = await client.execute_stream(SLEEP)
        async with stream:
            async for event in stream:
                if isinstance(event, baponi.OutputEvent):
                    assert (await stream.cancel()).status == "cancelling"
            return stream.get_final_result()

    assert run(url, key, work).error == "Cancelled by user"


def test_reconnect_from_after_seq(url, key):
    async def work(client):
        stream = await client.execute_stream(COUNT)
        async with stream:
            first = [await anext(stream) for _ in range(3)]
            trace, seen = stream.trace_id, stream.last_seq
        again = await client.reconnect_stream(trace, after_seq=seen)
        async with again:
            rest = [event async for event in again]
        replay = await client.reconnect_stream(trace)
        async with replay:
            assert [event async for event in replay] == first + rest
        return rest[-1].result

    assert run(url, key, work).stdout == "0\n1\n2\n3\n4\n"


def test_execute_webhook_with_poll_wait_cancel(url, key):
    async def work(client):
        handle = await client.execute_webhook("print('done')")
        status = await handle.wait(poll_interval=0.05, timeout=10)
        assert (status.status, status.stdout) == ("success", "done\n")
        assert await client.get_execution(handle.trace_id) == status
        handle = await client.execute_webhook(SLEEP)
        assert (await handle.poll()).status == "running"
        assert (await client.cancel_execution(handle.trace_id)).status == "cancelling"
        assert (await handle.wait(poll_interval=0.05, timeout=10)).status == "cancelled"

    run(url, key, work)


def test_many_at_once(url, key):
    async def work(client):
        runs = (client.execute(f"echo {n}", language="bash") for n in range(16))
        return await asyncio.gather(*runs)

    assert [result.stdout for result in run(url, key, work)] == [f"{n}\n" for n in range(16)]
