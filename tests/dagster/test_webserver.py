"""Dagster over HTTP, a real webserver with a real code server behind its guard: runs asked of it, and of what is no
Dagster, and what a hostile page in the operator's browser would send."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import dagster as dg
import pytest
from websockets.sync.client import connect

from tests.cli.command import Said, said_here
from tests.http_server import Answer, Quiet, ask
from tests.http_server import serving as serving_by
from tests.official_emulator import HOST, free_port
from tidemark.assets.jobs.job import tags_of
from tidemark.local.services.processes import Supervisor
from tidemark.local.services.stack import dagster_services
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import InvalidSettings, ServiceFailed
from tidemark.pipeline.orchestrator import api as module
from tidemark.pipeline.orchestrator.api import HEADERS, DagsterApi
from tidemark.pipeline.orchestrator.names import PIPELINE, WINDOWS, pipeline_tag
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.settings_sections import DagsterSettings

ROOT = Path(__file__).resolve().parents[2]
WORKSPACE = """
load_from:
  - grpc_server: {{host: 127.0.0.1, port: {code}, location_name: ours}}
  - grpc_server: {{host: 127.0.0.1, port: {nothing}, location_name: broken}}
"""
SETTINGS = """
[lake]
uri = "gs://a-bucket/lake"
[dagster]
name = "orders"
location = "ours"
allowed_hosts = ["ui.example.com"]
web_port = {web}
code_port = {code}
[tables.my_compute_windows]
file = "mine.sql"
"""
LAKE = "gs://a-bucket/lake"
FIRST, LAST = "2026-11-21T05-20Z", "2026-11-21T05-30Z"


@dataclass(frozen=True)
class Serving:
    """A webserver and a code server with tidemark's definitions; no daemon, so that runs stay in the queue."""

    folder: Path
    web: int
    code: int

    @property
    def variables(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")},
            "DAGSTER_HOME": str(ROOT),
            "TIDEMARK_CONFIG": str(self.folder / "tidemark.toml"),
            "TIDEMARK_DAGSTER_STORAGE": str(self.folder),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }

    def tidemark(self, *arguments: str, **more: str) -> Said:
        return said_here(self.folder, arguments, {**self.variables, **more})

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: str = "") -> Answer:
        """One request of the webserver. `Host` is the page's own unless the headers have one."""
        sent = {"Host": f"{HOST}:{self.web}", "Content-Length": str(len(body)), **(headers or {})}
        return ask(self.web, method, path, sent.items(), body)

    def query(self, query: str, headers: Mapping[str, str]) -> Answer:
        return self.ask("POST", "/graphql", headers, json.dumps({"query": query}))

    def limits(self) -> set[str]:
        """The keys of the concurrency limits that mutations made."""
        found = json.loads(self.query(LIMITS, JSON).body)["data"]["instance"]["concurrencyLimits"]
        return {limit["concurrencyKey"] for limit in found}

    def runs(self) -> list[dg.DagsterRun]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIDEMARK_DAGSTER_STORAGE", str(self.folder))
            with dg.DagsterInstance.from_config(str(ROOT)) as instance:
                return list(instance.get_runs())


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    started = Serving(tmp_path_factory.mktemp("serving"), free_port(), free_port())
    ports = {"web": started.web, "code": started.code, "nothing": free_port()}
    (started.folder / "workspace.yaml").write_text(WORKSPACE.format(**ports))
    (started.folder / "tidemark.toml").write_text(SETTINGS.format(**ports))
    (started.folder / "mine.sql").write_text("SELECT window FROM {heartbeats}")
    started.runs()  # makes the storage's tables, alone
    settings = load_settings(started.folder / "tidemark.toml")
    supervisor = Supervisor(started.folder / "services", SystemClock(), print)
    try:
        for service in dagster_services(settings, started.variables, started.folder):
            if service.name != "Dagster daemon":
                supervisor.start(service)
        yield started
    finally:
        for one in supervisor.running:
            one.process.kill()
        supervisor.stop()


def test_recompute_requests_one_run_over_the_range_and_prints_its_address(serving: Serving) -> None:
    # The job is found although these settings do not name the pipeline as the project does that serves it.
    settings = {"TIDEMARK_DAGSTER__NAME": "", "http_proxy": "http://127.0.0.1:9"}
    said = serving.tidemark("repair", "--recompute", "--from", FIRST, "--to", LAST, **settings)
    assert said.code == 0, said.err
    (run,) = serving.runs()
    assert said.out.split()[-1] == f"http://127.0.0.1:{serving.web}/runs/{run.run_id}"
    assert (run.job_name, run.status) == ("orders_compute_windows", dg.DagsterRunStatus.QUEUED)
    assert run.tags[WINDOWS] == f"{FIRST}..{LAST}"
    assert run.tags[PIPELINE] == pipeline_tag(LAKE), "the sensors would not know the run as theirs"
    assert run.tags[PIPELINE] == tags_of(load_settings(serving.folder / "tidemark.toml"))[PIPELINE]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"LOCATION": "theirs"}, "has no code location 'theirs'; it has: broken, ours. Set dagster.location to the"),
        ({"LOCATION": "broken"}, "the code location 'broken' of Dagster at {ui} is not loaded: "),
        ({"URL": "http://127.1:{web}"}, "refused with 403: the host '127.1:{web}' is not a host name of this page; if"),
        ({"URL": "http://127.1:{web}"}, "add it to dagster.allowed_hosts in the settings"),
        ({"URL": "http://127.0.0.1:{code}"}, "no Dagster answers at http://127.0.0.1:{code}: "),  # it speaks gRPC
        ({"URL": "http://127.0.0.1:9"}, "Start it with `tidemark up`, or set dagster.url to the address of"),
        ({"URL": "http://127.0.0.1:{web}/prefix"}, "is not Dagster's GraphQL"),
        ({"URL": "http://me:secret@127.0.0.1"}, "the address without a login; put the login into $TIDEMARK_DAGSTER"),
    ],
)
def test_what_refuses_a_run_is_named_with_what_to_do(serving: Serving, variables: Mapping[str, str], said: str) -> None:
    facts = {"web": serving.web, "code": serving.code, "ui": f"http://127.0.0.1:{serving.web}"}
    set_here = {f"TIDEMARK_DAGSTER__{name}": value.format(**facts) for name, value in variables.items()}
    before = len(serving.runs())
    refused = serving.tidemark("repair", "--recompute", "--from", FIRST, "--to", LAST, **set_here)
    assert refused.code == 1
    assert said.format(**facts) in refused.err
    assert "Traceback" not in refused.err
    assert len(serving.runs()) == before


def test_a_job_that_the_location_does_not_have_is_named(serving: Serving) -> None:
    with pytest.raises(ServiceFailed, match=r"the code location 'ours' of Dagster at .* has no job 'no_such_job'"):
        DagsterApi(DagsterSettings(web_port=serving.web, location="ours")).launch("no_such_job", LAKE, {})


@dataclass
class Answering:
    """A server that answers each request in the same way, and keeps what it was asked."""

    status: int = 200
    body: bytes = b"{}"
    asked: list[Mapping[str, str]] = field(default_factory=list)
    before_it_answers: Callable[[], object] = lambda: None

    @contextmanager
    def api(self) -> Iterator[DagsterApi]:
        answering = self

        class Handler(Quiet):
            def do_POST(self) -> None:  # noqa: N802 (the name that the server calls)
                self.rfile.read(int(self.headers["content-length"]))
                answering.asked.append(dict(self.headers))
                with suppress(OSError):  # given up by who asked, or an answer that breaks off
                    answering.before_it_answers()
                    self.reply(answering.body, status=answering.status)

        with serving_by(Handler) as address:
            yield DagsterApi(DagsterSettings(url=address))


def test_the_login_of_the_environment_is_sent_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine {HOST} login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv(HEADERS, "Authorization: Bearer abc\nDagster-Cloud-Api-Token: user:1\n")
    server = Answering()
    with server.api() as api, pytest.raises(ServiceFailed):
        api.launch("compute_windows", LAKE, {})
    assert (server.asked[0]["Authorization"], server.asked[0]["Dagster-Cloud-Api-Token"]) == ("Bearer abc", "user:1")
    monkeypatch.delenv(HEADERS)
    with server.api() as api, pytest.raises(ServiceFailed):
        api.launch("compute_windows", LAKE, {})
    assert "Authorization" not in server.asked[1]


def test_a_login_is_never_sent_in_the_clear_nor_repeated_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HEADERS, "Authorization: Bearer abc")
    with pytest.raises(InvalidSettings, match=r"unencrypted to http://dagster\.example\.com: set dagster.url to an"):
        DagsterApi(DagsterSettings(url="http://dagster.example.com"))
    DagsterApi(DagsterSettings(url="https://dagster.example.com"))
    monkeypatch.setenv(HEADERS, "Bearer abc")
    with pytest.raises(InvalidSettings, match="write one header per line") as refused:
        DagsterApi(DagsterSettings())
    assert "abc" not in str(refused.value)


def test_an_answer_that_is_not_dagsters_is_shown() -> None:
    for status, body, said in (
        (200, b"<html>\x1b[31mHello", r"is not Dagster's GraphQL \(status 200\): <html>\\x1b\[31mHello"),
        (502, b"bad gateway", r"is not Dagster's GraphQL \(status 502\): bad gateway"),
        (200, b"[1, 2]", "is not Dagster's GraphQL"),
        (400, b'{"errors": [{"message": "Cannot query field"}]}', "could not answer the query: Cannot query field"),
        (401, b"who are you?", rf"refused with 401: who are you\?.*\${HEADERS}"),
    ):
        with Answering(status, body=body).api() as api, pytest.raises(ServiceFailed, match=said):
            api.launch("compute_windows", LAKE, {})


def test_an_endless_answer_and_one_that_does_not_come_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    endless = Answering(body=b"[" * (10 << 20))
    with endless.api() as api, pytest.raises(ServiceFailed, match="is not Dagster's GraphQL"):
        api.launch("compute_windows", LAKE, {})
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    for before in (lambda: time.sleep(2), Path("no such file").read_bytes):
        silent = Answering(before_it_answers=before)
        with silent.api() as api, pytest.raises(ServiceFailed, match=r"The run may exist: check .*/runs"):
            api.launch("compute_windows", LAKE, {})


# What a hostile page in the operator's browser would send

JSON = {"Content-Type": "application/json"}
MUTATION = 'mutation { setConcurrencyLimit(concurrencyKey: "made", limit: 3) }'
"""It needs no code server."""
LIMITS = "{ instance { concurrencyLimits { concurrencyKey } } }"
SOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "graphql-ws",
}
HOSTS = ("evil.example", "evil.example:3000", "127.0.0.1.evil.example", "localhost.evil.example", "", "localhost@x")
ORIGINS = ("http://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "file://", "http://[", "")
SITES = ("cross-site", "same-site")


@pytest.mark.parametrize(
    "headers",
    [
        *({"Host": host} for host in HOSTS),
        *({"Origin": origin} for origin in ORIGINS),
        *({"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"} for site in SITES),
    ],
    ids=str,
)
def test_what_a_foreign_page_sends_is_refused_whatever_it_asks(serving: Serving, headers: Mapping[str, str]) -> None:
    answers = [
        serving.query(MUTATION, {**JSON, **headers}),
        serving.ask("GET", "/server_info", headers),
        serving.ask("GET", "/graphql", {**SOCKET, **headers}),
        serving.ask("OPTIONS", "/graphql", {**headers, "Access-Control-Request-Method": "POST"}),
    ]
    assert [answer.status for answer in answers] == [403] * len(answers)
    assert "made" not in serving.limits()


@pytest.mark.parametrize("site", SITES)
def test_a_link_of_another_page_is_followed_and_its_form_refused(serving: Serving, site: str) -> None:
    link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
    assert serving.ask("GET", "/runs", link).status == 200
    assert serving.query(MUTATION, {**JSON, **link}).status == 403
    assert "made" not in serving.limits()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_mutation_by_get_is_refused(serving: Serving, method: str) -> None:
    for path in ("/graphql", "/graphql/", "//graphql", "/x/../graphql", "/%67raphql"):
        answer = serving.ask(method, f"{path}?query={quote(MUTATION)}")
        assert answer.status in (200, 405), path  # 200: the UI's page, which executes nothing
    assert "made" not in serving.limits()


@pytest.mark.parametrize(
    "content_type", ["text/plain", "text/plain; application/json", "multipart/form-data; boundary=application/json", ""]
)
def test_a_post_that_a_browser_sends_without_asking_is_refused(serving: Serving, content_type: str) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    for path in (f"/graphql?query={quote(MUTATION)}", "/report_asset_materialization/watermark"):
        assert serving.ask("POST", path, headers, "{}").status == 415
    assert "made" not in serving.limits()


def test_the_page_the_api_and_the_socket_serve_the_ui_itself_and_hosts_of_the_settings(serving: Serving) -> None:
    ours = f"http://{HOST}:{serving.web}"
    page = serving.ask("GET", "/")
    assert (page.status, b'<div id="__next">' in page.body) == (200, True)
    assert "frame-ancestors 'self'" in serving.ask("GET", "/server_info").headers["content-security-policy"]
    for host in ("localhost:9", "LOCALHOST", "127.0.0.1", "[::1]:3000", "ui.example.com:443"):
        assert serving.ask("GET", "/server_info", {"Host": host, "Origin": f"http://{host}"}).status == 200, host
    assert serving.query(MUTATION, {**JSON, "Origin": ours, "Sec-Fetch-Site": "same-origin"}).status == 200
    assert "made" in serving.limits()
    with connect(f"{ours.replace('http', 'ws')}/graphql", origin=ours, subprotocols=["graphql-ws"]) as socket:
        socket.send(json.dumps({"type": "connection_init"}))
        assert json.loads(socket.recv(timeout=30)) == {"type": "connection_ack"}
