import re
from collections import Counter

LOG = """127.0.0.1 - - [10/Oct/2024:13:55:36] "GET /index.html HTTP/1.1" 200 2326
10.0.0.5 - - [10/Oct/2024:13:55:37] "POST /login HTTP/1.1" 302 12
10.0.0.5 - - [10/Oct/2024:13:55:39] "GET /missing HTTP/1.1" 404 153
"""
LINE = re.compile(r'(?P<ip>\S+) .*? "(?P<verb>\w+) (?P<path>\S+)[^"]*" '
                  r'(?P<status>\d{3}) (?P<size>\d+)')
hits = [match.groupdict() for match in LINE.finditer(LOG)]
print(Counter(hit["ip"] for hit in hits).most_common())
print([hit["path"] for hit in hits if hit["status"].startswith("4")])
print(sum(int(hit["size"]) for hit in hits))
