import base64
import binascii
import hashlib
import hmac

data = "Grüße".encode()
print(hashlib.sha256(data).hexdigest()[:16], hashlib.md5(data).hexdigest()[:8])
print(base64.b64encode(data).decode(), base64.urlsafe_b64decode("-_8="), binascii.crc32(data))
print(hmac.new(b"key", data, "sha1").hexdigest()[:12])
base64.b64decode("abc")
