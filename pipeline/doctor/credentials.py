"""Credentials for Google's services: there, and good for a token, of the account that is to be impersonated as well."""

from collections.abc import Iterator
from functools import partial

from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request

from tidemark.pipeline.doctor.finding import Said, Setup, broken, ok
from tidemark.pipeline.doctor.rest import SECONDS
from tidemark.pipeline.pubsub.connection import credentials_of


def check_credentials(setup: Setup) -> Iterator[Said]:
    """Fetches a token, and throws it away."""
    account = setup.settings.pubsub.impersonate
    try:
        own = credentials_of(None)
        own.refresh(_bounded())
    except GoogleAuthError as error:
        if isinstance(error, TransportError):
            yield broken(f"no token for Google Cloud could be fetched ({error}): check the network")
            return
        yield broken(
            f"no usable credentials for Google Cloud: {error}; run `gcloud auth application-default login`, or give "
            "the machine a service account (docs/how-to/identity.md)"
        )
        return
    yield ok(f"asks Google as {getattr(own, 'service_account_email', None) or 'the user who is logged in'}")
    if account is None or setup.settings.emulated:
        return
    try:
        credentials_of(account).refresh(_bounded())
    except GoogleAuthError as error:
        yield broken(
            f"these credentials may not act as {account} (pubsub.impersonate): {error}; grant them "
            f"roles/iam.serviceAccountTokenCreator on it (`gcloud iam service-accounts add-iam-policy-binding "
            f"{account} --role=roles/iam.serviceAccountTokenCreator --member=...`), and enable "
            "iamcredentials.googleapis.com"
        )
        return
    yield ok(f"asks Pub/Sub and Cloud Monitoring as {account}")


def _bounded() -> partial[object]:
    return partial(Request(), timeout=SECONDS)
