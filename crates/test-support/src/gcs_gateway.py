"""Speaks Google's XML API in front of an S3 server: the same requests, with generations.

Google compares generations where S3 compares tags, and has other names for some headers.
"""

import http.client
import itertools
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

store = sys.argv[1]
generations, numbers, lock = {}, itertools.count(1000), threading.Lock()
SIGNED = "AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/s3/aws4_request, Signature=none"
HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}


class Gateway(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        # The store gives objects only to requests that look signed.
        headers = {"content-length": str(len(body)), "authorization": SIGNED}
        for name, value in self.headers.items():
            name = name.lower()
            if name == "x-goog-copy-source":
                headers["x-amz-copy-source"] = value
            elif name in ("range", "if-match", "if-none-match", "content-type"):
                headers[name] = value
        key, _, query = self.path.partition("?")
        # A part of an upload and its beginning change no object.
        changes = self.command == "PUT" and "partNumber=" not in query
        changes |= self.command == "POST" and "uploadId=" in query
        with lock:
            wanted = self.headers.get("x-goog-if-generation-match")
            if changes and wanted is not None and int(wanted) != generations.get(key, 0):
                return self.answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
            if changes and self.headers.get("if-match"):
                return self.answer(400, {}, b"<Error><Code>InvalidArgument</Code></Error>")
            status, answered, content = self.ask_store(headers, body)
            if changes and status == 200:
                generations[key] = next(numbers)
            if self.command == "DELETE" and status < 300 and "uploadId=" not in query:
                generations.pop(key, None)
            if key in generations and status < 300:
                answered["x-goog-generation"] = str(generations[key])
        self.answer(status, answered, content)

    def ask_store(self, headers, body):
        connection = http.client.HTTPConnection(store)
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        content = response.read()
        answered = {k: v for k, v in response.getheaders() if k.lower() not in HOP}
        if self.command == "HEAD":
            answered["content-length"] = response.getheader("content-length", "0")
        connection.close()
        return response.status, answered, content

    def answer(self, status, headers, content):
        self.send_response(status)
        if not any(name.lower() == "content-length" for name in headers):
            headers = {**headers, "content-length": str(len(content))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on


server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
