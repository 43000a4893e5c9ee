"""The public client's tool for CrewAI, called as CrewAI calls it.

CrewAI has an environment of its own: it needs an older `mcp` than the other tests, and 1 GB.
"""

import uuid

import baponi.crewai
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def build(url, key):
    def build(**settings):
        return baponi.crewai.create_code_sandbox(api_key=key, base_url=url, **settings)

    return build


@pytest.mark.parametrize(
    ("language", "code"),
    [("python", "print('hi')"), ("node", "console.log('hi')"), ("bash", "echo hi")],
)
def test_three_languages(build, language, code):
    tool = build()
    assert tool.name == "Code Sandbox" and "code" in tool.args_schema.model_fields
    assert tool.run(code=code, language=language) == "hi\n"


def test_a_failure_of_the_code_is_text_for_the_model(build):
    text = build().run(code="print('before'); 1 / 0")
    assert text.startswith("before\n") and "ZeroDivisionError" in text
    assert text.endswith("[exit code: 1]")


def test_a_thread_keeps_files(build):
    tool = build(thread_id=f"crew-{uuid.uuid4().hex[:12]}")
    assert tool.run(code="echo kept > notes", language="bash") == "(no output)"
    assert tool.run(code="cat notes", language="bash") == "kept\n"


def test_variables_of_the_tool_and_of_the_call_are_merged(build):
    tool = build(env_vars={"FIRST": "tool", "SECOND": "tool"})
    code = "echo $FIRST $SECOND"
    assert tool.run(code=code, language="bash", env_vars={"SECOND": "call"}) == "tool call\n"
