"""The programs in examples/, run as they stand against a server and a scripted model."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from conftest import BIN, KEY, PATIENCE, URL
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

EXAMPLES = Path(__file__).parents[3] / "examples"
CONFIGURATION = (EXAMPLES / "mcp.json").read_text()


def run_example(*words, directory, code=0, **variables):
    environment = {
        # `cloche` is found on the path, as after an installation.
        "PATH": f"{Path(BIN).parent}:{os.environ['PATH']}",
        "HOME": str(directory),
        "CLOCHE_URL": URL,
        "BAPONI_API_KEY": KEY,
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }
    done = subprocess.run(
        [str(word) for word in words],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE,
    )
    assert done.returncode == code, done
    return done.stdout


def run_python(name, *words, directory, **variables):
    command = [sys.executable, "-W", "ignore", EXAMPLES / name, *words]
    return run_example(*command, directory=directory, **variables)


def test_an_agent_loop_runs_what_the_model_wrote(tmp_path):
    printed = run_python(
        "agent_loop.py", "How many primes are below 10000?", directory=tmp_path,
        ANTHROPIC_BASE_URL=os.environ["CLOCHE_MODEL_URL"],
        ANTHROPIC_API_KEY=os.environ["CLOCHE_MODEL_KEY"],
    )
    # The model reads the file of its first program in its second one, and answers with the result.
    assert printed.count("--- exit code 0") == 2, printed
    assert printed.splitlines()[-1] == "1229", printed


def test_an_analysis_in_steps_keeps_its_files(tmp_path):
    (tmp_path / "sales.csv").write_text("region,amount\nnorth,3\nsouth,4.5\nnorth,2\n")
    printed = run_python("data_analysis.py", "sales.csv", directory=tmp_path)
    assert printed == "3 rows\nnorth: 5\nsouth: 4.5\n# Sales\n\nTotal: 9.5\n"


def server_of(name, directory):
    """What a client makes of one entry of the configuration."""
    text = CONFIGURATION.replace("${BAPONI_API_KEY}", KEY).replace("http://127.0.0.1:8080", URL)
    entry = json.loads(text)["mcpServers"][name]
    if "command" in entry:
        path = f"{Path(BIN).parent}:{os.environ['PATH']}"
        environment = {"PATH": path, "XDG_STATE_HOME": str(directory)}
        return StdioServerParameters(**entry, env=environment)
    assert entry["type"] == "http"
    http = httpx2.AsyncClient(headers=entry["headers"], timeout=PATIENCE)
    return streamable_http_client(entry["url"], http_client=http)


@pytest.mark.parametrize("name", json.loads(CONFIGURATION)["mcpServers"])
def test_the_configuration_of_an_mcp_client_works(name, tmp_path):
    async def call_tool():
        async with Client(server_of(name, tmp_path), read_timeout_seconds=PATIENCE) as client:
            arguments = {"language": "python", "code": "print(6 * 7)"}
            return await client.call_tool("execute_code", arguments)

    result = asyncio.run(call_tool())
    assert not result.is_error, result
    assert "42" in str(result.structured_content), result


def write_project(directory, body):
    lines = ["import os, socket, unittest", "class Tests(unittest.TestCase):", "  def test(self):"]
    (directory / "test_it.py").write_text("\n".join(lines + [f"    {body}", ""]))


@pytest.mark.parametrize(("body", "code"), [
    ("self.assertEqual(6 * 7, 42)", 0),
    ("self.assertEqual(6 * 7, 41)", 1),
    # What a hostile pull request would try: each of these fails the test if it succeeds.
    ("self.assertNotIn('DEPLOY_TOKEN', os.environ)", 0),
    ("self.assertFalse(os.path.exists('/etc/shadow') and os.access('/etc/shadow', os.R_OK))", 0),
    ("self.assertRaises(OSError, open, '/data/source/new', 'w')", 0),
    ("self.assertRaises(OSError, socket.create_connection, ('192.0.2.1', 80), 2)", 0),
])
def test_a_job_runs_untrusted_code(body, code, tmp_path):
    write_project(tmp_path, body)
    script = EXAMPLES / "pull-request" / "run-untrusted"
    run_example(script, tmp_path, directory="/", code=code, DEPLOY_TOKEN="secret")
    assert sorted(os.listdir(tmp_path)) == ["test_it.py"]


def test_the_job_of_the_workflow_calls_the_script():
    text = (EXAMPLES / "pull-request" / "workflow.yml").read_text()
    (script, directory) = re.findall(r"- run: trusted/(\S+) (\S+)", text)[0]
    assert (EXAMPLES.parent / script).exists() and directory == "untrusted"


def test_first_programs_say_where_they_run(tmp_path):
    for name, said in [("hello.py", "Hello from Python"), ("hello.js", "Hello from Node"),
                       ("hello.sh", "Hello from bash")]:
        printed = run_example("cloche", "run", EXAMPLES / name, directory=tmp_path)
        assert said in printed
