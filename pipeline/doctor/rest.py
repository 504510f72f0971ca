"""REST requests to Google's services for which no client library is installed, and the checks of credentials and of
this machine's clock."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import requests
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession, Request

from tidemark.pipeline.clock import format_duration, rough
from tidemark.pipeline.doctor.finding import Setup, Statement, broken, ok, warning
from tidemark.pipeline.errors import PermissionMissing
from tidemark.pipeline.pubsub.connection import credentials_of
from tidemark.pipeline.settings_sections import LakeSettings

SECONDS = 10.0
"""Timeout for connecting, and for waiting for the response."""

STORAGE = "https://storage.googleapis.com"
PUBSUB = "https://pubsub.googleapis.com"


class Silent(Exception):
    """A service did not answer a REST request."""


def ask(
    method: str, url: str, *, with_credentials: bool = True, impersonate: str | None = None, **content: Any
) -> requests.Response:
    """Send one request without retries. `content` are arguments of `requests.request`, such as `json` or `params`.
    Raises Silent if there is no answer, and PermissionMissing if the request needs credentials and none are usable."""
    try:
        with AuthorizedSession(credentials_of(impersonate)) if with_credentials else requests.Session() as session:  # type: ignore[no-untyped-call]
            response: requests.Response = session.request(method, url, timeout=SECONDS, **content)
    except GoogleAuthError as error:
        raise _unusable(error) from error
    except requests.RequestException as error:
        raise Silent(f"no answer from {url.partition('?')[0]}: {error}") from error
    return response


def reason_of(response: requests.Response) -> str:
    """Return the reason for a refusal: the service's error message or, if there is none, the HTTP status."""
    with suppress(ValueError, LookupError, TypeError):
        return str(response.json()["error"]["message"])
    return f"status {response.status_code}"


def ask_bucket(lake: LakeSettings, path: str = "", params: Sequence[tuple[str, str]] = ()) -> requests.Response:
    """Send a GET to the lake's bucket in Cloud Storage's JSON API, or to a `path` below it. Raises the same errors as
    `ask`."""
    url = f"{(lake.endpoint or STORAGE).rstrip('/')}/storage/v1/b/{bucket_of(lake)}{path}"
    return ask("GET", url, params=params, with_credentials=lake.endpoint is None)


def bucket_of(lake: LakeSettings) -> str:
    return urlsplit(lake.uri).netloc


def check_credentials(setup: Setup) -> Iterator[Statement]:
    """Check the credentials by fetching a token. Unless Pub/Sub is emulated, also fetch one for `pubsub.impersonate`,
    if set. Raises PermissionMissing if a token cannot be fetched."""
    account, bounded = setup.settings.pubsub.impersonate, partial(Request(), timeout=SECONDS)
    try:
        own = credentials_of(None)
        own.refresh(bounded)
    except GoogleAuthError as error:
        raise _unusable(error) from error
    yield ok(f"requests to Google are made as {getattr(own, 'service_account_email', None) or 'the logged-in user'}")
    if account is None or setup.settings.emulated:
        return
    try:
        credentials_of(account).refresh(bounded)
    except TransportError as error:
        raise _unusable(error) from error
    except GoogleAuthError as error:
        raise PermissionMissing(
            f"these credentials may not act as {account} (pubsub.impersonate): {error}; grant it with `gcloud iam "
            f"service-accounts add-iam-policy-binding {account} --role=roles/iam.serviceAccountTokenCreator "
            "--member=...`, and enable iamcredentials.googleapis.com"
        ) from error
    yield ok(f"requests to Pub/Sub and Cloud Monitoring are made as {account}")


def _unusable(error: GoogleAuthError) -> PermissionMissing:
    if isinstance(error, TransportError):
        return PermissionMissing(f"no token for Google Cloud could be fetched ({error}): check the network")
    return PermissionMissing(
        f"no usable credentials for Google Cloud: {error}; run `gcloud auth application-default login`, or give the "
        "machine a service account (docs/how-to/identity.md)"
    )


RESOLUTION = timedelta(seconds=1)
"""Resolution of the `Date` header, which has whole seconds."""

AGREES = timedelta(seconds=1)
"""Tolerated difference between this machine's clock and a server's. A larger one is reported."""


def check_clock(setup: Setup) -> Iterator[Statement]:
    """Compare this machine's clock with Pub/Sub's. With an emulator, compare it with Cloud Storage's clock, if the lake
    is in a bucket. Yields nothing if the service does not answer, because other checks report this."""
    settings = setup.settings
    with suppress(Silent):
        if not settings.emulated:
            yield from compared(setup, ask("GET", PUBSUB, with_credentials=False), "Pub/Sub")
        elif settings.lake.folder is None:
            yield from compared(setup, ask_bucket(settings.lake), "Cloud Storage")
        else:
            yield ok("neither the emulator nor the lake has a clock to compare with")


def compared(setup: Setup, response: requests.Response, whose: str) -> Iterator[Statement]:
    """Compare this machine's clock with the `Date` header of a `response` that has just arrived. `whose` names the
    server. The reported difference is a lower bound."""
    answered_at = setup.clock.now()
    try:
        server_at = parsedate_to_datetime(response.headers["Date"]).astimezone(UTC)
    except (KeyError, ValueError):
        yield warning(f"{whose} sends no time in its responses, so this machine's clock could not be compared")
        return
    ahead = answered_at - response.elapsed - (server_at + RESOLUTION)
    behind = server_at - answered_at
    near = setup.settings.policy.near_real_time
    remedy = "let NTP set the machine's clock (`timedatectl set-ntp true`)"
    if ahead > near:
        yield broken(
            f"this machine's clock is {rough(ahead)} ahead of {whose}'s, more than "
            f"{format_duration(near)}: the watermark holds (HELD_CLOCK_SKEW); {remedy}"
        )
    elif max(ahead, behind) > AGREES:
        which = "ahead of" if ahead > behind else "behind"
        yield warning(f"this machine's clock is {rough(max(ahead, behind))} {which} {whose}'s: {remedy}")
    else:
        yield ok(f"this machine's clock agrees with {whose}'s to about a second")
