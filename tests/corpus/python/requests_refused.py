# needs: requests
import requests

prepared = requests.Request("GET", "http://host/path", params={"q": "a b"}).prepare()
print(prepared.url, prepared.method)
try:
    requests.get("http://127.0.0.1:9/", timeout=5)
except requests.exceptions.ConnectionError as error:
    print(type(error).__name__)
response = requests.Response()
response.status_code = 404
response.url = "http://host/"
response.reason = "Not Found"
response.raise_for_status()
