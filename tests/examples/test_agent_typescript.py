"""The Agent API with its public TypeScript client."""

import json

import pytest

from agent_answer import ANSWER, check_response
from conftest import HERE
from typescript_runner import run_typescript


def run_example(name, directory):
    return json.loads(run_typescript(directory, (HERE / "typescript" / name).read_text()))


def test_a_model_runs_code_and_answers(tmp_path):
    printed = run_example("answer.ts", tmp_path)
    assert printed["text"] == ANSWER
    check_response(printed["response"])


def test_a_response_in_the_background_is_polled(tmp_path):
    printed = run_example("background.ts", tmp_path)
    assert printed["begun"] in ("queued", "in_progress")
    assert printed["text"] == ANSWER
    check_response(printed["response"])


def test_a_type_that_the_client_does_not_know_is_an_error(tmp_path):
    source = (HERE / "typescript" / "answer.ts").read_text().replace("'sandbox'", "'toaster'")
    with pytest.raises(AssertionError, match="toaster"):
        run_typescript(tmp_path, source)
