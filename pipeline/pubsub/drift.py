"""Looks at the two subscriptions as they are now: after `provision` anybody may change them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.api_core import exceptions as api
from google.pubsub_v1 import SubscriberClient

from tidemark.pipeline.contract.heartbeat import MessageContract
from tidemark.pipeline.pubsub.connection import reported
from tidemark.pipeline.pubsub.kinds import promises
from tidemark.pipeline.pubsub.requirements import dangers, differences, followed, refusals
from tidemark.pipeline.settings_sections import PubSubSettings

LOOKS_WITHIN = timedelta(seconds=10)
"""The longest that one request takes. It is made beside a tick, and its answer is not urgent."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Sentences for people, each with a remedy. `breaks`: the method does not hold. `dangers`: messages will be lost
    later. `differences` from the settings cost or surprise, and nothing more. `promises`: what a watermark over base
    promises, where somebody else reads it."""

    breaks: tuple[str, ...] = ()
    dangers: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    promises: tuple[str, ...] = ()


def look_at_subscriptions(client: SubscriberClient, settings: PubSubSettings, contract: MessageContract) -> Drift:
    """Find what is wrong with the two subscriptions, in two requests that are not repeated. It changes nothing.

    Raises PubSubUnreachable, and PermissionMissing without `pubsub.subscriptions.get` on them.
    """
    paths = {"tracking": settings.tracking_path, "base": settings.base_path}
    found = {role: _find(client, path) for role, path in paths.items()}
    settings = followed(settings, found["base"])
    missing = tuple(
        f"{paths[role]} does not exist: run `tidemark provision`, or correct pubsub.{role}_subscription; what is "
        "published before it is there never reaches it"
        for role, one in found.items()
        if one is None and paths[role] != settings.read_by_others
    )
    existing = [(role, one) for role, one in found.items() if one is not None]
    return Drift(
        breaks=(*missing, *refusals(settings, contract, found["tracking"], found["base"])),
        dangers=tuple(sentence for role, one in existing for sentence in dangers(role, one, attach=settings.attach)),
        differences=tuple(sentence for role, one in existing for sentence in differences(settings, role, one)),
        promises=tuple(promises(found["base"])) if settings.attach and found["base"] is not None else (),
    )


def _find(client: SubscriberClient, path: str) -> Any | None:
    with reported("look up", path, "pubsub.subscriptions.get on it"):
        try:
            return client.get_subscription(subscription=path, retry=None, timeout=LOOKS_WITHIN.total_seconds())
        except api.NotFound:
            return None
