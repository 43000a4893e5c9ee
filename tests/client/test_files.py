"""Threads and files as the public client uses them."""

import uuid

import httpx
import pytest
from baponi import Baponi
from baponi.exceptions import BaponiError, ThreadBusyError


@pytest.fixture
def thread():
    return f"files-{uuid.uuid4().hex[:12]}"


def put(client, thread, path, content):
    signed = client.upload_url(path=path, content_length=len(content), id=thread)
    assert signed.method == "PUT" and signed.expires_at
    headers = {header.name: header.value for header in signed.headers}
    return httpx.put(signed.url, content=content, headers=headers)


def get(client, thread, path):
    signed = client.download_url(path=path, id=thread)
    assert signed.method == "GET"
    answer = httpx.get(signed.url, headers={header.name: header.value for header in signed.headers})
    answer.raise_for_status()
    return answer.content


def test_a_thread_keeps_its_home(client, thread):
    first = client.execute("open('f', 'w').write('kept')", thread_id=thread)
    assert first.success, first
    assert client.execute("print(open('f').read())", thread_id=thread).stdout == "kept\n"
    assert not client.execute("print(open('f').read())").success


def test_a_package_installed_by_one_call_is_there_in_the_next(client, thread):
    code = """
        set -e
        site=$(python3 -c 'import site; print(site.getusersitepackages())')
        mkdir -p "$site/hello_threads"
        echo 'VALUE = 42' > "$site/hello_threads/__init__.py"
    """
    installed = client.execute(code, language="bash", thread_id=thread)
    assert installed.success, installed
    used = client.execute("import hello_threads; print(hello_threads.VALUE)", thread_id=thread)
    assert used.stdout == "42\n", used


def test_files_go_up_and_come_down(client, thread):
    content = bytes(range(256)) * 1000
    assert put(client, thread, "in/data.bin", content).status_code == 200
    code = "import os; os.makedirs('out'); d = open('in/data.bin', 'rb').read(); open('out/n', 'w').write(str(len(d)))"
    assert client.execute(code, thread_id=thread).success
    files = {entry.path: entry for entry in client.list_files(id=thread)}
    assert set(files) == {"in/data.bin", "out/n"}
    assert files["in/data.bin"].size == len(content) and files["out/n"].modified
    for path, entry in files.items():
        assert len(get(client, thread, path)) == entry.size
    assert get(client, thread, "in/data.bin") == content
    assert [entry.path for entry in client.list_files(id=thread, path="out")] == ["out/n"]


def test_what_is_not_there_is_not_found(client, thread):
    with pytest.raises(BaponiError) as missing:
        client.list_files(id=thread)
    assert missing.value.status_code == 404
    put(client, thread, "f", b"x")
    with pytest.raises(BaponiError) as missing:
        client.download_url(path="g", id=thread)
    assert missing.value.status_code == 404
    with pytest.raises(BaponiError) as missing:
        client.list_files(id="v", source="volume")
    assert missing.value.status_code == 404


def test_a_thread_in_use_says_so(client, url, key, thread):
    body = {"code": "import time; time.sleep(30)", "thread_id": thread}
    headers = {"Authorization": f"Bearer {key}", "Prefer": "respond-async"}
    started = httpx.post(f"{url}/v1/sandbox/execute", json=body, headers=headers)
    trace = started.json()["trace_id"]
    try:
        with pytest.raises(ThreadBusyError):
            client.execute("1", thread_id=thread)
        assert put(client, thread, "f", b"x").status_code == 409
    finally:
        httpx.post(f"{url}/v1/executions/{trace}/cancel", headers=headers)


def test_another_team_sees_nothing(client, key_of_plan, url, thread):
    put(client, thread, "f", b"secret")
    with Baponi(key_of_plan("free"), base_url=url, max_retries=0) as other:
        with pytest.raises(BaponiError) as missing:
            other.list_files(id=thread)
        assert missing.value.status_code == 404
        seen = other.execute("import os; print(os.path.exists('f'))", thread_id=thread)
        assert seen.stdout == "False\n", seen
