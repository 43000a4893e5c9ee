"""The MCP tool with the public Python client of the protocol, over HTTP and a pipe."""

import asyncio
import os
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from conftest import BIN, KEY, PATIENCE, URL

NAME = "code_execution_sandbox.execute_code"


@asynccontextmanager
async def connect(transport, state):
    if transport == "http":
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=PATIENCE)
        server = streamable_http_client(f"{URL}/mcp", http_client=http)
    else:
        environment = {"XDG_STATE_HOME": str(state), "PATH": os.environ["PATH"]}
        server = StdioServerParameters(command=BIN, args=["mcp"], env=environment)
    async with Client(server, read_timeout_seconds=PATIENCE) as client:
        yield client


@pytest.fixture(params=["http", "stdio"])
def call(request, tmp_path):
    """Calls the tool once and returns its result."""

    def call(**arguments):
        async def main():
            async with connect(request.param, tmp_path) as client:
                return await client.call_tool(NAME, arguments)

        return asyncio.run(asyncio.wait_for(main(), PATIENCE))

    return call


def test_a_python_snippet_is_executed(call):
    result = call(language="python", code="for i in range(3): print(f'Count: {i}')")
    output = result.structured_content
    assert not result.is_error
    assert (output["stdout"], output["stderr"]) == ("Count: 0\nCount: 1\nCount: 2\n", "")
    assert (output["exit_code"], output["status"]) == (0, "completed")
    assert isinstance(output["duration_ms"], int)


def test_every_parameter_of_the_tool(call):
    result = call(
        language="javascript",
        code="process.stdin.on('data', (data) => process.stdout.write(`read: ${data}`))",
        stdin_data="some input data",
        timeout_ms=10_000,
    )
    assert result.structured_content["stdout"] == "read: some input data"


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ({"language": "cobol", "code": "STOP RUN."}, "error_setup", "UNSUPPORTED_LANGUAGE"),
        (
            {"language": "bash", "code": "sleep 9", "timeout_ms": 200},
            "timeout",
            "EXECUTION_TIMEOUT",
        ),
        ({"language": "python", "code": "1 / 0"}, "error_runtime", "RUNTIME_ERROR"),
    ],
)
def test_a_failure_has_its_name(call, arguments, status, error):
    output = call(**arguments).structured_content
    assert (output["status"], output["error"]["code"]) == (status, error)
