import re

log = """
2026-03-01 12:00:01 ERROR [db] connection lost (code=17)
2026-03-01 12:00:02 INFO  [web] request took 31ms
2026-03-01 12:00:09 ERROR [web] template missing (code=4)
"""
pattern = re.compile(r"^(?P<when>\S+ \S+) +(?P<level>[A-Z]+) +\[(?P<part>\w+)\] (?P<text>.*)$", re.M)
for found in pattern.finditer(log):
    if found["level"] == "ERROR":
        code = re.search(r"code=(\d+)", found["text"])
        print(found["when"], found["part"], int(code[1]))
print(re.sub(r"(\w+)@(\w+)\.com", r"\1 at \2", "mail ann@site.com or bob@host.com"))
print(re.split(r"[,;]\s*", "a, b;c,d"))
