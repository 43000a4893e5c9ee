"""`cloche mcp` as a process: what it writes, how it ends, and the gate that `--ask` brings back."""

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult

from conftest import BIN, PATIENCE, URL, stdio

RUN = {"language": "python", "code": "print(6 * 7)"}
README = Path(__file__).parents[2] / "README.md"


def start(state, *arguments, **environment):
    environment = {"XDG_STATE_HOME": str(state), "PATH": os.environ["PATH"], **environment}
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    return subprocess.Popen([BIN, "mcp", *arguments], env=environment, text=True, **pipes)


def begin():
    info = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    second = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    return [first, second]


def lines(messages):
    return "".join(json.dumps(message) + "\n" for message in messages)


def call(arguments, **meta):
    params = {"name": "execute_code", "arguments": arguments, "_meta": meta}
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}


def test_it_ends_with_its_client_and_says_nothing_but_the_protocol(tmp_path):
    process = start(tmp_path)
    out, err = process.communicate(lines(begin()), timeout=PATIENCE)
    assert process.returncode == 0, err
    messages = [json.loads(line) for line in out.splitlines()]
    assert [message["id"] for message in messages] == [1]
    assert messages[0]["result"]["serverInfo"]["name"] == "code_execution_sandbox"
    assert err == ""


PICTURE = """
import struct, zlib
def part(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
with open("dot.png", "wb") as file:
    file.write(b"\\x89PNG\\r\\n\\x1a\\n" + part(b"IHDR", head))
    file.write(part(b"IDAT", zlib.compress(b"\\0\\xff\\0\\0")) + part(b"IEND", b""))
"""


def test_a_thread_is_kept_and_a_picture_is_seen(tmp_path):
    def ask(arguments):
        process = start(tmp_path)
        process.stdin.write(lines([*begin(), call(arguments)]))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.communicate(timeout=PATIENCE)
        return answers[1]["result"]

    drawn = ask({"language": "python", "code": PICTURE, "thread_id": "art"})
    assert [part["type"] for part in drawn["content"]] == ["text", "image", "resource_link"]
    again = ask({"language": "bash", "code": "ls", "thread_id": "art"})
    assert again["structuredContent"]["stdout"] == "dot.png\nmain.sh\n"


LONG = "import time\nprint('begun', flush=True)\ntime.sleep(60)"


def begun(process):
    arguments = {"language": "python", "code": LONG, "timeout_ms": 90_000}
    process.stdin.write(lines([*begin(), call(arguments, progressToken=1)]))
    process.stdin.flush()
    while "begun" not in process.stdout.readline():
        pass


def test_what_runs_ends_with_its_client(tmp_path):
    """A client that is gone reads nothing; a server that gets SIGTERM ends."""
    gone, told = start(tmp_path / "a"), start(tmp_path / "b")
    for process in (gone, told):
        begun(process)
    gone.stdin.close()
    gone.stdout.close()
    told.stdin.close()
    told.terminate()
    for process in (gone, told):
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("passed_on", [False, True])
def test_a_client_that_closes_its_end_still_gets_every_answer(tmp_path, passed_on):
    way = (["--url", URL], {"CLOCHE_API_KEY": os.environ["CLOCHE_API_KEY"]})
    process = start(tmp_path, *way[0], **way[1]) if passed_on else start(tmp_path)
    slow = {"language": "python", "code": "import time\ntime.sleep(7)\nprint('done')"}
    calls = [call(RUN), call({**slow, "timeout_ms": 20_000}), call(RUN)]
    for number, message in enumerate(calls):
        message["id"] = number + 10
    out, err = process.communicate(lines([*begin(), *calls]), timeout=PATIENCE)
    assert process.returncode == 0, err
    answers = {message["id"]: message for message in map(json.loads, out.splitlines())}
    outputs = [answers[10 + n]["result"]["structuredContent"]["stdout"] for n in range(3)]
    assert outputs == ["42\n", "done\n", "42\n"]


def test_two_at_once_do_not_disturb_each_other(tmp_path):
    first, second = start(tmp_path), start(tmp_path)
    for process in (first, second):
        process.stdin.write(lines([*begin(), call(RUN)]))
        process.stdin.flush()
    for process in (first, second):
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert answers[1]["result"]["structuredContent"]["stdout"] == "42\n"
    for process in (first, second):
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--url", URL], {}, "needs an API key in CLOCHE_API_KEY"),
        (["--url", "nowhere"], {"CLOCHE_API_KEY": "k"}, "is not an address"),
        (["--url", URL, "--ask"], {}, "cannot be used with"),
    ],
)
def test_what_cannot_work_is_said_at_once(tmp_path, arguments, environment, said):
    process = start(tmp_path, *arguments, **environment)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0 and out == ""
    assert said in err


def test_a_server_that_is_not_there_and_a_key_that_is_wrong(tmp_path):
    for url, said in [("http://127.0.0.1:1", "no answer"), (URL, "the server refused")]:
        process = start(tmp_path, "--url", url, CLOCHE_API_KEY="sk-us-wrong")
        out, _ = process.communicate(lines(begin()[:1]), timeout=PATIENCE)
        answer = json.loads(out)
        assert answer["id"] == 1 and said in answer["error"]["message"]
        assert "sk-us-wrong" not in out


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("approve", [True, False])
def test_the_gate_that_ask_brings_back(tmp_path, mode, approve):
    asked = []

    async def answer(context, params):
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": approve})

    async def main():
        server = stdio("--ask", state=tmp_path)
        async with Client(server, mode=mode, elicitation_callback=answer) as client:
            return await client.call_tool("execute_code", RUN)

    result = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert len(asked) == 1 and RUN["code"] in asked[0]
    assert result.is_error is not approve
    assert (result.structured_content["stdout"] == "42\n") is approve


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_that_cannot_ask_is_told_so_at_once(tmp_path, mode):
    async def main():
        async with Client(stdio("--ask", state=tmp_path), mode=mode) as client:
            return await client.call_tool("execute_code", RUN)

    # Far less than the five minutes that a person would have.
    result = asyncio.run(asyncio.wait_for(main(), 30))
    assert result.is_error
    assert result.structured_content["status"] == "error_setup"
    assert "cannot ask them" in result.structured_content["error"]["message"]


def test_a_client_that_leaves_does_not_answer(tmp_path):
    """A question that is open when the client closes its end is not waited for."""
    process = start(tmp_path, "--ask")
    first, second = begin()
    first["params"]["capabilities"] = {"elicitation": {}}
    out, err = process.communicate(lines([first, second, call(RUN)]), timeout=30)
    assert process.returncode == 0, err
    answer = [json.loads(line) for line in out.splitlines() if '"id":2' in line][-1]
    assert answer["result"]["isError"]
    assert "gave no answer" in answer["result"]["structuredContent"]["error"]["message"]


def snippets():
    blocks = re.findall(r"```json\n(.*?)```", README.read_text(), re.S)
    servers = [json.loads(block) for block in blocks if "mcpServers" in block]
    return [server for block in servers for server in block["mcpServers"].items()]


def test_the_readme_has_a_snippet_for_each_transport():
    assert {"command" in server for _, server in snippets()} == {True, False}


@pytest.mark.parametrize(("name", "server"), snippets())
def test_the_snippets_of_the_readme_work_as_they_stand(tmp_path, name, server):
    async def use(transport):
        async with Client(transport) as client:
            return await client.call_tool("execute_code", RUN)

    async def main():
        if "command" in server:
            # As a client would: found on the path, with nothing but what the snippet says.
            path = f"{Path(BIN).parent}:{os.environ['PATH']}"
            environment = {"PATH": path, "XDG_STATE_HOME": str(tmp_path), **server.get("env", {})}
            command = StdioServerParameters(
                command=server["command"], args=server["args"], env=environment
            )
            return await use(command)
        # The snippet's address and key are those of everybody's own server.
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        assert server["type"] == "http" and server["url"].endswith("/mcp")
        scheme, _ = server["headers"]["Authorization"].split(" ")
        headers = {"Authorization": f"{scheme} {os.environ['CLOCHE_API_KEY']}"}
        http = httpx2.AsyncClient(headers=headers, timeout=PATIENCE)
        return await use(streamable_http_client(f"{URL}/mcp", http_client=http))

    result = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert result.structured_content["stdout"] == "42\n"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_form_shows_all_that_is_approved(tmp_path, mode):
    asked = []

    async def answer(context, params):
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": True})

    async def main():
        server = stdio("--ask", state=tmp_path)
        async with Client(server, mode=mode, elicitation_callback=answer) as client:
            files = [{"name": "helper.py", "content": "print('from the helper')"}]
            run = {"language": "python", "code": "import helper"}
            run |= {"stdin_data": "zero\u200bwidth", "files": files}
            first = await client.call_tool("execute_code", run)
            hook = {"thread_id": "t", "path": "json.py", "content": "planted = 1"}
            await client.call_tool("write_file", hook)
            again = await client.call_tool("execute_code", {**RUN, "thread_id": "t"})
            large = {"language": "python", "code": "#" * 20000}
            return first, again, await client.call_tool("execute_code", large)

    first, again, large = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert first.structured_content["stdout"] == "from the helper\n"
    assert "file helper.py, 24 bytes:\n    print('from the helper')\n" in asked[0]
    assert "zero\\u{200b}width" in asked[0] and "\u200b" not in asked[0]
    assert "write this file" in asked[1] and "json.py !! RUNS BY ITSELF" in asked[1]
    assert again.structured_content["stdout"] == "42\n"
    assert "json.py !! RUNS BY ITSELF" in asked[2] and "    planted = 1\n" in asked[2]
    assert len(asked) == 3
    assert large.is_error
    assert "do not fit into the form" in large.structured_content["error"]["message"]
