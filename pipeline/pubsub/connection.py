"""Creates clients for Pub/Sub or an emulator, and finds, creates, deletes and lists resources with them. Translates
errors of Google's libraries into tidemark's errors, which say what to do."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import google.auth
import grpc
from google.api_core import exceptions as api
from google.api_core.client_options import ClientOptions
from google.api_core.retry import Retry, if_exception_type
from google.auth import impersonated_credentials
from google.auth.exceptions import GoogleAuthError
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tidemark.pipeline.errors import PermissionMissing, PubSubError, PubSubUnreachable, SubscriptionMissing
from tidemark.pipeline.machine import listens

TRANSIENT = (api.ServiceUnavailable, api.DeadlineExceeded, api.InternalServerError, api.TooManyRequests, api.Aborted)
"""Errors that may go away when the call is retried."""

MAY_NOT_ACT = "Unable to acquire impersonated credentials"
"""Text in google-auth's report of a missing permission to impersonate a service account. tidemark searches for it,
because the gRPC error that contains it looks transient."""

REVOKED = "invalid_grant"
"""Text with which Google's token server reports an expired or revoked login. tidemark searches for it, because the gRPC
error that contains it looks transient."""

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""OAuth scope of every token. The account's roles determine what a token permits."""

ANSWERS_WITHIN_SECONDS = 5.0
"""Timeout in seconds for a test request to an emulator, which answers in milliseconds."""

FOREIGN: Mapping[grpc.StatusCode, str] = {
    grpc.StatusCode.UNAVAILABLE: "it does not speak gRPC",
    grpc.StatusCode.UNIMPLEMENTED: "it has no such service",
    grpc.StatusCode.UNAUTHENTICATED: "it asks for a login",
    grpc.StatusCode.DEADLINE_EXCEEDED: f"it says nothing within {ANSWERS_WITHIN_SECONDS:g} s",
}
"""The gRPC statuses that no Pub/Sub emulator returns for the test request. Each is mapped to a description of the
server."""

DIRECT = (
    *(("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)),
    ("grpc.enable_http_proxy", 0),
)
"""Options of a channel to an emulator: no limit on message sizes, and no proxy, even if `$http_proxy` names one."""

CALL_TIMEOUT = timedelta(seconds=10)
"""Timeout of any call except a pull, including retries. Reason: a tick has 60 s for all its calls."""

ONE_TRY: Mapping[str, Any] = {"retry": None, "timeout": CALL_TIMEOUT.total_seconds()}
"""Keyword arguments of a client call that is not retried."""

TICKS_GO_ON = "Nothing is lost: ticks try again"
ONCE_MORE = "Nothing is lost: run the command again"
"""The last sentence of the error for an unanswered call: TICKS_GO_ON in a tick, ONCE_MORE in a command."""


def client_of(kind: Any, server: str | None, endpoint: str | None = None, impersonate: str | None = None) -> Any:
    """Create a client of the class `kind` for Google's service, or for the server at `server` (host:port) if it is set.
    A client for `server` uses neither TLS nor credentials.

    `endpoint` is the address of Google's service, such as a regional one. `impersonate` is the service account to act
    as: its short-lived tokens are fetched with the machine's own credentials. Raises PermissionMissing if the machine
    has no credentials; the error says how to get them.
    """
    if server is not None:
        channel = grpc.insecure_channel(server, options=DIRECT)
        return kind(transport=kind.get_transport_class("grpc")(channel=channel))
    try:
        credentials = None if impersonate is None else credentials_of(impersonate)
        return kind(credentials=credentials, client_options=endpoint and ClientOptions(api_endpoint=endpoint))
    except GoogleAuthError as error:
        raise PermissionMissing(
            f"no credentials for Google Cloud: {error}; run `gcloud auth application-default login`, or set "
            "pubsub.emulator_host to use the emulator"
        ) from error


subscriber_client: Callable[..., SubscriberClient] = partial(client_of, SubscriberClient)

publisher_client: Callable[..., PublisherClient] = partial(client_of, PublisherClient)


def credentials_of(impersonate: str | None) -> Any:
    """Return the machine's default credentials, or the credentials of the service account `impersonate`. Raises
    GoogleAuthError if the machine has no credentials.

    The account's tokens are fetched on first use, with the machine's credentials. A missing permission to impersonate
    the account raises an error only then.
    """
    own, _ = google.auth.default(scopes=[SCOPE])
    if impersonate is None:
        return own
    return impersonated_credentials.Credentials(  # type: ignore[no-untyped-call]
        own, target_principal=impersonate, target_scopes=[SCOPE]
    )


def refuse_foreign_server(emulator_host: str | None) -> None:
    """Raise PubSubError if the server at the address of the emulator is not Pub/Sub. Does nothing if no server listens
    there."""
    host, _, port = (emulator_host or "").rpartition(":")
    if emulator_host is None or not listens(host, int(port)):
        return
    with grpc.insecure_channel(emulator_host, options=DIRECT) as channel:
        look = channel.unary_unary("/google.pubsub.v1.Publisher/GetTopic")
        try:
            look(b"", timeout=ANSWERS_WITHIN_SECONDS)
        except grpc.RpcError as error:
            if error.code() not in FOREIGN:
                return
            raise PubSubError(
                f"the server at {emulator_host} is not a Pub/Sub emulator ({FOREIGN[error.code()]}): stop "
                "it, or choose another port with pubsub.emulator_host"
            ) from error


def retrying(within: timedelta) -> Retry:
    """Return a policy that retries a call after a TRANSIENT error, for at most `within` in total."""
    return Retry(predicate=if_exception_type(*TRANSIENT), initial=0.1, maximum=2.0, timeout=within.total_seconds())


def bounded(within: timedelta = CALL_TIMEOUT) -> dict[str, Any]:
    """Return keyword arguments that make a client call retry after a TRANSIENT error, for at most `within` in total."""
    return {"retry": retrying(within), "timeout": within.total_seconds()}


@contextmanager
def reported(
    action: str, resource: str, permission: str, service: str = "Pub/Sub", then: str = TICKS_GO_ON
) -> Iterator[None]:
    """Translate the errors that Google's client raises in the block into tidemark's errors. An error names the resource
    and, if access was denied, the permission to grant. If the service did not answer, the error ends with `then`."""
    try:
        yield
    except api.NotFound as error:
        raise SubscriptionMissing(
            f"{resource} does not exist (while trying to {action} it); run `tidemark provision`, or correct its name "
            "in tidemark.toml"
        ) from error
    except (api.PermissionDenied, api.Unauthorized, api.Unauthenticated) as error:
        raise PermissionMissing(
            f"these credentials may not {action} {resource}: grant {permission} ({error.message})"
        ) from error
    except (*TRANSIENT, api.RetryError) as error:
        cause = getattr(error, "cause", None) or error  # a RetryError's cause is the last error
        why = getattr(cause, "message", None) or cause
        if MAY_NOT_ACT in str(why):
            raise PermissionMissing(
                f"cannot {action} {resource}: no token for the service account that pubsub.impersonate names ({why}); "
                "grant the machine's own credentials roles/iam.serviceAccountTokenCreator on that account. `tidemark "
                "doctor` shows the command"
            ) from error
        if REVOKED in str(why):
            raise PermissionMissing(
                f"the login that is needed to {action} {resource} expired or was revoked: {why}; run `gcloud auth "
                "application-default login`, and start tidemark again"
            ) from error
        if isinstance(cause, api.TooManyRequests):
            failed = "refused (a quota is used up)"
            advice = "raise that quota in Google Cloud, or make fewer calls with a longer watermark.tick"
        else:
            failed = "did not answer when asked"
            advice = "check the network, or that the emulator runs at pubsub.emulator_host (`tidemark up` starts it)"
        raise PubSubUnreachable(f"{service} {failed} to {action} {resource}: {why}; {advice}. {then}") from error
    except api.GoogleAPICallError as error:
        raise PubSubError(f"{service} refused to {action} {resource}: {error}") from error
    except GoogleAuthError as error:
        raise PermissionMissing(
            f"the credentials for {resource} were refused: {error}; run `tidemark doctor`"
        ) from error


class Resources:
    """Finds, creates, deletes and lists resources in Pub/Sub. `kind` is topic, subscription or snapshot.

    Google's errors are translated to tidemark's, which say what to do. `needed` is the permission that an error tells
    the user to grant. With `look`, requests are not retried. Creating an existing resource or deleting a missing one is
    not an error.
    """

    def __init__(self, subscriber: Any = None, publisher: Any = None, *, look: bool = False) -> None:
        self._clients = {"topic": publisher, "subscription": subscriber, "snapshot": subscriber}
        self._then = TICKS_GO_ON if look else ONCE_MORE
        self.bounds = ONE_TRY if look else bounded()

    def find(self, kind: str, path: str) -> Any | None:
        """Return the resource at the path, or None if there is none."""
        get = getattr(self._clients[kind], f"get_{kind}")
        with reported("look up", path, f"pubsub.{kind}s.get on it", then=self._then), suppress(api.NotFound):
            return get(**{kind: path}, **self.bounds)
        return None

    def create(self, kind: str, request: dict[str, Any], needed: str) -> bool:
        """Create a topic or subscription, and return True. Return False if it already exists."""
        create = getattr(self._clients[kind], f"create_{kind}")
        with reported("create", request["name"], needed, then=self._then), suppress(api.AlreadyExists):
            create(request=request, **self.bounds)
            return True
        return False

    def delete(self, kind: str, path: str, needed: str) -> None:
        """Delete the resource, if it exists."""
        delete = getattr(self._clients[kind], f"delete_{kind}")
        with reported("delete", path, needed, then=self._then), suppress(api.NotFound):
            delete(**{kind: path}, **self.bounds)

    def listed(self, kind: str, project: str) -> list[Any]:
        """Return all of the project's resources of this kind."""
        listing = getattr(self._clients[kind], f"list_{kind}s")
        with reported(f"list the {kind}s of", project, f"pubsub.{kind}s.list on it", then=self._then):
            return list(listing(project=project, **self.bounds))
