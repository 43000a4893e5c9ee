"""The Agent API with curl."""

import json
import time
from shlex import quote

from agent_answer import ANSWER, PROMPT, check_response, output_text
from conftest import MODEL

HEADERS = """-H "Authorization: Bearer $PERPLEXITY_API_KEY" -H "Content-Type: application/json" """


def ask(**fields):
    fields = {"model": MODEL, "input": PROMPT, "tools": [{"type": "sandbox"}], **fields}
    return f'curl -sS "$CLOCHE_URL/v1/agent" {HEADERS} -d {quote(json.dumps(fields))}\necho\n'


def test_a_model_runs_code_and_answers(shell):
    (response,) = shell(ask(instructions="Compute the values in the sandbox before you answer."))
    check_response(response)
    assert output_text(response) == ANSWER


def test_a_response_in_the_background_is_polled(shell):
    (response,) = shell(ask(background=True))
    assert response["status"] in ("queued", "in_progress")
    poll = f"""curl -sS "$CLOCHE_URL/v1/responses/{response["id"]}" {HEADERS}\necho\n"""
    while response["status"] not in ("completed", "failed", "cancelled"):
        time.sleep(0.1)
        (response,) = shell(poll)
    check_response(response)
    assert output_text(response) == ANSWER
