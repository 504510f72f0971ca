"""The metrics' port answers under this machine's names alone: a page elsewhere may make its own name resolve here."""

import http.client
from collections.abc import Iterator

import pytest

from tests.official_emulator import HOST, free_port
from tidemark.pipeline.observe.outlet import outlet_of
from tidemark.pipeline.settings_sections import MetricsSettings

NAMED = "metrics.example"


@pytest.fixture
def port() -> Iterator[int]:
    metrics = MetricsSettings(export="prometheus", listen=f"{HOST}:{free_port()}")
    outlet = outlet_of(metrics, [NAMED])
    yield metrics.address[1]
    outlet.close()


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


def test_only_this_machines_names_and_addresses_and_those_of_the_settings_are_answered(port: int) -> None:
    for host in ("127.0.0.1:9464", "localhost", "[::1]:9464", "10.0.0.7:9464", f"{NAMED}:80"):
        assert asked(port, host, path="/healthz") == (200, b'{"healthy": true, "problems": []}\n'), host
    for path in ("/metrics", "/healthz", "/livez"):
        for hosts in (("rebound.example:9464",), ("127.0.0.1", "rebound.example")):
            status, content = asked(port, *hosts, path=path)
            assert (status, b"dagster.allowed_hosts" in content) == (403, True), (path, hosts)
