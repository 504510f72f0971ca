"""HTTP messages as a server beside Cloud Storage reads and writes them."""

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler


class MessageHandler(BaseHTTPRequestHandler):
    """Reads a request's body, chunked or not, and writes an answer with its length."""

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
