"""Counts calls to the Cloud Storage server on loopback: of which kind, about which folder of the lake, and by whom.

`python -m tests.gcs.counting <file> <bucket> [like-the-service]` serves a bucket until its standard input ends, prints
the address, and writes a line of JSON for each call.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import TextIO
from urllib.parse import parse_qs, unquote, urlsplit

import psutil

from tests.gcs.server import CloudStorageServer
from tests.gcs.tools import fake_gcs_server
from tests.gcs.xml_proxy import Answer, XmlHandler
from tidemark.pipeline.errors import ServiceFailed

OBJECT = re.compile(r"(?:/download)?/storage/v1/b/(?P<bucket>[^/]+)/o/(?P<name>[^?]+)")
NAME_IN_BODY = re.compile(rb'"name"\s*:\s*"([^"]*)"')
LOOKED_AT = 4096
"""Bytes of an upload's body that have its object's name."""

BUCKET = "tidemark-demo"
STOP_SECONDS = 15.0

LIKE_THE_SERVICE: Mapping[str, float] = {"read": 0.03, "look up": 0.03, "list": 0.04, "create": 0.06, "delete": 0.04}
"""Seconds that Cloud Storage takes for calls of each kind, from a machine in the bucket's region."""


class Class(StrEnum):
    """What a call is charged as."""

    A = "A"
    B = "B"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Call:
    """A call: when it was answered (in seconds since the epoch), by which connection and process, and what it was."""

    at: float
    connection: str
    process: str
    kind: str
    charge: Class
    name: str
    status: int


def kind_of(method: str, path: str, body: bytes) -> tuple[str, Class, str]:
    """A call's kind, what it is charged as by Cloud Storage's price list, and the object's name or the prefix."""
    url = urlsplit(path)
    query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
    if url.path.startswith("/upload/"):
        if "upload_id" in query and method == "PUT":
            return "part of an upload", Class.FREE, query.get("name", "")
        found = NAME_IN_BODY.search(body[:LOOKED_AT])
        return "create", Class.A, query.get("name") or (found[1].decode() if found else "")
    if found_object := OBJECT.match(path):
        name = unquote(found_object["name"])
        if method == "GET":
            is_content = url.path.startswith("/download/") or query.get("alt") == "media"
            return "read" if is_content else "look up", Class.B, name
        return ("delete", Class.FREE, name) if method == "DELETE" else ("copy or change", Class.A, name)
    if url.path.startswith("/storage/v1/"):
        if url.path.endswith("/o") and method == "GET":
            return "list", Class.A, query.get("prefix", "")
        return ("look the bucket up", Class.B, "") if method == "GET" else ("change the bucket", Class.A, "")
    name = unquote(url.path.lstrip("/")).partition("/")[2]
    match method:
        case "GET" if not name:
            return "list", Class.A, query.get("prefix", "")
        case "GET":
            return "read", Class.B, name
        case "HEAD":
            return "look up", Class.B, name
        case "DELETE":
            return "delete", Class.FREE, name
    return "create", Class.A, name


class CountingHandler(XmlHandler):
    """Writes down each call of its connection. A connection belongs to one process for as long as it lasts."""

    written: TextIO
    lock = Lock()
    takes: Mapping[str, float] = {}

    def setup(self) -> None:
        super().setup()
        self._connection = f"{self.client_address[1]}@{time.time():.3f}"
        self._process = process_at(self.client_address[1])

    def answer(self, body: bytes) -> Answer:
        answered = super().answer(body)
        if not self.path.startswith("/_internal/"):
            what = kind_of(self.command, self.path, body)
            time.sleep(self.takes.get(what[0], 0.0))
            call = Call(time.time(), self._connection, self._process, *what, int(answered[0]))
            with self.lock:
                self.written.write(json.dumps(asdict(call)) + "\n")
        return answered


@contextmanager
def counting_server(calls: Path, *, like_the_service: bool = False) -> Iterator[str]:
    """The address of a server with an empty BUCKET that writes its calls down, until the block is left. It may take as
    long for each as the service does."""
    fake_gcs_server()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gcs.counting", str(calls), BUCKET, *["like-the-service"] * like_the_service],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not (endpoint := process.stdout.readline().strip()):
            raise ServiceFailed("the Cloud Storage server did not start")
        yield endpoint
    finally:
        process.stdin.close()  # which ends it
        process.wait(STOP_SECONDS)
        process.stdout.close()


def process_at(port: int) -> str:
    """The command line of the process whose connection has this port; empty if it is not known."""
    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp4"):
            if one.laddr and one.laddr.port == port and one.pid not in (None, os.getpid()):
                return " ".join(psutil.Process(one.pid).cmdline())
    return ""


def calls_in(file: Path) -> list[Call]:
    """The calls that were written down."""
    found = (json.loads(line) for line in file.read_text().splitlines())
    return [Call(**{**call, "charge": Class(call["charge"])}) for call in found]


TRACKING, LANDING, LOOKS, RUNS, ELSE = "tracking", "landing", "sensors, not told apart", "runs", "demonstration"


def by_part(calls: Iterable[Call]) -> Mapping[str, list[Call]]:
    """The calls by the part of the pipeline that made them.

    The process tells ticks from runs. Of the code server's connections, which each belong to one part for good, the one
    that writes the log is tracking's, and those that write `heartbeats` or `quarantine` are landing's. Those that only
    read may be of any sensor: landing that opens a table, tracking that chooses windows, ingest's and staleness'.
    """
    calls = list(calls)
    writes = defaultdict[str, set[str]](set)
    for call in calls:
        if call.kind == "create":
            writes[call.connection].add(place_of(call.name))
    found = defaultdict[str, list[Call]](list)
    for call in calls:
        found[_part_of(call, writes[call.connection])].append(call)
    return found


def place_of(name: str) -> str:
    """The folder of the lake that an object is in."""
    parts = name.split("/")
    return parts[1] if len(parts) > 1 else name


def _part_of(call: Call, written: set[str]) -> str:
    if any(word in call.process for word in ("forkserver", "java", "pyspark", "worker_daemon", "execute_run")):
        return RUNS
    if "code_server" not in call.process:
        return ELSE
    if written & {"tracking", "log_witness"}:
        return TRACKING
    return LANDING if written & {"heartbeats", "quarantine"} else LOOKS


if __name__ == "__main__":
    CountingHandler.written = Path(sys.argv[1]).open("w", buffering=1)  # noqa: SIM115 (closed by the process's end)
    CountingHandler.takes = LIKE_THE_SERVICE if sys.argv[3:] else {}
    with CloudStorageServer(CountingHandler) as server:
        server.create_bucket(sys.argv[2])
        print(server.endpoint, flush=True)
        sys.stdin.read()
