"""A data analysis in steps, each a program of its own, on the files of one thread.

    pip install baponi httpx
    BAPONI_API_KEY=sk-us-… python data_analysis.py sales.csv

The file is uploaded once. The first program turns it into a database, the second one asks it a
question, the third one writes a report, which is downloaded. The programs need no package beyond
Python's standard library.
"""

import os
import sys
import uuid
from pathlib import Path

import httpx
from baponi import Baponi

SERVER = os.environ.get("CLOCHE_URL", "http://127.0.0.1:8080")
LOAD = """
import csv, sqlite3
rows = list(csv.DictReader(open("sales.csv", newline="")))
database = sqlite3.connect("sales.db")
database.execute("create table sales (region text, amount real)")
database.executemany("insert into sales values (:region, :amount)", rows)
database.commit()
print(len(rows), "rows")
"""
ASK = """
import sqlite3
question = "select region, sum(amount) from sales group by region order by 2 desc"
for region, amount in sqlite3.connect("sales.db").execute(question):
    print(f"{region}: {amount:g}")
"""
REPORT = """
import sqlite3
(total,) = sqlite3.connect("sales.db").execute("select sum(amount) from sales").fetchone()
with open("report.md", "w") as report:
    report.write(f"# Sales\\n\\nTotal: {total:g}\\n")
"""


def run_step(sandbox, thread, code):
    result = sandbox.execute(code, thread_id=thread)
    if not result.success:
        raise SystemExit(f"the program failed: {result.error or result.stderr}")
    return result.stdout


def analyse(path):
    sandbox, thread = Baponi(base_url=SERVER), f"sales-{uuid.uuid4().hex[:12]}"
    # A first call makes the thread. Then signed URLs take files in and out without the key.
    run_step(sandbox, thread, "pass")
    content = path.read_bytes()
    target = sandbox.upload_url(id=thread, path="sales.csv", content_length=len(content))
    headers = {header.name: header.value for header in target.headers}
    httpx.put(target.url, content=content, headers=headers).raise_for_status()
    for code in (LOAD, ASK, REPORT):
        print(run_step(sandbox, thread, code), end="")
    link = sandbox.download_url(id=thread, path="report.md")
    print(httpx.get(link.url).raise_for_status().text, end="")


if __name__ == "__main__":
    analyse(Path(sys.argv[1]))
