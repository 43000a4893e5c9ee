"""The Agent API with its public Python client."""

import time

from agent_answer import ANSWER, PROMPT, check_response
from conftest import KEY, MODEL, URL
from perplexity import Perplexity


def test_a_model_runs_code_and_answers(perplexity):
    response = perplexity.responses.create(
        model=MODEL,
        input=PROMPT,
        tools=[{"type": "sandbox"}],
        instructions="Compute the values in the sandbox before you answer.",
    )
    assert response.output_text == ANSWER
    check_response(response.to_dict())


def test_a_response_in_the_background_is_polled(perplexity):
    response = perplexity.responses.create(
        model=MODEL, input=PROMPT, tools=[{"type": "sandbox"}], background=True
    )
    begun = response.status
    while response.status in ("queued", "in_progress"):
        time.sleep(0.1)
        response = perplexity.responses.retrieve(response.id)
    assert begun in ("queued", "in_progress")
    assert response.output_text == ANSWER
    check_response(response.to_dict())


def test_address_and_key_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("PERPLEXITY_API_KEY", KEY)
    monkeypatch.setenv("PERPLEXITY_BASE_URL", URL)
    response = Perplexity().responses.create(model=MODEL, input=PROMPT, tools=[{"type": "sandbox"}])
    assert response.output_text == ANSWER
