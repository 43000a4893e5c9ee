"""Web tools with the public client of the Agent API.

CLOCHE_MODEL names a model whose server does what the input says, as in ../agent. CLOCHE_WEB is the
address of a scripted internet (see crates/test-support/src/web.rs).
"""

import json
import os

import pytest
from perplexity import BadRequestError, Perplexity

MODEL = os.environ["CLOCHE_MODEL"]
PAGE = os.environ["CLOCHE_WEB"] + "/page"
TOOLS = [{"type": "web_search"}, {"type": "fetch_url"}, {"type": "people_search"}]


def calls(name, **arguments):
    return {"calls": [{"name": name, "arguments": arguments}]}


SCRIPT = json.dumps([
    calls("web_search", query="cats"),
    calls("fetch_url", urls=[PAGE]),
    calls("people_search", query="ada"),
    {"text": "done"},
])


@pytest.fixture
def perplexity(url, key):
    with Perplexity(api_key=key, base_url=url, max_retries=0) as client:
        yield client


def test_items_and_usage(perplexity):
    response = perplexity.responses.create(model=MODEL, input=SCRIPT, tools=TOOLS)
    search, page, people, message = response.output
    assert response.output_text == "done"
    assert [item.type for item in response.output] == [
        "search_results", "fetch_url_results", "search_results", "message"]
    assert search.queries == ["cats"]
    assert [result.id for result in search.results] == [1, 2, 3]
    assert search.results[0].url == "https://site1.example/page"
    assert search.results[0].source == "web"
    assert (page.contents[0].title, page.contents[0].url) == ("Page /page", PAGE)
    assert "Text of the page" in page.contents[0].snippet
    assert people.results[0].title == "Ada Lovelace"
    assert message.role == "assistant"
    details = response.usage.tool_calls_details
    assert {name: used.invocation for name, used in details.items()} == {
        "web_search": 1, "fetch_url": 1, "people_search": 1}
    assert response.usage.cost.tool_calls_cost == pytest.approx(0.0155)
    stored = perplexity.responses.retrieve(response.id)
    assert stored.output == response.output


def test_stream(perplexity):
    stream = perplexity.responses.create(model=MODEL, input=SCRIPT, tools=TOOLS, stream=True)
    events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))

    def of_kind(kind):
        return [event for event in events if event.type == f"response.reasoning.{kind}"]

    (queries, _), (results, people) = of_kind("search_queries"), of_kind("search_results")
    (urls,), (pages,) = of_kind("fetch_url_queries"), of_kind("fetch_url_results")
    assert queries.queries == ["cats"]
    assert results.results[2].title == "Result 3"
    assert people.results[0].title == "Ada Lovelace"
    assert urls.urls == [PAGE]
    assert pages.contents[0].title == "Page /page"
    kinds = [event.type for event in events]
    assert kinds.count("response.reasoning.started") == 3
    assert kinds.count("response.reasoning.stopped") == 3


def test_options(perplexity):
    tools = [{"type": "web_search", "filters": {"search_domain_filter": ["site2.example"]}}]
    script = json.dumps([calls("web_search", query="cats"), {"text": "done"}])
    response = perplexity.responses.create(model=MODEL, input=script, tools=tools)
    assert [result.title for result in response.output[0].results] == ["Result 2"]
    with pytest.raises(BadRequestError, match="search_recency_filter is not supported"):
        tools = [{"type": "web_search", "filters": {"search_recency_filter": "day"}}]
        perplexity.responses.create(model=MODEL, input=script, tools=tools)


def test_code_in_the_sandbox_calls_tools(perplexity):
    code = (
        "import cloche_tools\n"
        "print(cloche_tools.search('cats')[0]['title'])\n"
        f"print(cloche_tools.fetch({PAGE!r})['title'])\n"
    )
    script = json.dumps([calls("sandbox", code=code), {"text": "done"}])
    tools = [{"type": "sandbox"}, {"type": "web_search"}, {"type": "fetch_url"}]
    response = perplexity.responses.create(model=MODEL, input=script, tools=tools)
    assert response.output[0].results[0].stdout == "Result 1\nPage /page\n"
    details = response.usage.tool_calls_details
    assert {name: used.invocation for name, used in details.items()} == {
        "sandbox": 1, "web_search": 1, "fetch_url": 1}
    assert response.usage.cost.tool_calls_cost == pytest.approx(0.03 + 0.005 + 0.0005)
