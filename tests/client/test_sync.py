"""Every method of the synchronous client, files excepted."""

import threading
import uuid

import baponi
import pytest
from baponi import Baponi

SLEEP = "import time\nprint('begun', flush=True)\ntime.sleep(30)"
COUNT = "import time\nfor i in range(5):\n    print(i, flush=True)\n    time.sleep(0.1)"


def thread_id():
    return f"t-{uuid.uuid4().hex}"


@pytest.mark.parametrize(
    ("language", "code"),
    [("python", "print('hi')"), ("node", "console.log('hi')"), ("bash", "echo hi")],
)
def test_execute_in_three_languages(client, language, code):
    result = client.execute(code, language=language)
    assert result.success
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("hi\n", "", 0, None)


def test_a_failure_of_the_code_is_a_result(client):
    result = client.execute("raise ValueError('something went wrong')")
    assert not result.success
    assert (result.exit_code, result.error) == (1, None)
    assert result.stderr.endswith("ValueError: something went wrong\n")


def test_environment_and_metadata(client):
    code = "import os\nprint(os.environ['TARGET'], 'usr_1' in str(os.environ))"
    result = client.execute(code, env_vars={"TARGET": "x"}, metadata={"user_id": "usr_1"})
    assert result.stdout == "x False\n"


def test_400(client):
    with pytest.raises(baponi.APIValidationError) as error:
        client.execute("1", sub_paths=["/data/nothing/here"])
    assert error.value.error_type == "validation_error"
    assert error.value.message


def test_401(url):
    client = Baponi("sk-us-wrong", base_url=url, max_retries=0)
    with pytest.raises(baponi.AuthenticationError) as error:
        client.execute("1")
    assert error.value.error_type == "unauthorized"


def test_409(client):
    thread = thread_id()
    handle = client.execute_webhook(SLEEP, thread_id=thread)
    with pytest.raises(baponi.ThreadBusyError) as error:
        client.execute("1", thread_id=thread)
    assert error.value.error_type == "conflict"
    handle.cancel()
    handle.wait(poll_interval=0.05, timeout=10)
    assert client.execute("1", thread_id=thread).success


def test_429(url, key_of_plan):
    client = Baponi(key_of_plan("free"), base_url=url, max_retries=0)
    with pytest.raises(baponi.RateLimitError) as error:
        client.execute("1", timeout=61)
    assert error.value.error_type == "rate_limited"
    # No wait helps: the plan does not allow it.
    assert error.value.retry_after is None
    with pytest.raises(baponi.RateLimitError, match="requires a Pro or Enterprise plan"):
        client.execute_stream("1")
    with pytest.raises(baponi.RateLimitError):
        client.execute_webhook("1")


def test_504(client):
    with pytest.raises(baponi.APITimeoutError) as error:
        client.execute(SLEEP, timeout=1)
    assert error.value.message == "execution timed out after 1s"


def test_execute_stream(client):
    with client.execute_stream(COUNT) as stream:
        events = list(stream)
        result = stream.get_final_result()
    assert [type(event) for event in (events[0], events[-1])] == [baponi.StatusEvent, baponi.ResultEvent]
    assert stream.trace_id.startswith("trc_")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    output = [event for event in events if isinstance(event, baponi.OutputEvent)]
    assert [event.data for event in output] == [f"{i}\n" for i in range(5)]
    assert result.stdout == "0\n1\n2\n3\n4\n"
    with client.execute_stream("print(1)") as stream:
        assert stream.until_done().stdout == "1\n"


def test_execute_stream_with_cancel(client):
    with client.execute_stream(SLEEP) as stream:
        for event in stream:
            if isinstance(event, baponi.OutputEvent):
                answer = stream.cancel()
                assert answer.status == "cancelling"
    last = event
    assert (last.status, last.result.error) == ("cancelled", "Cancelled by user")


def test_reconnect_from_after_seq(client):
    with client.execute_stream(COUNT) as stream:
        first = [next(stream) for _ in range(3)]
        trace, seen = stream.trace_id, stream.last_seq
    # Left while it runs; the rest comes over another connection.
    with client.reconnect_stream(trace, after_seq=seen) as again:
        rest = list(again)
        assert again.get_final_result().stdout == "0\n1\n2\n3\n4\n"
    assert [event.seq for event in first + rest] == list(range(1, len(first + rest) + 1))
    # And once more after the end, from the beginning.
    with client.reconnect_stream(trace) as replay:
        assert list(replay) == first + rest


def test_execute_webhook_with_poll_wait_cancel(client):
    handle = client.execute_webhook("print('done')", metadata={"kind": "webhook"})
    status = handle.wait(poll_interval=0.05, timeout=10)
    assert (status.status, status.stdout, status.exit_code) == ("success", "done\n", 0)
    assert (status.delivery_mode, status.webhook_delivery_status) == ("webhook", None)
    assert status.created_at and status.completed_at and status.duration_ms >= 0
    assert client.get_execution(handle.trace_id) == status

    handle = client.execute_webhook(SLEEP)
    assert handle.poll().status == "running"
    with pytest.raises(TimeoutError):
        handle.wait(poll_interval=0.05, timeout=0.2)
    assert handle.cancel().status == "cancelling"
    status = handle.wait(poll_interval=0.05, timeout=10)
    assert (status.status, status.error) == ("cancelled", "Cancelled by user")


def test_cancel_execution(client):
    handle = client.execute_webhook(SLEEP)
    assert client.cancel_execution(handle.trace_id).trace_id == handle.trace_id
    assert handle.wait(poll_interval=0.05, timeout=10).status == "cancelled"


def test_an_unknown_execution(client):
    with pytest.raises(baponi.BaponiError) as error:
        client.get_execution("trc_missing")
    assert (error.value.status_code, error.value.error_type) == (404, "not_found")


def test_a_webhook_url_that_is_not_public_is_refused(client):
    with pytest.raises(baponi.APIValidationError):
        client.execute_webhook("1", webhook_url="https://127.0.0.1/hook")


def test_many_at_once(client):
    results = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(client.execute(f"echo {n}", language="bash").stdout))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == sorted(f"{n}\n" for n in range(8))


def test_a_large_program(client):
    code = "x = '" + "ä€" * 200_000 + "'\nprint(len(x))"
    assert client.execute(code).stdout == "400000\n"

