"""Dagster's UI behind its guard: a real webserver, and what a hostile page in the operator's browser would send."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.official_emulator import free_port

READY_WITHIN_SECONDS = 90
WORKSPACE = "load_from:\n  - grpc_server: {{host: 127.0.0.1, port: {port}, location_name: tidemark}}\n"
SETTINGS = '[dagster]\nweb_port = {port}\nallowed_hosts = ["ui.example.com"]\n'
JSON = {"Content-Type": "application/json"}
LIMITS = "{ instance { concurrencyLimits { concurrencyKey } } }"


def limiting(key: str) -> str:
    """A mutation that needs no code server."""
    return f'mutation {{ setConcurrencyLimit(concurrencyKey: "{key}", limit: 3) }}'


@dataclass(frozen=True, slots=True)
class Answer:
    """What the webserver answered."""

    status: int
    body: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ui:
    """A webserver under test."""

    port: int

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: str = "") -> Answer:
        """One request. `Host` is the page's own unless the headers have one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True)
            sent = {"Host": self.host, **(headers or {})}
            for name, value in {**sent, "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders(body.encode())
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()})
        finally:
            connection.close()

    def post(self, query: str, headers: Mapping[str, str]) -> Answer:
        return self.ask("POST", "/graphql", headers, json.dumps({"query": query}))

    def limits(self) -> set[str]:
        """The keys of the concurrency limits that mutations made."""
        found = json.loads(self.post(LIMITS, JSON).body)["data"]["instance"]["concurrencyLimits"]
        return {limit["concurrencyKey"] for limit in found}


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    home, port = tmp_path_factory.mktemp("dagster-home"), free_port()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    (home / "workspace.yaml").write_text(WORKSPACE.format(port=free_port()))
    (home / "tidemark.toml").write_text(SETTINGS.format(port=port))
    environment = {**os.environ, "DAGSTER_HOME": str(home), "TIDEMARK_CONFIG": str(home / "tidemark.toml")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tidemark.resources.webserver"], cwd=home, env=environment, stdout=log, stderr=log
        )
    try:
        started = Ui(port)
        until = time.monotonic() + READY_WITHIN_SECONDS
        while not _answers(started):
            assert server.poll() is None, (home / "log").read_text()
            assert time.monotonic() < until, (home / "log").read_text()
            time.sleep(0.2)
        yield started
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


def _answers(ui: Ui) -> bool:
    try:
        return ui.ask("GET", "/server_info").status == 200
    except OSError:
        return False


def test_the_page_the_api_and_the_socket_serve_the_ui_itself(ui: Ui) -> None:
    page = ui.ask("GET", "/")
    assert page.status == 200
    assert '<div id="__next">' in page.body
    own = {**JSON, "Origin": f"http://{ui.host}", "Sec-Fetch-Site": "same-origin"}
    assert ui.post(limiting("own"), own).status == 200
    assert "own" in ui.limits()
    with connect(f"ws://{ui.host}/graphql", origin=f"http://{ui.host}", subprotocols=["graphql-ws"]) as socket:
        socket.send(json.dumps({"type": "connection_init"}))
        assert json.loads(socket.recv(timeout=30)) == {"type": "connection_ack"}


@pytest.mark.parametrize("host", ["localhost:9", "LOCALHOST", "127.0.0.1", "[::1]:3000", "ui.example.com:443"])
def test_a_forwarded_port_and_a_host_of_the_settings_are_answered(ui: Ui, host: str) -> None:
    assert ui.ask("GET", "/server_info", {"Host": host, "Origin": f"http://{host}"}).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:3000", "127.0.0.1.evil.example", "localhost.evil.example", "", "localhost@x"]
)
def test_a_foreign_host_is_refused_with_the_setting_that_would_allow_it(ui: Ui, host: str) -> None:
    for answer in (ui.ask("GET", "/", {"Host": host}), ui.post(limiting("foreign host"), {**JSON, "Host": host})):
        assert answer.status == 403
        assert "dagster.allowed_hosts" in answer.body
    assert "foreign host" not in ui.limits()


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "file://", "http://[", ""]
)
def test_a_foreign_origin_is_refused(ui: Ui, origin: str) -> None:
    assert ui.post(limiting("foreign origin"), {**JSON, "Origin": origin}).status == 403
    assert ui.ask("GET", "/server_info", {"Origin": origin}).status == 403
    assert ui.ask("OPTIONS", "/graphql", {"Origin": origin, "Access-Control-Request-Method": "POST"}).status == 403
    assert "foreign origin" not in ui.limits()


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_an_image_or_a_form_of_another_page_is_refused_and_a_link_is_followed(ui: Ui, site: str) -> None:
    image = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    form = {**JSON, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
    link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
    assert ui.ask("GET", "/server_info", image).status == 403
    assert ui.post(limiting("form"), form).status == 403
    assert ui.ask("GET", "/runs", link).status == 200
    assert "form" not in ui.limits()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_mutation_by_get_is_refused(ui: Ui, method: str) -> None:
    for path in ("/graphql", "/graphql/", "//graphql", "/x/../graphql", "/%67raphql"):
        answer = ui.ask(method, f"{path}?query={quote(limiting('by get'))}")
        assert answer.status in (200, 405), path  # 200: the UI's page, which executes nothing
    assert "by get" not in ui.limits()


@pytest.mark.parametrize(
    "content_type", ["text/plain", "text/plain; application/json", "multipart/form-data; boundary=application/json", ""]
)
def test_a_post_that_a_browser_sends_without_asking_is_refused(ui: Ui, content_type: str) -> None:
    query = f"/graphql?query={quote(limiting('simple'))}"
    answer = ui.ask("POST", query, {"Content-Type": content_type} if content_type else {}, "x")
    assert answer.status == 415
    assert "application/json" in answer.body
    assert ui.ask("POST", "/report_asset_materialization/watermark", {"Content-Type": content_type}, "{}").status == 415
    assert "simple" not in ui.limits()


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}])
def test_a_socket_of_a_foreign_page_is_refused(ui: Ui, headers: Mapping[str, str]) -> None:
    sent = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "graphql-ws",
    }
    assert ui.ask("GET", "/graphql", {**sent, **headers}).status == 403
    if "Origin" in headers:
        with pytest.raises(InvalidStatus), connect(f"ws://{ui.host}/graphql", origin="http://evil.example"):
            pass


def test_no_other_page_may_show_the_ui_in_a_frame(ui: Ui) -> None:
    assert "frame-ancestors 'self'" in ui.ask("GET", "/server_info").headers["content-security-policy"]
