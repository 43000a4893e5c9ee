"""Web tools with the public TypeScript client: web_tools.ts is compiled, then run.

The packages are those of `.conformance`, which `scripts/setup-tests` fills.
"""

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = HERE.parents[2] / ".conformance" / "node_modules"
CHECK = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"]


def run_tool(name, *arguments, directory):
    environment = os.environ | {
        "PATH": f"{PACKAGES / '.bin'}:{os.environ['PATH']}",
        "PERPLEXITY_BASE_URL": os.environ["CLOCHE_URL"],
        "PERPLEXITY_API_KEY": os.environ["CLOCHE_API_KEY"],
    }
    command = [PACKAGES / ".bin" / name, *arguments]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done
    return done.stdout


def test_items_events_and_usage_have_the_types_of_the_client(tmp_path):
    shutil.copy(HERE / "web_tools.ts", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    run_tool("tsc", *CHECK, "web_tools.ts", directory=tmp_path)
    assert run_tool("node", "web_tools.ts", directory=tmp_path) == "every item is typed\n"
