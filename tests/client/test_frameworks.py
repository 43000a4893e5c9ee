"""The tools of the public client for agent frameworks, called as the frameworks call them.

No model takes part: each tool object is built with `base_url` and invoked with the arguments that a
model would have chosen.
"""

import asyncio
import json
import subprocess
import sys
import uuid
from functools import partial

import agents
import pytest
from agents.tool_context import ToolContext

# The tool of the pinned client is not a strict schema; see docs/CLIENTS.md.
agents.function_tool = partial(agents.function_tool, strict_mode=False)

import baponi.anthropic  # noqa: E402
import baponi.google  # noqa: E402
import baponi.langchain  # noqa: E402
import baponi.openai  # noqa: E402
from google.genai import types  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Base URL .* does not use HTTPS")


def langchain(**settings):
    tool = baponi.langchain.create_code_sandbox(**settings)
    assert tool.name == "code_sandbox" and "code" in tool.args
    return lambda **arguments: tool.invoke(arguments)


def langchain_async(**settings):
    def call(**arguments):
        # The tool keeps one asynchronous client, which belongs to one event loop.
        tool = baponi.langchain.create_code_sandbox(**settings)
        return asyncio.run(tool.ainvoke(arguments))

    return call


def openai_agents(**settings):
    def call(**arguments):
        tool = baponi.openai.create_code_sandbox(**settings)
        text = json.dumps(arguments)
        context = ToolContext(None, tool_name=tool.name, tool_call_id="call_1", tool_arguments=text)
        return asyncio.run(tool.on_invoke_tool(context, text))

    return call


def anthropic(**settings):
    tool, handle = baponi.anthropic.create_code_sandbox(**settings)
    assert tool["input_schema"]["required"] == ["code"]
    return lambda **arguments: handle(tool["name"], arguments)


def google(**settings):
    function = baponi.google.create_code_sandbox(**settings)
    # What the framework makes of the function, to show it to the model.
    declared = types.FunctionDeclaration.from_callable_with_api_option(callable=function)
    assert declared.name == "code_sandbox"
    return lambda **arguments: function(**arguments)


@pytest.fixture(params=[langchain, langchain_async, openai_agents, anthropic, google])
def build(request, url, key):
    def build(**settings):
        return request.param(api_key=key, base_url=url, **settings)

    return build


@pytest.mark.parametrize(
    ("language", "code"),
    [("python", "print('hi')"), ("node", "console.log('hi')"), ("bash", "echo hi")],
)
def test_three_languages(build, language, code):
    assert build()(code=code, language=language) == "hi\n"


def test_python_is_the_default_language(build):
    assert build()(code="print(6 * 7)") == "42\n"


def test_a_failure_of_the_code_is_text_for_the_model(build):
    text = build()(code="print('before'); 1 / 0")
    assert text.startswith("before\n") and "[stderr]\n" in text
    assert "ZeroDivisionError" in text and text.endswith("[exit code: 1]")


def test_a_thread_of_the_tool_keeps_files(build):
    call = build(thread_id=f"tool-{uuid.uuid4().hex[:12]}")
    assert call(code="echo kept > notes", language="bash") == "(no output)"
    assert call(code="print(open('notes').read(), end='')") == "kept\n"


def test_a_thread_of_the_call_keeps_files(build):
    call, thread = build(), f"call-{uuid.uuid4().hex[:12]}"
    call(code="echo kept > notes", language="bash", thread_id=thread)
    assert call(code="cat notes", language="bash", thread_id=thread) == "kept\n"
    assert "[exit code: 1]" in call(code="cat notes", language="bash")


def test_variables_of_the_tool_and_of_the_call_are_merged(build):
    call = build(env_vars={"FIRST": "tool", "SECOND": "tool"}, metadata={"agent": "test"})
    text = call(code="echo $FIRST $SECOND", language="bash", env_vars={"SECOND": "call"})
    assert text == "tool call\n"


def test_the_decorated_function_of_anthropic_takes_what_a_model_sent(url, key, monkeypatch):
    handler = baponi.anthropic._SandboxHandler(api_key=key, base_url=url)
    monkeypatch.setattr(baponi.anthropic, "_default_handler", handler)
    assert baponi.anthropic.code_sandbox.name == "code_sandbox"
    assert baponi.anthropic.code_sandbox.call({"code": "print(6 * 7)"}) == "42\n"
    assert baponi.anthropic.handle_tool_call("code_sandbox", {"code": "print(7)"}) == "7\n"


def test_the_workaround_for_openai_agents_is_still_needed():
    """Fails once the client's tool can be imported as it is: then remove the workaround."""
    alone = subprocess.run(
        [sys.executable, "-c", "import baponi.openai"], capture_output=True, text=True
    )
    assert alone.returncode != 0 and "strict schema" in alone.stderr
