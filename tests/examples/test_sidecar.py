"""The sidecar contract: the two services wired as its deployment wires them, and the tool."""

import asyncio
import json
import threading
import time

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from conftest import PATIENCE, admin_client
from processes import Cloche, start_server, start_sidecar

SECRET = "a secret that both services share"
SIDECAR = {
    "SANDBOX_EXECUTOR_SERVICE_API_KEY": SECRET,
    "SANDBOX_EXECUTOR_DEFAULT_TIMEOUT_MS": "30000",
    "SANDBOX_EXECUTOR_MAX_TIMEOUT_MS": "60000",
    "SANDBOX_EXECUTOR_MAX_CONCURRENT_JOBS": "4",
}
FIELDS = {
    "stdout",
    "stderr",
    "exit_code",
    "duration_ms",
    "killed",
    "oom",
    "truncated",
    "output_files",
}
# Every parameter of the tool. The program reads all that it was given and writes a file.
PROGRAM = """
import csv, sys
rows = list(csv.reader(open("data.csv")))
print(sum(int(cell) for row in rows for cell in row) * int(sys.stdin.read()))
open("report.txt", "w").write("done")
"""
ARGUMENTS = {
    "code": PROGRAM,
    "language": "python",
    "stdin": "10",
    "timeout_ms": 20_000,
    "files": [{"name": "data.csv", "content": "1,2\n3,4\n"}],
}


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    process, url = start_sidecar(tmp_path_factory.mktemp("sidecar") / "sidecar", **SIDECAR)
    yield url
    process.stop()


@pytest.fixture(scope="module")
def core(sidecar, tmp_path_factory):
    process, bootstrap = start_server(
        tmp_path_factory.mktemp("core") / "server",
        SANDBOX_EXECUTOR_URL=sidecar,
        SANDBOX_EXECUTOR_API_KEY=SECRET,
        SANDBOX_EXECUTOR_TIMEOUT_SECONDS="65",
    )
    yield bootstrap
    process.stop()


@pytest.fixture
def core_admin(core):
    return admin_client(core["url"], core["admin_token"])


def converse(server, work):
    """Runs a conversation of an agent with the server's tools."""

    async def main():
        headers = {"Authorization": f"Bearer {server['api_key']}"}
        http = httpx2.AsyncClient(headers=headers, timeout=PATIENCE)
        transport = streamable_http_client(f"{server['url']}/mcp", http_client=http)
        async with Client(transport, read_timeout_seconds=PATIENCE) as client:
            return await work(client)

    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def tool_names(server):
    async def work(client):
        return {tool.name for tool in (await client.list_tools()).tools}

    return converse(server, work)


def execute_code(server, **arguments):
    async def work(client):
        return (await client.call_tool("execute_code", arguments)).structured_content

    return converse(server, work)


def check_result(result):
    assert FIELDS <= set(result), result
    assert (result["stdout"], result["stderr"], result["exit_code"]) == ("100\n", "", 0)
    assert isinstance(result["duration_ms"], int)
    assert (result["killed"], result["oom"], result["truncated"]) == (False, False, False)
    (file,) = result["output_files"]
    assert {"name": "report.txt", "size": 4, "truncated": False}.items() <= file.items()


@pytest.mark.parametrize(
    "header",
    [
        {"X-Service-API-Key": SECRET},
        {"X-Service-API-Key": f"Bearer {SECRET}"},
        {"Authorization": f"Bearer {SECRET}"},
    ],
)
def test_the_sidecar_runs_a_program_with_every_parameter(sidecar, header):
    answer = httpx.post(f"{sidecar}/execute", json=ARGUMENTS, headers=header, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    check_result(answer.json())


def test_the_sidecar_needs_only_code(sidecar):
    header = {"X-Service-API-Key": SECRET}
    answer = httpx.post(f"{sidecar}/execute", json={"code": "print(6 * 7)"}, headers=header)
    assert answer.json()["stdout"] == "42\n"


def test_the_sidecar_refuses_a_caller_without_the_secret(sidecar):
    assert httpx.post(f"{sidecar}/execute", json={"code": "1"}).status_code == 401


def test_the_sidecar_reports_its_health_and_metrics(sidecar):
    assert httpx.get(f"{sidecar}/healthz").status_code == 200
    metrics = httpx.get(f"{sidecar}/metrics", headers={"X-Service-API-Key": SECRET})
    assert metrics.status_code == 200 and "# TYPE " in metrics.text


def test_a_sidecar_without_a_secret_does_not_start(tmp_path):
    process = Cloche(tmp_path / "sidecar", "executor", "--listen", "127.0.0.1:0")
    assert "SANDBOX_EXECUTOR_SERVICE_API_KEY" in process.wait_for_failure()


@pytest.mark.parametrize("environment", ["development", "dev", "local", "test"])
def test_a_sidecar_of_a_developer_needs_no_secret(tmp_path, environment):
    process, url = start_sidecar(tmp_path / "sidecar", SANDBOX_EXECUTOR_ENVIRONMENT=environment)
    try:
        assert httpx.post(f"{url}/execute", json={"code": "print(1)"}).json()["stdout"] == "1\n"
    finally:
        process.stop()


def test_a_team_opts_in_and_a_person_approves_the_first_call(core, core_admin):
    assert "execute_code" not in tool_names(core)
    core_admin("PATCH", "teams/default", agent_sandbox=True)
    assert "execute_code" in tool_names(core)
    results = []
    call = threading.Thread(
        target=lambda: results.append(execute_code(core, **ARGUMENTS)), daemon=True
    )
    call.start()
    approvals = []
    deadline = time.monotonic() + PATIENCE
    while not approvals and time.monotonic() < deadline:
        approvals = core_admin("GET", "approvals?state=pending")["approvals"]
        time.sleep(0.05)
    (approval,) = approvals
    assert not results, "nothing runs before the approval"
    core_admin("POST", f"approvals/{approval['id']}/approve", by="an operator")
    call.join(PATIENCE)
    check_result(results[0])


def test_a_policy_lets_later_calls_run_without_a_person(core, core_admin):
    core_admin("PATCH", "teams/default", agent_sandbox=True, execute_code="allow")
    check_result(execute_code(core, **ARGUMENTS))
    # Each run starts fresh.
    later = execute_code(core, code="import os; print(sorted(os.listdir()))", language="python")
    assert "report.txt" not in later["stdout"]


def test_the_language_is_python_unless_the_agent_says_otherwise(core, core_admin):
    core_admin("PATCH", "teams/default", agent_sandbox=True, execute_code="allow")
    assert execute_code(core, code="print(6 * 7)")["stdout"] == "42\n"


def test_an_operator_opts_the_fleet_in(core, core_admin):
    core_admin("PATCH", "teams/default", agent_sandbox=None, execute_code=None)
    assert "execute_code" not in tool_names(core)
    core_admin("PATCH", "defaults", agent_sandbox=True)
    assert "execute_code" in tool_names(core)
    core_admin("PATCH", "defaults", agent_sandbox=False)


def test_an_empty_address_turns_code_execution_off(tmp_path):
    process, server = start_server(tmp_path / "server", SANDBOX_EXECUTOR_URL="")
    try:
        admin = admin_client(server["url"], server["admin_token"])
        admin("PATCH", "teams/default", agent_sandbox=True, execute_code="allow")
        assert "execute_code" not in tool_names(server)
        headers = {"Authorization": f"Bearer {server['api_key']}"}
        url = f"{server['url']}/v1/sandbox/execute"
        answer = httpx.post(url, json={"code": "1"}, headers=headers, timeout=PATIENCE)
        assert (answer.status_code, answer.json()["error"]) == (503, "service_unavailable")
    finally:
        process.stop()


def test_the_program_has_the_standard_library_and_no_secrets(sidecar):
    code = """
import importlib.util, json, os, socket
found = [name for name in ("yaml", "numpy", "pandas", "jwt", "cryptography")
         if importlib.util.find_spec(name)]
try:
    socket.create_connection(("192.0.2.1", 80), timeout=2)
    reached = True
except OSError:
    reached = False
print(json.dumps({"found": found, "reached": reached, "environment": dict(os.environ)}))
"""
    header = {"X-Service-API-Key": SECRET}
    answer = httpx.post(f"{sidecar}/execute", json={"code": code}, headers=header, timeout=PATIENCE)
    seen = json.loads(answer.json()["stdout"])
    assert seen["found"] == [] and seen["reached"] is False
    assert SECRET not in str(seen["environment"])
    assert not [name for name in seen["environment"] if name.startswith("SANDBOX_EXECUTOR")]
