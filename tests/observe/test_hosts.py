"""The metrics' port answers under this machine's names alone: a page elsewhere may make its own name resolve here."""

import http.client
from collections.abc import Iterator

import pytest

from tidemark.pipeline.observe.outlet import Asked, serve

NAMED = "metrics.example"


@pytest.fixture
def port() -> Iterator[int]:
    server = serve("127.0.0.1", 0, Asked(list, {NAMED}, lambda: b"tidemark_up 1\n"))
    yield server.server_port
    server.shutdown()
    server.server_close()


def asked(port: int, *hosts: str, path: str = "/metrics") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest("GET", path, skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    said = answer.status, answer.read()
    connection.close()
    return said


@pytest.mark.parametrize("host", ["127.0.0.1:9464", "localhost", "[::1]:9464", "10.0.0.7:9464", f"{NAMED}:80"])
def test_this_machines_names_and_addresses_and_those_of_the_settings_are_answered(port: int, host: str) -> None:
    assert asked(port, host) == (200, b"tidemark_up 1\n")


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/livez"])
@pytest.mark.parametrize("hosts", [("rebound.example:9464",), ("127.0.0.1", "rebound.example")])
def test_a_page_that_makes_its_own_name_resolve_here_reads_nothing(
    port: int, hosts: tuple[str, ...], path: str
) -> None:
    status, content = asked(port, *hosts, path=path)
    assert (status, b"dagster.allowed_hosts" in content) == (403, True)
