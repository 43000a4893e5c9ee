import json
import sys

result = {"passed": 3, "failed": 2}
print(json.dumps(result))
sys.exit(1 if result["failed"] else 0)
