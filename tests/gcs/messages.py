"""HTTP messages as a server beside Cloud Storage reads and writes them."""

import http.client
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

PER_CONNECTION = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
UPSTREAM_SECONDS = 60.0


class MessageHandler(BaseHTTPRequestHandler):
    """Reads a request's body, chunked or not, writes an answer with its length, and asks the server behind."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # headers and a small body leave as one packet
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""

    def _forwarded(
        self, netloc: str, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        """What the server behind answers."""
        sent = {key: value for key, value in headers.items() if key.lower() not in PER_CONNECTION}
        with closing(http.client.HTTPConnection(netloc, timeout=UPSTREAM_SECONDS)) as connection:
            connection.request(method, path, body, sent | {"Content-Length": str(len(body))})
            answer = connection.getresponse()
            content = answer.read()
            received = {key: value for key, value in answer.getheaders() if key.lower() not in PER_CONNECTION}
            if method == "HEAD":
                received["Content-Length"] = answer.getheader("Content-Length", "0")
            return answer.status, received, content

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return b"".join(chunks)

    def _reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if "Content-Length" not in headers and status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
