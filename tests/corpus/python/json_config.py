import json

config = json.loads('{"name": "api", "ports": [80, 443], "tls": {"enabled": true, "min": 1.2}}')
config["ports"].append(8443)
config["tls"]["ciphers"] = None
print(json.dumps(config, indent=2, sort_keys=True))
try:
    json.loads('{"broken": [1, 2,}')
except json.JSONDecodeError as error:
    print(f"line {error.lineno}, column {error.colno}: {error.msg}")
