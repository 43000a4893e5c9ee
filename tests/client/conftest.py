"""The public client against a running server.

CLOCHE_URL and CLOCHE_API_KEY say which; CLOCHE_ADMIN_TOKEN lets the tests make keys of other plans.
"""

import os
import uuid
import warnings

import httpx
import pytest
from baponi import Baponi

URL = os.environ["CLOCHE_URL"]


@pytest.fixture
def url():
    return URL


@pytest.fixture
def key():
    return os.environ["CLOCHE_API_KEY"]


@pytest.fixture
def client(key):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Baponi(key, base_url=URL, max_retries=0) as client:
            yield client


@pytest.fixture
def key_of_plan():
    """Makes a team on a plan, with settings of its own, and gives back a key of it."""
    admin = httpx.Client(
        base_url=f"{URL}/v1/admin",
        headers={"Authorization": f"Bearer {os.environ['CLOCHE_ADMIN_TOKEN']}"},
    )

    def make(path, **body):
        answer = admin.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    def key(plan, **settings):
        team = make("/teams", name=f"client-{uuid.uuid4().hex[:12]}", plan=plan)["id"]
        if settings:
            admin.patch(f"/teams/{team}", json=settings).raise_for_status()
        make("/sandboxes", team=team, name="default")
        return make("/keys", team=team, sandbox="default", name="client")["key"]

    return key
