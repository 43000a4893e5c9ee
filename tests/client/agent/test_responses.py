"""The public client of the Agent API against a running server.

CLOCHE_MODEL names a model whose server does what the input says: a JSON list with one entry for
each turn of the model (see crates/agent/tests/support/models.rs).
"""

import asyncio
import json
import os
import threading
import time

import httpx
import pytest
from perplexity import (
    APIStatusError,
    AsyncPerplexity,
    BadRequestError,
    NotFoundError,
    Perplexity,
    RateLimitError,
)

MODEL = os.environ["CLOCHE_MODEL"]
SANDBOX = [{"type": "sandbox"}]
FIBONACCI = """
a, b = 0, 1
with open("fibonacci.csv", "w") as file:
    for _ in range(10):
        file.write(f"{a},{a * a}\\n")
        a, b = b, a + b
print(open("fibonacci.csv").read(), end="")
"""


def runs(code, **arguments):
    return {"calls": [{"name": "sandbox", "arguments": {"code": code, **arguments}}]}


def script(*turns):
    return json.dumps(turns)


@pytest.fixture
def perplexity(url, key):
    with Perplexity(api_key=key, base_url=url, max_retries=0) as client:
        yield client


def wait(client, response):
    for _ in range(600):
        if response.status not in ("queued", "in_progress"):
            return response
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    raise AssertionError(response)


def test_create(perplexity):
    response = perplexity.responses.create(
        model=MODEL,
        input=script(runs(FIBONACCI), {"text": "Here are the first ten."}),
        tools=SANDBOX,
        instructions="Use the sandbox to compute the values before answering.",
    )
    assert (response.status, response.model, response.object) == ("completed", MODEL, "response")
    assert response.output_text == "Here are the first ten."
    call, message = response.output
    assert (call.type, call.status, call.language) == ("sandbox_results", "completed", "python")
    assert call.code == FIBONACCI
    assert call.container_id
    (result,) = call.results
    assert (result.status, result.exit_code, result.stderr) == ("completed", 0, "")
    assert result.stdout.splitlines()[-1] == "34,1156"
    assert result.duration_ms > 0
    assert message.role == "assistant"
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens == 240
    assert usage.tool_calls_details["sandbox"].invocation == 1
    assert usage.cost.currency == "USD"
    assert usage.cost.tool_calls_cost == pytest.approx(0.03)
    parts = usage.cost.input_cost + usage.cost.output_cost + usage.cost.tool_calls_cost
    assert usage.cost.total_cost == pytest.approx(parts)


def test_errors_of_the_code(perplexity):
    response = perplexity.responses.create(
        model=MODEL,
        input=script(runs("1 / 0"), runs("sleep 60", language="bash", timeout_seconds=1), {"text": "No."}),
        tools=SANDBOX,
    )
    wrong, slow, _ = response.output
    assert response.status == "completed"
    assert (wrong.status, wrong.results[0].exit_code) == ("completed", 1)
    assert "ZeroDivisionError" in wrong.results[0].stderr
    assert (slow.status, slow.results[0].status, slow.language) == ("timed_out", "timed_out", "bash")
    assert wrong.container_id == slow.container_id


def test_background(perplexity):
    response = perplexity.responses.create(
        model=MODEL, input=script(runs("print(7)"), {"told": True}), tools=SANDBOX, background=True
    )
    assert response.status in ("queued", "in_progress")
    assert response.background is True
    response = wait(perplexity, response)
    assert (response.status, response.error) == ("completed", None)
    assert json.loads(response.output_text)["stdout"] == "7\n"


class Person(threading.Thread):
    """Approves the next call that waits, as an operator does, and remembers what it saw."""

    def __init__(self, url):
        super().__init__(daemon=True)
        headers = {"Authorization": f"Bearer {os.environ['CLOCHE_ADMIN_TOKEN']}"}
        self.admin = httpx.Client(base_url=f"{url}/v1/admin", headers=headers)
        self.approved = None

    def run(self):
        for _ in range(600):
            pending = self.admin.get("/approvals", params={"state": "pending"}).json()["approvals"]
            if pending:
                self.approved = pending[0]["id"]
                self.admin.post(f"/approvals/{self.approved}/approve", json={}).raise_for_status()
                return
            time.sleep(0.05)


def test_the_polling_loop_is_enough_where_a_person_approves(url, key_of_plan):
    key = key_of_plan("pro", agent_sandbox=True, execute_code="ask")
    person = Person(url)
    with Perplexity(api_key=key, base_url=url, max_retries=0) as client:
        response = client.responses.create(
            model=MODEL,
            input=script(runs("print(7)"), {"text": "Seven."}),
            tools=SANDBOX,
            background=True,
        )
        person.start()
        while response.status in ("queued", "in_progress"):
            time.sleep(0.05)
            response = client.responses.retrieve(response.id)
    person.join()
    assert person.approved
    assert (response.status, response.output_text) == ("completed", "Seven.")
    assert response.output[0].results[0].stdout == "7\n"


def test_the_limit_on_requests(url, key_of_plan):
    with Perplexity(api_key=key_of_plan("free"), base_url=url, max_retries=0) as client:
        for _ in range(2):
            response = client.responses.create(model=MODEL, input=script({"text": "."}))
            assert response.status == "completed"
        with pytest.raises(RateLimitError, match="2 requests a minute") as refused:
            client.responses.create(model=MODEL, input=script({"text": "."}))
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60


def test_long_output(perplexity):
    code = "print('x' * 300_000, end='')"
    response = perplexity.responses.create(
        model=MODEL, input=script(runs(code), {"text": "."}), tools=SANDBOX
    )
    (result,) = response.output[0].results
    assert result.stdout == "x" * (256 << 10)
    assert (result.truncated, result.stdout_dropped_bytes) == (True, 300_000 - (256 << 10))


def test_failure(perplexity):
    response = perplexity.responses.create(model=MODEL, input=script({"http": 400}), background=True)
    response = wait(perplexity, response)
    assert (response.status, response.error.code) == ("failed", "model_refused")


def test_cancel(perplexity):
    code = "import time\ntime.sleep(60)"
    response = perplexity.responses.create(
        model=MODEL, input=script(runs(code), {"text": "never"}), tools=SANDBOX, background=True
    )
    cancelled = perplexity.responses.cancel(response.id)
    assert (cancelled.response_id, cancelled.status) == (response.id, "cancelling")
    assert wait(perplexity, response).status == "cancelled"


def test_stream(perplexity):
    events = list(
        perplexity.responses.create(
            model=MODEL, input=script(runs("print(1)"), {"text": "It is one."}), tools=SANDBOX, stream=True
        )
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert {type(event).__name__ for event in events} == {
        "ResponseCreatedEventOutput",
        "ResponseInProgressEventOutput",
        "OutputItemAddedEventOutput",
        "OutputItemDoneEventOutput",
        "TextDeltaEventOutput",
        "TextDoneEventOutput",
        "ResponseCompletedEventOutput",
    }
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "It is one." and len(deltas) == 4
    response = events[-1].response
    assert response.output_text == "It is one."
    assert perplexity.responses.retrieve(response.id) == response
    later = perplexity.responses.retrieve(response.id, stream=True, starting_after=5)
    assert list(later) == events[6:]


def test_files(perplexity):
    first = perplexity.responses.create(
        model=MODEL, input=script(runs(FIBONACCI), runs("mkdir a; echo hi > a/b", language="bash"), {"text": "."}),
        tools=SANDBOX,
    )
    listed = perplexity.responses.files.list(first.id)
    assert listed.object == "list"
    assert [(file.filename, file.object) for file in listed.data] == [("a/b", "file"), ("fibonacci.csv", "file")]
    _, table = listed.data
    content = perplexity.responses.files.content(table.id, response_id=first.id).read()
    assert content.decode() == first.output[0].results[0].stdout
    assert table.bytes == len(content)
    # The next response of the chain finds the files where they were, and lists only its own.
    more = "open('more.txt', 'w').write(open('fibonacci.csv').read()[:4])"
    second = perplexity.responses.create(
        model=MODEL, input=script(runs(more), {"text": "."}), tools=SANDBOX, previous_response_id=first.id
    )
    assert second.output[0].results[0].exit_code == 0, second
    (file,) = perplexity.responses.files.list(second.id).data
    assert file.filename == "more.txt"
    assert perplexity.responses.files.content(file.id, response_id=second.id).read() == b"0,0\n"
    with pytest.raises(NotFoundError):
        perplexity.responses.files.content(table.id, response_id=second.id)


def test_conversation(perplexity):
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    call = {"calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}
    first = perplexity.responses.create(
        model=MODEL, input=script(call, {"told": True}), tools=[tool], store=False
    )
    assert first.status == "requires_action"
    (function,) = first.output
    assert (function.name, json.loads(function.arguments)) == ("weather", {"city": "Oslo"})
    output = {"type": "function_call_output", "call_id": function.call_id, "output": "rain"}
    second = perplexity.responses.create(
        model=MODEL, input=[output], tools=[tool], previous_response_id=first.id
    )
    assert (second.output_text, second.previous_response_id) == ("rain", first.id)
    with pytest.raises(NotFoundError):
        perplexity.responses.retrieve(first.id)


def test_refusals(perplexity):
    with pytest.raises(BadRequestError, match="this server does not offer web_search"):
        perplexity.responses.create(model=MODEL, input="hi", tools=[{"type": "web_search"}])
    with pytest.raises(NotFoundError, match="there is no provider"):
        perplexity.responses.create(model="nobody/nothing", input="hi")
    with pytest.raises(APIStatusError, match="no such response"):
        perplexity.responses.retrieve("resp_nobody")


def test_async_client(url, key):
    async def work():
        async with AsyncPerplexity(api_key=key, base_url=url, max_retries=0) as client:
            asked = (client.responses.create(model=MODEL, input=script({"text": str(n)})) for n in range(8))
            return [response.output_text for response in await asyncio.gather(*asked)]

    assert asyncio.run(work()) == [str(n) for n in range(8)]
