"""Makes a container of an Azure storage account: container ENDPOINT ACCOUNT KEY NAME."""

import base64
import hashlib
import hmac
import sys
import urllib.request
from email.utils import formatdate

endpoint, account, key, name = sys.argv[1:]
date, version = formatdate(usegmt=True), "2021-08-06"
resource = f"/{account}/{endpoint.split('/', 3)[3]}/{name}\nrestype:container"
signed = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
digest = hmac.digest(base64.b64decode(key), signed.encode(), hashlib.sha256)
headers = {
    "x-ms-date": date,
    "x-ms-version": version,
    "Authorization": f"SharedKey {account}:{base64.b64encode(digest).decode()}",
    "Content-Length": "0",
    "Content-Type": "",
}
url = f"{endpoint}/{name}?restype=container"
with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)) as answer:
    assert answer.status == 201, answer.status
