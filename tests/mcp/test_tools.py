"""What a client can do, whichever way it came and whichever version it speaks."""

import asyncio
import json

import httpx2
import pytest

from conftest import KEY, URL

LONG = "import time\nprint('begun', flush=True)\ntime.sleep(50)"


def test_one_conversation(talk):
    async def work(client):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        tool = tools["execute_code"]
        assert tool.input_schema["required"] == ["language", "code"]

        lines = []

        async def progress(progress, total, message):
            lines.append(message)

        # The client checks every result against the output schema itself.
        result = await client.call_tool(
            "execute_code",
            {
                "language": "python",
                "code": "import sys\nfor line in sys.stdin: print(line.upper(), end='')",
                "stdin_data": "a\nb\n",
            },
            progress_callback=progress,
        )
        output = result.structured_content
        assert not result.is_error
        assert (output["stdout"], output["exit_code"], output["status"]) == ("A\nB\n", 0, "completed")
        assert json.loads(result.content[0].text) == output
        assert lines == ["A", "B"]

        result = await client.call_tool(
            "sandbox.execute_code", {"language": "bash", "code": "sleep 20", "timeout_ms": 100}
        )
        assert result.is_error
        assert result.structured_content["status"] == "timeout"
        assert result.structured_content["error"]["code"] == "EXECUTION_TIMEOUT"

        result = await client.call_tool("execute_code", {"language": "cobol", "code": "1"})
        assert result.structured_content["error"]["code"] == "UNSUPPORTED_LANGUAGE"

        # Several at once, and each gets its own answer.
        calls = [
            client.call_tool(
                "execute_code", {"language": "javascript", "code": f"console.log({number})"}
            )
            for number in range(5)
        ]
        results = await asyncio.gather(*calls)
        assert [r.structured_content["stdout"] for r in results] == [f"{n}\n" for n in range(5)]

    talk(work)


MUCH = """
import sys
sys.stdout.write("the beginning\\n" + "x" * 40_000_000 + "\\nthe end\\n")
sys.stderr.write("still fine\\n")
"""


def test_much_output_keeps_its_head_and_has_its_tail_beside_it(talk):
    async def work(client):
        arguments = {"language": "python", "code": MUCH, "timeout_ms": 50_000}
        output = (await client.call_tool("execute_code", arguments)).structured_content
        whole = 40_000_000 + len("the beginning\n\nthe end\n")
        head = output["stdout"]
        assert head == ("the beginning\n" + "x" * 40_000)[: len(head)] and len(head) == 24 << 10
        assert output["truncated"] is True
        assert output["stdout_left_out_bytes"] == whole - len(head)
        assert output["stdout_tail"].endswith("xxx\nthe end\n")
        assert len(output["stdout_tail"]) == 8 << 10
        assert output["stderr"] == "still fine\n" and "stderr_tail" not in output

    talk(work)


SIDECAR = """
open("out.csv", "w").write("1,2")
print(input() + open("data.csv").read())
"""


def test_the_names_of_the_sidecar_contract(talk):
    """No language, `stdin` and `files`: what that contract's own agents send."""

    async def work(client):
        files = [{"name": "data.csv", "content": "3"}]
        arguments = {"code": SIDECAR, "stdin": "in", "files": files}
        output = (await client.call_tool("execute_code", arguments)).structured_content
        assert (output["stdout"], output["exit_code"]) == ("in3\n", 0)
        assert (output["killed"], output["oom"], output["truncated"]) == (False, False, False)
        assert output["output_files"] == [{"name": "out.csv", "size": 3, "truncated": False}]
        code = "x = []\nwhile True: x.append(bytearray(b'x') * (8 << 20))"
        arguments = {"code": code, "timeout_ms": 20_000}
        output = (await client.call_tool("execute_code", arguments)).structured_content
        assert (output["oom"], output["killed"], output["status"]) == (True, False, "error_runtime")
        arguments = {"code": "while True: pass", "timeout_ms": 200}
        output = (await client.call_tool("execute_code", arguments)).structured_content
        assert (output["oom"], output["killed"], output["status"]) == (False, True, "timeout")
        both = {"code": "1", "stdin": "a", "stdin_data": "b"}
        result = await client.call_tool("execute_code", both)
        assert result.is_error and "stdin and stdin_data" in result.content[1].text

    talk(work)


FILES = """
open("fake.png", "w").write("not a picture")
open("odd.svg", "wb").write(b"\\xff\\xfe")
open("real.svg", "w").write("<svg xmlns='http://www.w3.org/2000/svg'/>")
open("renamed.png", "wb").write(b"GIF89a\\1\\0\\1\\0\\0\\0\\0;")
"""


def test_what_is_called_a_picture_and_is_none_is_not_shown_as_one(talk):
    async def work(client):
        result = await client.call_tool("execute_code", {"language": "python", "code": FILES})
        images = [part.mime_type for part in result.content if part.type == "image"]
        assert images == ["image/svg+xml", "image/gif"]
        links = {part.name: part for part in result.content if part.type == "resource_link"}
        kinds = {name: link.mime_type for name, link in links.items()}
        assert kinds == {
            "fake.png": "text/plain",
            "odd.svg": "application/octet-stream",
            "real.svg": "image/svg+xml",
            "renamed.png": "image/gif",
        }
        read = (await client.read_resource(links["fake.png"].uri)).contents[0]
        assert (read.text, read.mime_type) == ("not a picture", "text/plain")

    talk(work)


def test_a_prompt_has_the_model_run_code(talk):
    async def work(client):
        (prompt,) = (await client.list_prompts()).prompts
        assert [argument.name for argument in prompt.arguments] == ["task"]
        filled = await client.get_prompt(prompt.name, {"task": "Factor 2**67 - 1."})
        (message,) = filled.messages
        assert message.role == "user" and message.content.text.endswith("Factor 2**67 - 1.")
        assert "execute_code" in message.content.text

    talk(work)


def status(trace_id):
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx2.get(f"{URL}/v1/executions/{trace_id}", headers=headers)
    return answer.json()["status"]


def running():
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx2.get(f"{URL}/v1/executions?status=running", headers=headers)
    return [execution["trace_id"] for execution in answer.json()["executions"]]


@pytest.mark.parametrize("way", ["http", "passed-on"])
def test_a_call_that_is_given_up_is_killed(way, talk):
    async def work(client):
        begun = asyncio.Event()

        async def progress(progress, total, message):
            begun.set()

        arguments = {"language": "python", "code": LONG, "timeout_ms": 60_000}
        call = client.call_tool("execute_code", arguments, progress_callback=progress)
        call = asyncio.create_task(call)
        await begun.wait()
        (trace_id,) = running()
        call.cancel()
        while status(trace_id) == "running":
            await asyncio.sleep(0.05)
        assert status(trace_id) == "cancelled"

    talk(work)
