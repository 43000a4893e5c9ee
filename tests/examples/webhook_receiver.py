"""An HTTPS server that receives webhooks."""

import hashlib
import hmac
import json
import os
import queue
import ssl
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Delivery:
    path: str
    signature: str | None
    content: bytes

    @property
    def body(self):
        return json.loads(self.content)

    def is_signed_with(self, secret):
        digest = hmac.new(secret, self.content, hashlib.sha256).hexdigest()
        return self.signature == f"sha256={digest}"


class Receiver:
    """Listens on a free port of this machine, with the certificate that the server trusts."""

    def __init__(self):
        self._deliveries = deliveries = queue.Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                content = self.rfile.read(int(self.headers["Content-Length"]))
                signature = self.headers.get("X-Baponi-Signature")
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
                deliveries.put(Delivery(self.path, signature, content))

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = (os.environ["CLOCHE_WEBHOOK_CERT"], os.environ["CLOCHE_WEBHOOK_KEY"])
        context.load_cert_chain(*files)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"https://localhost:{self._server.server_port}/hook"

    def wait(self):
        return self._deliveries.get(timeout=30)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
