"""The public Python client of the protocol, over every way there is to reach the tools.

CLOCHE_URL and CLOCHE_API_KEY say where a server runs, CLOCHE_BIN which binary to start.
"""

import asyncio
import os
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

URL = os.environ["CLOCHE_URL"]
KEY = os.environ["CLOCHE_API_KEY"]
BIN = os.environ["CLOCHE_BIN"]
PATIENCE = 60


def stdio(*arguments, state, **environment):
    """`cloche mcp`, with a state directory of its own."""
    environment = {"XDG_STATE_HOME": str(state), "PATH": os.environ["PATH"], **environment}
    return StdioServerParameters(command=BIN, args=["mcp", *arguments], env=environment)


@asynccontextmanager
async def connect(way, mode, state, **settings):
    settings = {"mode": mode, "read_timeout_seconds": PATIENCE, **settings}
    if way == "local":
        server = stdio(state=state)
    elif way == "passed-on":
        server = stdio("--url", URL, state=state, CLOCHE_API_KEY=KEY)
    else:
        headers = {"Authorization": f"Bearer {KEY}"}
        http = httpx2.AsyncClient(headers=headers, timeout=PATIENCE)
        server = streamable_http_client(f"{URL}/mcp", http_client=http)
    async with Client(server, **settings) as client:
        yield client


@pytest.fixture(params=["http", "local", "passed-on"])
def way(request):
    return request.param


@pytest.fixture(params=["auto", "legacy"])
def mode(request):
    return request.param


@pytest.fixture
def talk(way, mode, tmp_path):
    """Runs a conversation to its end."""

    def talk(work, **settings):
        async def main():
            async with connect(way, mode, tmp_path, **settings) as client:
                return await work(client)

        return asyncio.run(asyncio.wait_for(main(), PATIENCE))

    return talk
