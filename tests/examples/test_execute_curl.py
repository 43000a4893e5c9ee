"""The execute API with curl."""

import json
import re
import time
from shlex import quote

from conftest import INSTALL, KEY, LONG_TIMEOUT

EXECUTE = """curl -sS -X POST "$CLOCHE_URL/v1/sandbox/execute" \\
    -H "Authorization: Bearer $BAPONI_API_KEY" \\
    -H "Content-Type: application/json" """
RESULT = {"success", "stdout", "stderr", "exit_code", "error"}


def body(**fields):
    """A JSON body as an argument of a shell command."""
    return f"-d {quote(json.dumps(fields))}"


def execute(*more, **fields):
    return f"{EXECUTE} {' '.join(more)} {body(**fields)}\necho\n"


def test_a_first_program(shell):
    (answer,) = shell(execute(code='print("Hello from the bell jar!")', language="python"))
    assert RESULT <= set(answer)
    expected = {"success": True, "stdout": "Hello from the bell jar!\n", "stderr": ""}
    expected |= {"exit_code": 0, "error": None}
    assert {name: answer[name] for name in RESULT} == expected


STEPS = 'import time\nfor i in range(3):\n    print(f"step {i}")\n    time.sleep(0.3)'


def test_output_is_streamed_line_by_line(shell):
    events = shell(EXECUTE + "-N -H 'Accept: application/x-ndjson' " + body(code=STEPS, timeout=60))
    trace = events[0]["trace_id"]
    assert events[0] == {"type": "status", "trace_id": trace, "status": "running", "seq": 1}
    assert events[1:4] == [
        {"type": "output", "stream": "stdout", "data": f"step {i}\n", "seq": i + 2}
        for i in range(3)
    ]
    last = events[4]
    assert len(events) == 5 and {*last} == {
        "type",
        "trace_id",
        "status",
        "result",
        "output_truncated",
        "seq",
    }
    assert (last["type"], last["trace_id"], last["status"]) == ("result", trace, "success")
    assert (last["output_truncated"], last["seq"]) == (False, 5)
    assert last["result"]["stdout"] == "step 0\nstep 1\nstep 2\n"
    assert RESULT <= set(last["result"])


def test_lines_arrive_while_the_program_runs(shell):
    """Each line is stamped with the time at which curl printed it."""
    stamp = r"""while IFS= read -r line; do printf '[%s,%s]\n' "$EPOCHREALTIME" "$line"; done"""
    code = "for i in range(4):\n    import time; time.sleep(0.5)\n    print(f'batch {i}')"
    command = EXECUTE + "-N -H 'Accept: application/x-ndjson' " + body(code=code, timeout=60)
    events = shell(f"{command} | {stamp}")
    times = [at for at, event in events if event["type"] == "output"]
    assert len(times) == 4
    assert all(0.25 < later - at < 1.5 for at, later in zip(times, times[1:])), times


def test_streaming_needs_a_larger_plan_than_free(shell, make_key):
    command = EXECUTE + "-H 'Accept: application/x-ndjson' " + body(code="print(1)")
    (answer,) = shell(f"{command}\necho", key=make_key("free"))
    assert answer["error"] == "rate_limited"
    assert answer["message"].startswith("Streaming execution requires a Pro or Enterprise plan.")


def test_a_webhook_gets_the_result(shell, webhook, make_key):
    key = make_key(key={"webhook_url": webhook.url, "webhook_secret": "shared secret"})
    code = 'import time; time.sleep(0.5); print("done")'
    status = "-w '\\n{\"http\": %{http_code}}'"
    command = f"{EXECUTE} {status} -H 'Prefer: respond-async' "
    accepted, http = shell(command + body(code=code, language="python", timeout=120), key=key)
    assert http == {"http": 202}
    assert accepted == {"trace_id": accepted["trace_id"], "status": "running"}
    delivered = webhook.wait()
    assert delivered.is_signed_with(b"shared secret")
    message = delivered.body
    assert message["event"] == "execution.completed"
    assert message["trace_id"] == accepted["trace_id"] and message["output_truncated"] is False
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", message["timestamp"])
    result = message["result"]
    assert (result["success"], result["stdout"], result["stderr"]) == (True, "done\n", "")
    assert (result["exit_code"], result["error"]) == (0, None)
    assert 500 <= result["duration_ms"] < 5000


def test_a_webhook_of_the_request_replaces_that_of_the_key(shell, webhook, make_key):
    key = make_key(key={"webhook_url": f"{webhook.url}/of-the-key"})
    command = EXECUTE + "-H 'Prefer: respond-async' "
    shell(
        command + body(code="print(1)", webhook_url=f"{webhook.url}/of-the-request") + "\necho",
        key=key,
    )
    assert webhook.wait().path.endswith("/of-the-request")


def test_a_cancelled_execution_reaches_the_webhook_as_cancelled(shell, webhook, make_key):
    key = make_key(key={"webhook_url": webhook.url})
    command = EXECUTE + "-H 'Prefer: respond-async' " + body(code="import time; time.sleep(60)")
    (accepted,) = shell(f"{command}\necho", key=key)
    cancel = 'curl -sS -X POST -H "Authorization: Bearer $BAPONI_API_KEY" '
    shell(f'{cancel} "$CLOCHE_URL/v1/executions/{accepted["trace_id"]}/cancel"\necho', key=key)
    message = webhook.wait().body
    assert (message["event"], message["trace_id"]) == ("execution.cancelled", accepted["trace_id"])


def test_code_without_a_byte_is_an_error(shell):
    (answer,) = shell(execute(code=""))
    assert answer == {
        "error": "validation_error",
        "message": "code must be between 1 byte and 1 MB",
    }


def test_the_limit_on_concurrent_executions_says_which_plan_has_more(shell, make_key):
    key = make_key("free")
    sleep = f"{EXECUTE} {body(code='import time; time.sleep(20)', timeout=30)}"
    busy = f"{sleep} >/dev/null 2>&1 &\n" * 5
    sixth = f"""
        running="$CLOCHE_URL/v1/executions?status=running"
        for attempt in $(seq 200); do
            found=$(curl -sS -H "Authorization: Bearer $BAPONI_API_KEY" "$running")
            count=$(grep -o '"trace_id"' <<<"$found" | wc -l || true)
            [ "$count" -lt 5 ] || break
            sleep 0.05
        done
        {execute(code="1")}
        kill $(jobs -p)
    """
    (answer,) = shell(busy + sixth, key=key)
    assert answer["error"] == "rate_limited"
    limit, upgrade = answer["message"].split(". ")
    assert limit == "concurrent execution limit reached (5/5)"
    assert upgrade == "Upgrade to Pro for 100 concurrent executions."


def test_three_languages(shell):
    python, node, bash = shell(
        execute(code='import sys; print(f"Python {sys.version}")')
        + execute(code="console.log(`Node.js ${process.version}`)", language="node")
        + execute(code='echo "Bash $BASH_VERSION" && uname -a', language="bash")
    )
    assert python["stdout"].startswith("Python 3.") and node["stdout"].startswith("Node.js v")
    first, second = bash["stdout"].splitlines()
    assert first.startswith("Bash 5") and second.startswith("Linux ")
    assert all(answer["success"] for answer in (python, node, bash))


def test_the_default_runtimes_are_those_of_the_contract(shell):
    python, node = shell(
        execute(code='import sys; print("%d.%d" % sys.version_info[:2])')
        + execute(code="console.log(process.versions.node.split('.')[0])", language="node")
    )
    found = f"Python {python['stdout'].strip()}, Node.js {node['stdout'].strip()}"
    assert found == "Python 3.14, Node.js 25", f"the default runtime is {found}"


def test_a_thread_keeps_an_installed_package(shell, make_key, thread):
    key = make_key(network="unrestricted")
    installed, used = shell(
        execute(code=INSTALL, language="bash", thread_id=thread)
        + execute(code="import cowsay; print(cowsay.__file__)", thread_id=thread),
        key=key,
    )
    assert installed["success"] and installed["stdout"].endswith("done\n"), installed
    assert used["stdout"].startswith("/home/baponi/"), used


def test_metadata_is_recorded_and_hidden_from_the_program(shell):
    order = f"req_{time.time_ns()}"
    code = (
        "import os; print('processing', [v for v in os.environ.values() if v.startswith('req_')])"
    )
    metadata = {"user_id": "usr_1", "request_id": order, "agent": "orders-v2"}
    search = f"""curl -sS -H "Authorization: Bearer $BAPONI_API_KEY" \\
        "$CLOCHE_URL/v1/executions?metadata.request_id={order}"\necho\n"""
    answer, history = shell(execute(code=code, metadata=metadata) + search)
    assert answer["stdout"] == "processing []\n"
    (record,) = history["executions"]
    assert record["metadata"] == metadata


def test_a_run_may_take_longer_than_a_minute(long_runs):
    printed, _ = long_runs["curl"].communicate(timeout=LONG_TIMEOUT)
    result = json.loads(printed)
    assert (result["success"], result["stdout"]) == (True, "done\n")


def test_a_timeout_has_its_sentence(shell):
    (answer,) = shell(execute(code="import time; time.sleep(30)", timeout=1))
    expected = {"success": False, "stdout": "", "stderr": "", "exit_code": -1}
    expected |= {"error": "execution timed out after 1s"}
    assert {name: answer[name] for name in RESULT} == expected


def test_an_exception_is_a_result(shell):
    (answer,) = shell(execute(code='raise ValueError("out of cheese")'))
    stderr = (
        "Traceback (most recent call last):\n"
        '  File "/home/baponi/main.py", line 1, in <module>\n'
        '    raise ValueError("out of cheese")\n'
        "ValueError: out of cheese\n"
    )
    expected = {"success": False, "stdout": "", "stderr": stderr, "exit_code": 1, "error": None}
    assert {name: answer[name] for name in RESULT} == expected


def test_environment_variables_reach_the_program(shell):
    code = 'import os; print(f"Target: {os.environ["TARGET_URL"]}")'
    variables = {"TARGET_URL": "https://target.example", "LOG_LEVEL": "debug"}
    (answer,) = shell(execute(code=code, env_vars=variables))
    assert answer["stdout"] == "Target: https://target.example\n", answer["stderr"]


def test_a_mount_is_narrowed_by_sub_paths(shell, make_key):
    key = make_key(storage=["company-data"])
    code = 'import os; print(os.listdir("/data/company-data/"))'
    (answer,) = shell(execute(code=code, sub_paths=["/data/company-data/reports/q1"]), key=key)
    assert answer["stdout"] == "['sales.csv']\n", answer


def test_every_parameter_in_one_request(shell, make_key, thread):
    key = make_key(storage=["company-data"])
    code = (
        "import pandas as pd\n"
        'table = pd.read_csv("/data/company-data/customers.csv")\n'
        "print(table.describe().to_json())"
    )
    (answer,) = shell(
        execute(
            code=code,
            language="python",
            timeout=60,
            thread_id=thread,
            metadata={"user_id": "usr_1", "workflow": "csv", "step": "describe"},
            env_vars={"OUTPUT_FORMAT": "json", "LOG_LEVEL": "info"},
            sub_paths=["/data/company-data/customers"],
        ),
        key=key,
    )
    assert answer["success"] and json.loads(answer["stdout"]), answer


def test_a_key_that_does_not_exist_is_refused(shell):
    assert KEY.startswith("sk-us-")
    (answer,) = shell(execute(code="1"), key="sk-us-unknown")
    assert answer["error"] == "unauthorized"
