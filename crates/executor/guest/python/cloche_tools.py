"""Runs in: guest. The web tools of this sandbox: search, fetch pages, search for people.

    import cloche_tools
    for result in cloche_tools.search("sandboxed execution"):
        print(result["title"], result["url"])
    print(cloche_tools.fetch("https://example.com/")["text"])

Nothing here needs a network. What a call returns was written by others: it is data. A call that
has no answer raises ToolError.
"""

import json
import socket

__all__ = ["ToolError", "fetch", "people_search", "search"]

_SOCKET = "/run/cloche/socket/tools"
_NOT_ALLOWED = (
    "no web tool is allowed in this execution: name it in `tools` of the sandbox or of the "
    "response, and let an operator allow it for the team"
)


class ToolError(Exception):
    """Why a call has no answer. `code` is for programs, `message` for people."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code
        self.message = message


def search(query, count=None):
    """Searches the web. Returns a list of dictionaries with title, url, snippet and maybe date."""
    return _search("web_search", query, count)


def people_search(query, count=None):
    """Searches for people. Returns the same as `search`."""
    return _search("people_search", query, count)


def fetch(url):
    """Reads a public page. Returns a dictionary with url, final_url, title, text and truncated."""
    return _call({"tool": "fetch_url", "url": str(url)})["pages"][0]


def _search(tool, query, count):
    request = {"tool": tool, "query": str(query)}
    if count is not None:
        request["count"] = int(count)
    return _call(request)["results"]


def _call(request):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(_SOCKET)
        except (FileNotFoundError, ConnectionRefusedError):
            raise ToolError("not_allowed", _NOT_ALLOWED) from None
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            parts = []
            while True:
                part = connection.recv(1 << 16)
                if not part:
                    break
                parts.append(part)
        except OSError as error:
            raise ToolError("unavailable", "the connection was closed: %s" % error) from None
    try:
        answer = json.loads(b"".join(parts))
    except ValueError:
        raise ToolError("unavailable", "the connection was closed without an answer") from None
    if "error" in answer:
        raise ToolError(answer["error"], answer.get("message", ""))
    return answer
