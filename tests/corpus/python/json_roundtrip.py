import json

orders = [
    {"id": 1, "items": ["tea", "milk"], "total": 7.5, "note": "grüße ✓"},
    {"id": 2, "items": [], "total": 0, "note": None},
]
text = json.dumps(orders, indent=2, sort_keys=True)
print(text)
assert json.loads(text) == orders
print(json.dumps({"nested": {"a": [1, 2, {"b": True}]}}, separators=(",", ":")))
try:
    json.loads("{'single': 1}")
except json.JSONDecodeError as error:
    print(f"line {error.lineno} column {error.colno}: {error.msg}")
