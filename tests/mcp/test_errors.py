"""What is said to a client that does not speak as the protocol says, whichever way it came."""

import json

import httpx2
import pytest

from conftest import KEY, PATIENCE, URL
from test_stdio import begin, start

CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}

WRONG = [
    ("{bad", -32700, None),
    ('{"a": 1}', -32600, None),
    ("[]", -32600, None),
    ("5", -32600, None),
    ('{"jsonrpc": "2.0", "a": 1}', -32600, None),
    ('{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600, None),
    ('{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600, None),
    ('{"jsonrpc": "1.0", "id": 7, "method": "ping"}', -32600, 7),
    (json.dumps(CALL), -32602, 7),
    (json.dumps({**CALL, "params": {"arguments": {}}}), -32602, 7),
    (json.dumps({**CALL, "params": {"name": "execute_code", "arguments": [1]}}), -32602, 7),
    (json.dumps({**CALL, "params": ["execute_code"]}), -32602, 7),
    (json.dumps({**CALL, "method": "resources/read"}), -32602, 7),
    (json.dumps({**CALL, "method": "tools/explode"}), -32601, 7),
]


@pytest.mark.parametrize(("body", "code", "id"), WRONG)
def test_over_http(body, code, id):
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    answer = httpx2.post(f"{URL}/mcp", content=body, headers=headers, timeout=PATIENCE)
    message = answer.json()
    assert (message["jsonrpc"], message["error"]["code"], message["id"]) == ("2.0", code, id)
    if code in (-32700, -32600):
        assert answer.status_code == 400


def test_initialize_without_params_over_http():
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    answer = httpx2.post(f"{URL}/mcp", json=body, headers=headers, timeout=PATIENCE)
    assert 400 <= answer.status_code < 500
    assert answer.json()["id"] == 1 and answer.json()["error"]["message"]


def numbered(number, body, code, id):
    """The same with an id of its own."""
    own = id and 100 + number
    return body.replace('"id": 7', f'"id": {own}'), code, own


@pytest.mark.parametrize("passed_on", [False, True])
def test_over_a_pipe(tmp_path, passed_on):
    """Every line has its answer, and the conversation goes on to its end."""
    way = (["--url", URL], {"CLOCHE_API_KEY": KEY}) if passed_on else ([], {})
    process = start(tmp_path, *way[0], **way[1])
    ping = {"jsonrpc": "2.0", "id": "last", "method": "ping"}
    said = [json.dumps(message) for message in begin()]
    wrong = [numbered(number, *case) for number, case in enumerate(WRONG)]
    said += [body for body, _, _ in wrong] + [json.dumps(ping)]
    # No end of line after the last one: it is a message all the same.
    out, err = process.communicate("\n".join(said), timeout=PATIENCE)
    assert process.returncode == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert answers[0]["result"]["serverInfo"]["name"] == "code_execution_sandbox"
    errors = [(answer["error"]["code"], answer["id"]) for answer in answers if "error" in answer]
    key = lambda pair: (pair[0], str(pair[1]))
    assert sorted(errors, key=key) == sorted(((code, id) for _, code, id in wrong), key=key)
    assert [answer["result"] for answer in answers if answer.get("id") == "last"] == [{}]


def test_a_line_that_is_too_long_is_refused_and_the_next_one_is_read(tmp_path):
    process = start(tmp_path)
    ping = {"jsonrpc": "2.0", "id": "last", "method": "ping"}
    said = [*(json.dumps(message) for message in begin()), "x" * (33 << 20), json.dumps(ping), ""]
    out, err = process.communicate("\n".join(said), timeout=PATIENCE)
    assert process.returncode == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["error"]["code"] for answer in answers if "error" in answer] == [-32600]
    assert answers[-1] == {"jsonrpc": "2.0", "id": "last", "result": {}}
