"""The programs of docs/CLIENTS.md, run as they stand but for the server's address."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import BIN, KEY, PATIENCE, URL
from typescript_runner import run_typescript

TOP = Path(__file__).parents[3]
ADDRESS = "http://127.0.0.1:8080"
TEXT = (TOP / "docs" / "CLIENTS.md").read_text()
PROGRAM = re.compile(
    r"```(?P<language>bash|python|typescript)\n(?P<code>.*?)```\n+"
    r"(?:```text\n(?P<output>.*?)```)?",
    re.DOTALL,
)
TITLE = re.compile(r"^#+ (.*)$", re.MULTILINE)


def programs():
    for found in PROGRAM.finditer(TEXT):
        title = TITLE.findall(TEXT[: found.start()])[-1]
        program = (found["language"], found["code"], found["output"])
        yield pytest.param(*program, id=f"{title}, {found['language']}")


def run_program(language, code, directory):
    if language == "typescript":
        return run_typescript(directory, code)
    crewai = TOP / ".venv-crewai" / "bin" / "python"
    python = crewai if "baponi.crewai" in code else sys.executable
    command = ["bash", "-euc", code] if language == "bash" else [python, "-W", "ignore", "-c", code]
    environment = {
        # `cloche` is found on the path, as after an installation.
        "PATH": f"{Path(BIN).parent}:{os.environ['PATH']}",
        "HOME": str(directory),
        "BAPONI_API_KEY": KEY,
        "PERPLEXITY_API_KEY": KEY,
        "CREWAI_DISABLE_TELEMETRY": "true",
        "OTEL_SDK_DISABLED": "true",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.parametrize(("language", "code", "output"), list(programs()))
def test_a_program_prints_what_the_guide_says(language, code, output, tmp_path):
    assert output, "the guide does not say what this program prints"
    assert ADDRESS in code or '["mcp"]' in code
    printed = run_program(language, code.replace(ADDRESS, URL), tmp_path)
    pattern = ".*".join(re.escape(part) for part in output.rstrip("\n").split("…"))
    assert re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL), printed


def test_the_guide_names_the_versions_of_the_tests():
    files = ["tests/client/requirements.txt", "tests/client/crew/requirements.txt"]
    pins = [line for file in files for line in (TOP / file).read_text().split()]
    package = (TOP / "tests/conformance/package.json").read_text()
    for name in ["langchain-core", "openai-agents", "anthropic", "google-genai", "crewai"]:
        (version,) = re.findall(rf"\| {name} (\S+) \|", TEXT)
        assert f"{name}=={version}" in pins, name
    for name in ["baponi", "perplexityai", "mcp"]:
        (version,) = re.findall(rf"\| `{name}` \(Python\) \| (\S+) \|", TEXT)
        assert f"{name}=={version}" in pins, name
    (version,) = re.findall(r"\| `@perplexity-ai/perplexity_ai` \(TypeScript\) \| (\S+) \|", TEXT)
    assert f'"@perplexity-ai/perplexity_ai": "{version}"' in package
