"""An agent loop: a model writes programs, Cloche runs them, until the model has its answer.

    pip install anthropic baponi
    export ANTHROPIC_API_KEY=… BAPONI_API_KEY=sk-us-…
    python agent_loop.py "How many primes are below 10000?"

The programs share one thread, so a later one finds the files of an earlier one.
"""

import os
import sys
import uuid

from anthropic import Anthropic
from baponi import Baponi

MODEL = os.environ.get("MODEL", "claude-sonnet-5-5")
SERVER = os.environ.get("CLOCHE_URL", "http://127.0.0.1:8080")
MOST_TURNS = 10
TOOL = {
    "name": "execute_code",
    "description": "Runs a program in a sandbox without a network and returns what it printed. "
    "Files in the working directory are kept for the next program.",
    "input_schema": {
        "type": "object",
        "properties": {
            "code": {"type": "string"},
            "language": {"type": "string", "enum": ["python", "node", "bash"]},
        },
        "required": ["code"],
    },
}


def run_program(sandbox, thread, call):
    """Runs a program of the model. A failure is an answer, too: the model can repair it."""
    arguments = {"language": "python", **call.input}
    result = sandbox.execute(**arguments, thread_id=thread, timeout=30)
    print(f"--- {arguments['language']}\n{arguments['code'].strip()}")
    print(f"--- exit code {result.exit_code}")
    text = f"{result.stdout}{result.stderr}" or f"(no output, exit code {result.exit_code})"
    return {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": text,
        "is_error": not result.success,
    }


def answer_question(question):
    model, sandbox = Anthropic(), Baponi(base_url=SERVER)
    thread = f"agent-{uuid.uuid4().hex[:12]}"
    messages = [{"role": "user", "content": question}]
    for _ in range(MOST_TURNS):
        with model.messages.stream(
            model=MODEL, max_tokens=4096, tools=[TOOL], messages=messages
        ) as stream:
            reply = stream.get_final_message()
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        results = [run_program(sandbox, thread, call) for call in calls]
        messages += [
            {"role": "assistant", "content": [block.to_dict() for block in reply.content]},
            {"role": "user", "content": results},
        ]
    raise SystemExit(f"no answer after {MOST_TURNS} turns")


if __name__ == "__main__":
    print(answer_question(" ".join(sys.argv[1:]) or "How many primes are below 10000?"))
