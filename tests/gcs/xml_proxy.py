"""Cloud Storage's XML API in front of `fake-gcs-server`, which serves the JSON API well and the XML API hardly.

delta-rs and Polars speak XML, google-cloud-storage and Spark's connector speak JSON: through this proxy one address
serves them all. What is a path of the JSON API passes through as it is.
"""

import json
import sys
import threading
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

from tests.gcs.messages import MessageHandler

JSON_API = ("/storage/v1/", "/upload/", "/download/", "/_internal/")
MAX_KEYS = 1000

Answer = tuple[int, dict[str, str], bytes]


class XmlProxy(ThreadingHTTPServer):
    """The proxy, bound to a free port of loopback; `upstream_port` is set once the server behind it is there."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream_port: int = 0, *, handler: type["XmlHandler"] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or XmlHandler)
        self.upstream_port = upstream_port
        self.uploads: dict[str, dict[int, bytes]] = {}
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that goes away."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def start(self) -> "XmlProxy":
        self._thread.start()
        return self

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class XmlHandler(MessageHandler):
    """One connection. An XML request becomes JSON requests to the server behind."""

    server: XmlProxy

    def do_GET(self) -> None:  # noqa: N802 (the name that the server calls)
        self._reply(*self.answer(self._body()))

    do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the base class looks for these names

    def answer(self, body: bytes) -> Answer:
        """What to reply to the request at hand."""
        if self.path.startswith(JSON_API):
            return self.forward(self.command, self.path, body, dict(self.headers))
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        bucket, _, name = unquote(url.path.lstrip("/")).partition("/")
        match self.command:
            case "GET" if not name:
                return self._list(bucket, query)
            case "PUT" if "uploadId" in query:
                self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
                return HTTPStatus.OK, {"ETag": f'"{query["uploadId"]}-{query["partNumber"]}"'}, b""
            case "PUT" if "x-goog-copy-source" in self.headers:
                return HTTPStatus.NOT_IMPLEMENTED, {}, b"copying is not a part of this proxy"
            case "PUT":
                return self._put(bucket, name, body)[0]
            case "POST" if "uploads" in query:
                upload_id = uuid.uuid4().hex
                self.server.uploads[upload_id] = {}
                return _xml("InitiateMultipartUploadResult", _element("UploadId", upload_id))
            case "POST" if "uploadId" in query:
                parts = self.server.uploads.pop(query["uploadId"])
                answer, etag = self._put(bucket, name, b"".join(parts[number] for number in sorted(parts)))
                if answer[0] != HTTPStatus.OK:
                    return answer
                return _xml("CompleteMultipartUploadResult", _element("ETag", etag), answer[1])
            case "DELETE" if "uploadId" in query:
                self.server.uploads.pop(query["uploadId"], None)
                return HTTPStatus.NO_CONTENT, {}, b""
        item = f"storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        path = f"/{item}" if self.command == "DELETE" else f"/download/{item}?alt=media"
        return self.forward(self.command, path, b"", dict(self.headers))

    def forward(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Ask the server behind."""
        try:
            return self._forwarded(f"127.0.0.1:{self.server.upstream_port}", method, path, body, headers)
        except OSError as error:
            return HTTPStatus.BAD_GATEWAY, {}, f"the server behind does not answer: {error}".encode()

    def _put(self, bucket: str, name: str, body: bytes) -> tuple[Answer, str]:
        query = {"uploadType": "media", "name": name}
        precondition = self.headers.get("x-goog-if-generation-match")
        if precondition is not None:
            query["ifGenerationMatch"] = precondition
        headers = {"Content-Type": self.headers.get("Content-Type", "application/octet-stream")}
        status, _, content = self.forward("POST", f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}", body, headers)
        if status != HTTPStatus.OK:
            return _xml("Error", _element("Message", content.decode()), status=status), ""
        made = json.loads(content)
        etag = f'"{made["etag"]}"'
        return (HTTPStatus.OK, {"ETag": etag, "x-goog-generation": made["generation"]}, b""), etag

    def _list(self, bucket: str, query: dict[str, str]) -> Answer:
        """ListObjectsV2. A token is the last entry of the page before, whether a name or a common prefix."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        token, after = query.get("continuation-token", ""), query.get("start-after", "")
        entries: dict[str, dict[str, str] | None] = {}
        for item in self._items(bucket, prefix):
            name = item["name"]
            end = name.find(delimiter, len(prefix)) if delimiter else -1
            if name > after:
                entries |= {name: item} if end < 0 else {name[: end + len(delimiter)]: None}
        remaining = [entry for entry in sorted(entries) if entry > token]
        page = remaining[: int(query.get("max-keys", MAX_KEYS))]
        truncated = len(page) < len(remaining)
        inner = [
            _element("Name", bucket),
            _element("Prefix", prefix),
            _element("KeyCount", str(len(page))),
            _element("IsTruncated", str(truncated).lower()),
        ]
        if truncated:
            inner.append(_element("NextContinuationToken", page[-1]))
        for entry in page:
            found = entries[entry]
            if found is None:
                inner.append(f"<CommonPrefixes>{_element('Prefix', entry)}</CommonPrefixes>")
                continue
            fields = {
                "Key": entry,
                "LastModified": found["updated"],
                "ETag": f'"{found["etag"]}"',
                "Size": found["size"],
            }
            inner.append(f"<Contents>{''.join(map(_element, fields.keys(), fields.values()))}</Contents>")
        return _xml("ListBucketResult", "".join(inner))

    def _items(self, bucket: str, prefix: str) -> Iterator[dict[str, str]]:
        query = {"prefix": prefix, "maxResults": str(MAX_KEYS)}
        while True:
            _, _, content = self.forward("GET", f"/storage/v1/b/{bucket}/o?{urlencode(query)}", b"", {})
            page = json.loads(content)
            yield from page.get("items", ())
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]


def _element(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"


def _xml(root: str, inner: str, headers: dict[str, str] | None = None, status: int = HTTPStatus.OK) -> Answer:
    content = f'<?xml version="1.0" encoding="UTF-8"?><{root}>{inner}</{root}>'
    return status, {"Content-Type": "application/xml"} | (headers or {}), content.encode()
