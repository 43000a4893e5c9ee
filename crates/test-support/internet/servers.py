"""The servers of an internet in a network namespace, for tests.

Usage: servers.py DIRECTORY. Answers DNS, HTTP and HTTPS on addresses that look public, and listens
on addresses that no cell may reach: every connection to one of those is a line in
DIRECTORY/canaries. The directory has the certificate server.pem. Prints `ready` when all is up.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DIRECTORY = sys.argv[1]
DNS = "9.9.9.9"
WEB, OTHER = "93.184.216.34", "93.184.216.35"
PYPI, NPM = "151.101.0.223", "104.16.0.35"
CANARIES = ["10.0.0.5", "169.254.169.254", "100.64.0.7", "192.168.7.7"]
NAMES = {
    "allowed.example": [WEB],
    "www.allowed.example": [WEB],
    "other.example": [OTHER],
    "pypi.example": [PYPI],
    "files.example": [PYPI],
    "npm.example": [NPM],
    "private.example": ["10.0.0.5"],
    "metadata.example": ["169.254.169.254"],
    "closed.example": [WEB],
}
# Answers of a name that changes: each query gets the next one.
CHANGING = {"changing.example": [WEB, "10.0.0.5"]}
asked = {}
lock = threading.Lock()


def addresses_of(name):
    with lock:
        count = asked[name] = asked.get(name, -1) + 1
    if name in CHANGING:
        answers = CHANGING[name]
        return [answers[count % len(answers)]]
    return NAMES.get(name)


def answer(query):
    """The answer to one question; only A records exist."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += query[at] + 1
    question = query[12 : at + 5]
    kind = struct.unpack("!H", query[at + 1 : at + 3])[0]
    found = addresses_of(".".join(labels).lower())
    records = [socket.inet_aton(a) for a in found or []] if kind == 1 else []
    code = 0 if found is not None else 3
    head = query[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(records), 0, 0)
    body = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 1, 4) + r for r in records)
    return head + question + body


class Datagrams(socketserver.BaseRequestHandler):
    def handle(self):
        query, sock = self.request
        sock.sendto(answer(query), self.client_address)


class Streams(socketserver.BaseRequestHandler):
    def handle(self):
        size = struct.unpack("!H", self.request.recv(2, socket.MSG_WAITALL))[0]
        reply = answer(self.request.recv(size, socket.MSG_WAITALL))
        self.request.sendall(struct.pack("!H", len(reply)) + reply)


def wheel(name):
    """A package with one module of its own name."""
    data, record = io.BytesIO(), []
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}/__init__.py": "installed = True\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in files.items():
            # Without the time of day: an index names the digest of a later request's bytes.
            archive.writestr(zipfile.ZipInfo(path), text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            record.append(f"{path},sha256={digest.decode()},{len(text)}")
        record.append(f"{info}/RECORD,,")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join(record) + "\n")
    return data.getvalue()


def npm_tarball(name):
    data = io.BytesIO()
    files = {
        "package/package.json": json.dumps({"name": name, "version": "1.0.0", "main": "i.js"}),
        "package/i.js": "module.exports = 'installed';\n",
    }
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    # The same bytes for every request: their digest is in the description of the package.
    return gzip.compress(data.getvalue(), mtime=0)


class Web(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        scheme = "https" if isinstance(self.connection, ssl.SSLSocket) else "http"
        here = f"{scheme}://{self.headers.get('Host', '')}"
        parts = self.path.strip("/").split("/")
        kind, body = "text/plain", f"hello from {self.server.server_address[0]}\n".encode()
        if parts[0] == "simple" and len(parts) == 2:
            file = f"{parts[1]}-1.0-py3-none-any.whl"
            digest = hashlib.sha256(wheel(parts[1])).hexdigest()
            kind, body = "text/html", f'<a href="/wheels/{file}#sha256={digest}">{file}</a>'.encode()
        elif parts[0] == "wheels":
            kind, body = "application/zip", wheel(parts[1].split("-")[0])
        elif self.server.server_address[0] == NPM:
            kind, body = self.npm(here, parts)
        elif parts[0] == "bytes":
            body = b"x" * int(parts[1])
        elif parts[0] == "echo":
            body = json.dumps(dict(self.headers)).encode()
            with lock, open(f"{DIRECTORY}/requests", "a") as log:
                seen = self.headers.get("Authorization", "nothing")
                log.write(f"{here}{self.path} {seen}\n")
        elif parts[0] == "redirect":
            self.send_response(302)
            self.send_header("Location", base64.urlsafe_b64decode(parts[1]).decode())
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def npm(self, here, parts):
        if parts[-1].endswith(".tgz"):
            return "application/octet-stream", npm_tarball(parts[0])
        name = parts[0]
        digest = base64.b64encode(hashlib.sha512(npm_tarball(name)).digest()).decode()
        dist = {"tarball": f"{here}/{name}/-/{name}-1.0.0.tgz", "integrity": f"sha512-{digest}"}
        version = {"name": name, "version": "1.0.0", "main": "i.js", "dist": dist}
        package = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        return "application/json", json.dumps(package).encode()

    def log_message(self, *_):
        pass


def count_canary(listener):
    while True:
        connection, _ = listener.accept()
        with open(f"{DIRECTORY}/canaries", "a") as canaries:
            canaries.write(f"{listener.getsockname()[0]}\n")
        connection.close()


def start(server):
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main():
    # A network namespace that is made for this process has only a loopback that is down.
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in [DNS, WEB, OTHER, PYPI, NPM, *CANARIES]:
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    socketserver.ThreadingUDPServer.daemon_threads = True
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    start(socketserver.ThreadingUDPServer((DNS, 53), Datagrams))
    start(socketserver.ThreadingTCPServer((DNS, 53), Streams))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{DIRECTORY}/server.pem")
    for address in [WEB, OTHER, PYPI, NPM]:
        start(ThreadingHTTPServer((address, 80), Web))
        secure = ThreadingHTTPServer((address, 443), Web)
        secure.socket = context.wrap_socket(secure.socket, server_side=True)
        start(secure)
    for address in CANARIES:
        for port in [53, 80, 443]:
            listener = socket.create_server((address, port))
            threading.Thread(target=count_canary, args=(listener,), daemon=True).start()
    print("ready", flush=True)
    # Ends with the test.
    sys.stdin.read()
    os._exit(0)


main()
