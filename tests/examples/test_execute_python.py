"""The execute API with its public Python client, and with an HTTP library."""

import json
import time
import uuid

import baponi
import requests

from conftest import INSTALL, KEY, LONG_TIMEOUT, URL, baponi_client

BATCHES = (
    "for i in range(4):\n    import time; time.sleep(0.3)\n    print(f'Processing batch {i}...')"
)


def test_the_client_streams_output(client):
    shown = []
    with client.execute_stream(BATCHES, timeout=60) as stream:
        for event in stream:
            if isinstance(event, baponi.OutputEvent):
                shown.append((f"[{event.stream}] {event.data}", time.monotonic()))
        result = stream.get_final_result()
    assert [text for text, _ in shown] == [f"[stdout] Processing batch {i}...\n" for i in range(4)]
    assert shown[-1][1] - shown[0][1] > 0.5, "the lines came while the program ran"
    assert result.exit_code == 0


def test_an_http_library_reads_the_stream_line_by_line():
    response = requests.post(
        f"{URL}/v1/sandbox/execute",
        headers={
            "Authorization": f"Bearer {KEY}",
            "Content-Type": "application/json",
            "Accept": "application/x-ndjson",
        },
        json={"code": BATCHES, "timeout": 60},
        stream=True,
    )
    shown = []
    for line in response.iter_lines():
        if line:
            event = json.loads(line)
            if event["type"] == "output":
                shown.append(f"[{event['stream']}] {event['data']}")
            elif event["type"] == "result":
                shown.append(f"Done: exit_code={event['result']['exit_code']}")
    assert shown == [
        *(f"[stdout] Processing batch {i}...\n" for i in range(4)),
        "Done: exit_code=0",
    ]


def test_three_languages(client):
    result = client.execute("import sys; print(f'Python {sys.version}')")
    assert result.stdout.startswith("Python 3.")
    result = client.execute("console.log(`Node.js ${process.version}`)", language="node")
    assert result.stdout.startswith("Node.js v")
    result = client.execute('echo "Bash $BASH_VERSION" && uname -a', language="bash")
    assert result.stdout.startswith("Bash 5") and "\nLinux " in result.stdout


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("BAPONI_API_KEY", KEY)
    assert baponi_client(key=None).execute("print(6 * 7)").stdout == "42\n"


def test_the_default_runtimes_are_those_of_the_contract(client):
    python = client.execute('import sys; print("%d.%d" % sys.version_info[:2])')
    node = client.execute("console.log(process.versions.node.split('.')[0])", language="node")
    found = f"Python {python.stdout.strip()}, Node.js {node.stdout.strip()}"
    assert found == "Python 3.14, Node.js 25", f"the default runtime is {found}"


def test_a_thread_keeps_an_installed_package(make_key, thread):
    client = baponi_client(make_key(network="unrestricted"))
    result = client.execute(INSTALL, language="bash", thread_id=thread)
    assert result.success and result.stdout.endswith("done\n"), result
    result = client.execute("import cowsay; print(cowsay.__file__)", thread_id=thread)
    assert result.stdout.startswith("/home/baponi/"), result


def test_metadata_is_recorded(client):
    order = f"req_{uuid.uuid4().hex}"
    metadata = {"user_id": "usr_1", "request_id": order, "agent": "orders-v2"}
    assert client.execute("print('processing order')", metadata=metadata).success
    history = requests.get(
        f"{URL}/v1/executions",
        params={"metadata.request_id": order},
        headers={"Authorization": f"Bearer {KEY}"},
    ).json()
    assert [record["metadata"] for record in history["executions"]] == [metadata]


def test_a_run_may_take_longer_than_a_minute(long_runs):
    printed, _ = long_runs["python"].communicate(timeout=LONG_TIMEOUT)
    result = json.loads(printed)
    assert (result["success"], result["stdout"]) == (True, "done\n")


def test_an_exception_is_a_result(client):
    result = client.execute("raise ValueError('out of cheese')")
    assert not result.success
    assert f"Code failed with exit code {result.exit_code}" == "Code failed with exit code 1"
    assert result.stderr.endswith("ValueError: out of cheese\n")


def test_environment_variables_reach_the_program(client):
    result = client.execute(
        "import os; print(f'Target: {os.environ[\"TARGET_URL\"]}')",
        env_vars={"TARGET_URL": "https://target.example", "LOG_LEVEL": "debug"},
    )
    assert result.stdout == "Target: https://target.example\n"


def test_a_mount_is_narrowed_by_sub_paths(make_key):
    client = baponi_client(make_key(storage=["company-data"]))
    result = client.execute(
        "import os; print(os.listdir('/data/company-data/'))",
        sub_paths=["/data/company-data/reports/q1"],
    )
    assert result.stdout == "['sales.csv']\n", result


def test_every_parameter_in_one_request(make_key, thread):
    client = baponi_client(make_key(storage=["company-data"]))
    result = client.execute(
        code="import pandas as pd\n"
        'table = pd.read_csv("/data/company-data/customers.csv")\n'
        "print(table.describe().to_json())",
        language="python",
        timeout=60,
        thread_id=thread,
        metadata={"user_id": "usr_1", "workflow": "csv", "step": "describe"},
        env_vars={"OUTPUT_FORMAT": "json", "LOG_LEVEL": "info"},
        sub_paths=["/data/company-data/customers"],
    )
    assert result.success and json.loads(result.stdout), result
