"""Servers of others at the addresses of the emulator and of Spark Connect: each is told before anything is started."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.cli.command import said_by_the_program, said_here
from tests.official_emulator import free_port
from tidemark.local.services.stack import TOKEN, refuse_foreign_servers
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor.finding import Level, Setup
from tidemark.pipeline.doctor.spark import check_spark
from tidemark.pipeline.errors import PubSubError, SparkUnreachable
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings, SparkSettings

Server = Callable[[], AbstractContextManager[int]]
NOT_PUBSUB = "the server at 127.0.0.1:{port} is not a Pub/Sub emulator ({why}): stop it, or choose another "


@contextmanager
def http_server() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def grpc_server(token: str | None) -> Iterator[int]:
    """A gRPC server without any service; with a token it refuses others, as Spark does."""

    class Guard(grpc.ServerInterceptor):  # type: ignore[misc]
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            sent = dict(details.invocation_metadata).get("authorization")
            if token is None or sent == f"Bearer {token}":
                return continuation(details)
            refused = grpc.StatusCode.UNAUTHENTICATED, "Invalid authentication token"
            return grpc.unary_unary_rpc_method_handler(lambda _, context: context.abort(*refused))

    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, interceptors=[Guard()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


def plain_grpc_server() -> AbstractContextManager[int]:
    return grpc_server(None)


@pytest.mark.parametrize(
    ("server", "why"), [(http_server, "it does not speak gRPC"), (plain_grpc_server, "it has no such service")]
)
def test_a_foreign_server_at_the_emulator_s_address_is_named(server: Server, why: str) -> None:
    with server() as port:
        settings = Settings(pubsub=PubSubSettings(emulator_host=f"127.0.0.1:{port}"))
        for refuses in (refuse_foreign_servers, lambda settings: provision_here(settings, SystemClock())):
            with pytest.raises(PubSubError) as refused:
                refuses(settings)
            assert str(refused.value).startswith(NOT_PUBSUB.format(port=port, why=why))


def test_up_provision_and_doctor_say_so_and_start_nothing(tmp_path: Path) -> None:
    assert said_here(tmp_path, ("init",), {}).code == 0
    with http_server() as port:
        variables = {
            "TIDEMARK_PUBSUB__EMULATOR_HOST": f"127.0.0.1:{port}",
            "TIDEMARK_SPARK__REMOTE": f"sc://localhost:{free_port()}",
            "TIDEMARK_DAGSTER__WEB_PORT": str(free_port()),
            "TIDEMARK_DAGSTER__CODE_PORT": str(free_port()),
        }
        expected = NOT_PUBSUB.format(port=port, why="it does not speak gRPC")
        up = said_by_the_program(tmp_path, ("up",), variables)
        assert (up.code, expected in up.err, "starting" in up.out) == (1, True, False)
        provision = said_here(tmp_path, ("provision",), variables)
        assert (provision.code, expected in provision.err) == (1, True)
        assert expected in said_here(tmp_path, ("doctor",), variables).out


def by_spark(port: int, folder: Path) -> Settings:
    spark = SparkSettings(remote=f"sc://localhost:{port}", config={"spark.driver.memory": "512m"})
    return Settings.model_validate({"spark": spark, "dagster": {"storage": str(folder / "dagster")}})


def judged(settings: Settings) -> tuple[Level, str]:
    """What the doctor says of Spark, which is what `up` is refused for."""
    try:
        refuse_foreign_servers(settings)
        said = next(iter(check_spark(Setup(settings, SystemClock()))))
    except SparkUnreachable as refused:
        with pytest.raises(SparkUnreachable, match=r".*"):
            next(iter(check_spark(Setup(settings, SystemClock()))))
        return Level.BROKEN, str(refused)
    return said


@pytest.mark.parametrize(("token", "is_right"), [("theirs", True), ("another", False), (None, False)])
def test_a_spark_server_with_another_token_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None, *, is_right: bool
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    if token is not None:
        monkeypatch.setenv(TOKEN, token)
    with grpc_server("theirs") as port:
        level, said = judged(by_spark(port, tmp_path))
        assert level is Level.BROKEN
        expected = (
            "is not a Spark Connect server" if is_right else f"refuses the token of this environment: set ${TOKEN}"
        )
        assert expected in said


@pytest.mark.parametrize("server", [http_server, plain_grpc_server])
def test_what_is_no_spark_server_is_told(tmp_path: Path, server: Server) -> None:
    with server() as port:
        level, said = judged(by_spark(port, tmp_path))
    assert level is Level.BROKEN
    assert f"the server at sc://localhost:{port} is not a Spark Connect server: stop it" in said
