"""What the examples of the four contracts do, done against a running server.

Each test is one example, in our own words. The environment says where the server is:
CLOCHE_URL, CLOCHE_API_KEY, CLOCHE_ADMIN_TOKEN, CLOCHE_BIN, for webhooks CLOCHE_WEBHOOK_CERT and
CLOCHE_WEBHOOK_KEY, and for storage CLOCHE_S3_ENDPOINT. `expected-failures.toml` lists the examples that need a capability which is
still missing. Such an example has to fail, and with the words of the list: once it succeeds, or
fails for another reason, the test fails until the list is corrected.
"""

import json
import os
import subprocess
import sys
import tomllib
import uuid
import warnings
from pathlib import Path
from shlex import quote

import httpx
import pytest
from baponi import Baponi
from perplexity import Perplexity

from webhook_receiver import Receiver

HERE = Path(__file__).parent
URL = os.environ["CLOCHE_URL"]
KEY = os.environ["CLOCHE_API_KEY"]
BIN = os.environ["CLOCHE_BIN"]
MODEL = "openai/gpt-5.5"
PATIENCE = 60
# The bucket behind a storage connection of the examples.
BUCKET = {
    "kind": "s3",
    "bucket": "layers",
    "endpoint": os.environ.get("CLOCHE_S3_ENDPOINT"),
    "allow_private_endpoint": True,
    "credentials": {"access_key_id": "example", "secret_access_key": "example"},
}

# An index on the internet of the tests, whose authority the default image does not trust.
INDEX = "--index-url http://pypi.example/simple --trusted-host pypi.example"
INSTALL = f"pip install --user {INDEX} cowsay && echo done"
MISSING = tomllib.loads((HERE / "expected-failures.toml").read_text())["missing"]
EXPECTED = {example: missing for missing in MISSING for example in missing["examples"]}


def expected_failure(item):
    return EXPECTED.get(f"{item.path.stem}::{item.name}")


def pytest_collection_modifyitems(items):
    for item in items:
        if missing := expected_failure(item):
            item.add_marker(pytest.mark.xfail(strict=True, reason=missing["capability"]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    missing = expected_failure(item)
    if missing and call.excinfo and missing["says"] not in str(call.excinfo.value):
        report.outcome = "failed"
        report.longrepr = f"not for the expected reason {missing['says']!r}: {call.excinfo!r}"
        del report.wasxfail
    return report


def curl_environment(key=KEY):
    variables = {"CLOCHE_URL": URL, "BAPONI_API_KEY": key, "PERPLEXITY_API_KEY": key}
    return {"PATH": os.environ["PATH"], **variables}


def run_shell(script, key=KEY):
    """The output of a shell script that uses curl."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=curl_environment(key),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture
def shell():
    """Runs a shell script and returns the JSON documents that it printed, one a line."""

    def shell(script, key=KEY):
        return [json.loads(line) for line in run_shell(script, key).splitlines()]

    return shell


@pytest.fixture
def client():
    with baponi_client() as client:
        yield client


def baponi_client(key=KEY):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Baponi(key, base_url=URL)


@pytest.fixture
def perplexity():
    with Perplexity(api_key=KEY, base_url=URL) as client:
        yield client


@pytest.fixture
def thread():
    return f"example-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def admin():
    """A request to the admin API, which must succeed."""
    return admin_client(URL, os.environ["CLOCHE_ADMIN_TOKEN"])


def admin_client(url, token):
    http = httpx.Client(
        base_url=f"{url}/v1/admin/",
        headers={"Authorization": f"Bearer {token}"},
        timeout=PATIENCE,
    )

    def request(method, path, **body):
        answer = http.request(method, path, json=body or None)
        assert answer.is_success, f"{answer.status_code} {answer.text}"
        return answer.json()

    return request


@pytest.fixture
def make_key(admin):
    """Makes a key of a new team on a plan, in a sandbox with these settings."""

    def make_key(plan="enterprise", key=None, **sandbox):
        team = admin("POST", "teams", name=f"example-{uuid.uuid4().hex[:12]}", plan=plan)["id"]
        for name in sandbox.get("storage", []):
            admin("POST", "storage", team=team, name=name, **BUCKET)
        admin("POST", "sandboxes", team=team, name="default", **sandbox)
        made = admin("POST", "keys", team=team, sandbox="default", name="example", **(key or {}))
        return made["key"]

    return make_key


@pytest.fixture
def webhook():
    receiver = Receiver()
    yield receiver
    receiver.close()


# Longer than the default timeout, within the one that the examples ask for.
LONG = "import time; time.sleep(62); print('done')"
LONG_TIMEOUT = 90
LONG_CURL = f"""
    curl -sS -X POST "$CLOCHE_URL/v1/sandbox/execute" \\
      -H "Authorization: Bearer $BAPONI_API_KEY" \\
      -H "Content-Type: application/json" \\
      -d {quote(json.dumps({"code": LONG, "timeout": LONG_TIMEOUT}))}
"""
LONG_PYTHON = f"""
from baponi import Baponi

result = Baponi(base_url={URL!r}).execute({LONG!r}, timeout={LONG_TIMEOUT})
print(result.model_dump_json())
"""


@pytest.fixture(scope="session", autouse=True)
def long_runs(request):
    """The two examples that take longer than a minute, started before all others."""
    commands = {
        "curl": ["bash", "-euc", LONG_CURL],
        "python": [sys.executable, "-W", "ignore", "-c", LONG_PYTHON],
    }
    if not any("longer_than_a_minute" in item.name for item in request.session.items):
        commands = {}
    running = {
        name: subprocess.Popen(command, env=curl_environment(), stdout=subprocess.PIPE)
        for name, command in commands.items()
    }
    yield running
    for process in running.values():
        process.kill()
        process.wait()
