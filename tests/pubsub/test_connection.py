"""Clients of the service: at which address, and as whom. No request leaves the machine."""

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import google.auth
import pytest
from google.api_core import exceptions as api
from google.auth import credentials, impersonated_credentials

from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.errors import PermissionMissing, PubSubUnreachable
from tidemark.pipeline.pubsub.backlog import monitoring_client
from tidemark.pipeline.pubsub.connection import publisher_client, reported, subscriber_client
from tidemark.pipeline.settings_sections import PubSubSettings, Server

ACCOUNT = "tidemark@project.iam.gserviceaccount.com"
REGIONAL = "europe-west3-pubsub.googleapis.com:443"


class OfTheMachine(credentials.Credentials):
    """Credentials with a token that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.token = "of-the-machine"  # noqa: S105 (it opens nothing)

    def refresh(self, request: object) -> None: ...


@pytest.fixture(autouse=True)
def _machine_has_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google.auth, "default", lambda **_: (OfTheMachine(), "project"))


def credentials_in(client: Any) -> Any:
    return client.transport._credentials


def test_a_regional_endpoint_is_asked_instead_of_the_global_one() -> None:
    settings = PubSubSettings(endpoint=REGIONAL)
    for client in (subscriber_client(*settings.server), publisher_client(*settings.server)):
        assert client.transport.host == REGIONAL
        client.transport.close()
    everywhere = subscriber_client(*PubSubSettings().server)
    assert everywhere.transport.host == "pubsub.googleapis.com:443"
    everywhere.transport.close()


def test_pubsub_and_monitoring_are_asked_as_the_service_account_that_is_named() -> None:
    settings = PubSubSettings(impersonate=ACCOUNT)
    clients = [subscriber_client(*settings.server), publisher_client(*settings.server)]
    for client in (*clients, monitoring_client(Server(None, impersonate=settings.impersonate))):
        used = credentials_in(client)
        assert isinstance(used, impersonated_credentials.Credentials)
        assert used.service_account_email == ACCOUNT
        client.transport.close()
    plain = subscriber_client(*PubSubSettings().server)
    assert not isinstance(credentials_in(plain), impersonated_credentials.Credentials)
    plain.transport.close()


def test_its_token_is_fetched_with_the_credentials_of_the_machine() -> None:
    client = subscriber_client(None, None, ACCOUNT)
    asked: list[tuple[str, str]] = []

    def post(url: str, method: str, body: bytes, headers: dict[str, str], **_: object) -> object:
        asked.append((f"{method} {url}", headers["authorization"]))
        expires = iso(SystemClock().now().replace(microsecond=0) + timedelta(hours=1))
        answer = {"accessToken": "of-the-account", "expireTime": expires}
        return SimpleNamespace(status=200, data=json.dumps(answer).encode())

    used = credentials_in(client)
    used.refresh(post)
    ((what, bearer),) = asked
    assert what.startswith("POST https://iamcredentials.googleapis.com/")
    assert what.endswith(f"serviceAccounts/{ACCOUNT}:generateAccessToken")
    assert (bearer, used.token) == ("Bearer of-the-machine", "of-the-account")
    client.transport.close()


def test_a_refused_impersonation_is_a_missing_permission_and_not_a_broken_network() -> None:
    said = "Getting metadata from plugin failed with error: ('Unable to acquire impersonated credentials', '403')"
    expected = r"pubsub.impersonate to pull from base.*serviceAccountTokenCreator"
    with pytest.raises(PermissionMissing, match=expected), reported("pull from", "base", "consume"):
        raise api.ServiceUnavailable(said)
    with pytest.raises(PubSubUnreachable), reported("pull from", "base", "consume"):
        raise api.ServiceUnavailable("Getting metadata from plugin failed with error: no route")
