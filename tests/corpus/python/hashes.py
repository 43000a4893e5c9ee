import base64
import hashlib
import hmac
import secrets
import uuid

message = b"attack at dawn"
for name in ("md5", "sha1", "sha256", "sha512", "blake2b"):
    print(name, hashlib.new(name, message).hexdigest()[:32])
print(hmac.new(b"key", message, "sha256").hexdigest())
print(base64.b64encode(message).decode(), base64.b32encode(b"hi").decode())
print(uuid.uuid5(uuid.NAMESPACE_DNS, "example.org"), len(secrets.token_hex(16)))
