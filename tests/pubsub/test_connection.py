"""Clients of the service: at which address, and as whom. No request leaves the machine."""

import google.auth
import pytest
from google.api_core import exceptions as api
from google.auth import credentials, impersonated_credentials

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


def test_clients_ask_a_regional_endpoint_as_the_service_account_that_is_named() -> None:
    settings = PubSubSettings(impersonate=ACCOUNT, endpoint=REGIONAL)
    clients = [subscriber_client(*settings.server), publisher_client(*settings.server)]
    for client in (*clients, monitoring_client(Server(None, impersonate=settings.impersonate))):
        used = client.transport._credentials
        assert isinstance(used, impersonated_credentials.Credentials)
        assert used.service_account_email == ACCOUNT
        client.transport.close()
    assert [client.transport.host for client in clients] == [REGIONAL] * 2
    plain = subscriber_client(*PubSubSettings().server)
    assert plain.transport.host == "pubsub.googleapis.com:443"
    assert not isinstance(plain.transport._credentials, impersonated_credentials.Credentials)
    plain.transport.close()


def test_a_refused_impersonation_is_a_missing_permission_and_not_a_broken_network() -> None:
    said = "Getting metadata from plugin failed with error: ('Unable to acquire impersonated credentials', '403')"
    expected = r"pubsub.impersonate to pull from base.*serviceAccountTokenCreator"
    with pytest.raises(PermissionMissing, match=expected), reported("pull from", "base", "consume"):
        raise api.ServiceUnavailable(said)
    with pytest.raises(PubSubUnreachable), reported("pull from", "base", "consume"):
        raise api.ServiceUnavailable("Getting metadata from plugin failed with error: no route")
