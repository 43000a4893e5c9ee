"""What the examples of the Agent API expect: the scripted model runs one program and answers.

The model server of the tests has the script for PROMPT; see crates/cli/tests/serve.
"""

PROMPT = "Write a CSV of the first ten Fibonacci numbers, each with its square."
ANSWER = "The table has ten rows; the last one is 34,1156."


def fibonacci_rows():
    a, b = 0, 1
    for _ in range(10):
        yield f"{a},{a * a}\n"
        a, b = b, a + b


def check_response(response):
    """Checks a finished response, as JSON, with its one sandbox call."""
    assert response["status"] == "completed", response
    calls = [item for item in response["output"] if item["type"] == "sandbox_results"]
    messages = [item for item in response["output"] if item["type"] == "message"]
    (call,) = calls
    assert len(messages) == 1
    fields = {"type", "call_id", "container_id", "language", "code", "status", "results"}
    assert fields <= set(call), call
    assert (call["language"], call["status"]) == ("python", "completed")
    assert call["call_id"] and call["container_id"] and "print" in call["code"]
    (result,) = call["results"]
    assert {"stdout", "stderr", "exit_code", "duration_ms", "status"} <= set(result), result
    assert result["stdout"] == "".join(fibonacci_rows())
    assert (result["stderr"], result["exit_code"], result["status"]) == ("", 0, "completed")
    assert isinstance(result["duration_ms"], int)
    assert response["usage"]["tool_calls_details"]["sandbox"]["invocation"] == 1


def output_text(response):
    (message,) = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for part in message["content"])
