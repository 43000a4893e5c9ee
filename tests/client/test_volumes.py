"""Volumes with the public client, unchanged."""

import os
import uuid

import httpx
import pytest
from baponi import Baponi
from baponi.exceptions import BaponiError

URL = os.environ["CLOCHE_URL"]


@pytest.fixture
def admin():
    headers = {"Authorization": f"Bearer {os.environ['CLOCHE_ADMIN_TOKEN']}"}
    with httpx.Client(base_url=f"{URL}/v1/admin", headers=headers) as http:

        def request(path, **body):
            answer = http.post(path, json=body)
            answer.raise_for_status()
            return answer.json()

        yield request


@pytest.fixture
def volume(admin):
    """A volume of a new team, and a client that may write to it."""
    team = admin("/teams", name=f"client-{uuid.uuid4().hex[:12]}", plan="enterprise")["id"]
    made = admin("/volumes", team=team, name="work", quota_bytes=4 << 20)
    admin("/sandboxes", team=team, name="default", storage=["work:rw"])
    key = admin("/keys", team=team, sandbox="default", name="client")["key"]
    with Baponi(key, base_url=URL, max_retries=0) as client:
        yield client, made


def put(client, path, content):
    signed = client.upload_url(
        source="volume", id="work", path=path, content_length=len(content), content_type="text/csv"
    )
    headers = {header.name: header.value for header in signed.headers}
    return httpx.request(signed.method, signed.url, content=content, headers=headers)


def test_a_file_goes_to_a_volume_and_comes_back(volume):
    client, _ = volume
    assert client.list_files(source="volume", id="work") == []
    assert put(client, "in/table.csv", b"a,b\n1,2\n").status_code == 200
    (entry,) = client.list_files(source="volume", id="work")
    assert (entry.path, entry.size) == ("in/table.csv", 8)
    (entry,) = client.list_files(source="volume", id="work", path="in/")
    assert entry.path == "in/table.csv"
    signed = client.download_url(source="volume", id="work", path="in/table.csv")
    assert httpx.get(signed.url).content == b"a,b\n1,2\n"


def test_a_program_and_the_client_share_a_volume(volume):
    client, _ = volume
    assert put(client, "in/table.csv", b"a,b\n1,2\n").status_code == 200
    code = (
        "rows = open('/data/work/in/table.csv').read().splitlines()\n"
        "open('/data/work/count', 'w').write(str(len(rows)))"
    )
    result = client.execute(code)
    assert result.success, result
    signed = client.download_url(source="volume", id="work", path="count")
    assert httpx.get(signed.url).content == b"2"


def test_a_volume_of_another_team_does_not_exist(volume):
    _, made = volume
    with Baponi(os.environ["CLOCHE_API_KEY"], base_url=URL, max_retries=0) as other:
        for name in ["work", made["id"], "missing"]:
            with pytest.raises(BaponiError) as refused:
                other.list_files(source="volume", id=name)
            assert "no such volume" in str(refused.value)
