import io
import json

log = io.StringIO()
for number in range(5):
    log.write(json.dumps({"id": number, "ok": number % 2 == 0, "ms": number * 1.5}) + "\n")
log.seek(0)
records = [json.loads(line) for line in log]
slow = [record["id"] for record in records if record["ms"] > 3]
print(len(records), slow, sum(record["ms"] for record in records))
