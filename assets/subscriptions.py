"""The check `subscriptions`: whether both still are what the method needs, although anybody may change them."""

import logging
from collections.abc import Sequence

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS, key_of
from tidemark.pipeline.errors import PermissionMissing, PubSubError
from tidemark.pipeline.pubsub.drift import Drift
from tidemark.pipeline.settings import Settings
from tidemark.resources.keys import PUBSUB, keys_of, pubsub_of
from tidemark.resources.pubsub import PubSubResource

logger = logging.getLogger(__name__)

SUBSCRIPTIONS = "subscriptions"


def subscriptions_check(settings: Settings) -> dg.AssetChecksDefinition:
    """The check for running by hand. The sensor `staleness` evaluates it on its own."""

    @dg.asset_check(
        asset=key_of(settings, HEARTBEATS), name=SUBSCRIPTIONS, required_resource_keys=keys_of(settings, PUBSUB)
    )
    def subscriptions(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Whether both subscriptions still are what the method needs, whoever has changed them."""
        return subscriptions_result(settings, pubsub_of(context, settings).drift())

    return subscriptions


def subscriptions_result(settings: Settings, drift: Drift) -> dg.AssetCheckResult:
    """An error where the method does not hold any more, a warning of what will lose messages later."""
    wrong = [*drift.breaks, *drift.dangers]
    return dg.AssetCheckResult(
        asset_key=key_of(settings, HEARTBEATS),
        check_name=SUBSCRIPTIONS,
        passed=not wrong,
        severity=dg.AssetCheckSeverity.ERROR if drift.breaks else dg.AssetCheckSeverity.WARN,
        description="; ".join(wrong) or "both subscriptions are what the method needs",
        metadata={
            "breaks": dg.MetadataValue.md(_listed(drift.breaks)),
            "dangers": dg.MetadataValue.md(_listed(drift.dangers)),
            "differences": dg.MetadataValue.md(_listed(drift.differences)),
        },
    )


def seen_subscriptions(settings: Settings, pubsub: PubSubResource) -> list[dg.AssetCheckResult]:
    """The check beside a tick: a warning where it may not look, and nothing where nobody answers, which the ticks that
    pull say themselves."""
    try:
        return [subscriptions_result(settings, pubsub.drift())]
    except PermissionMissing as error:
        unseen = Drift(dangers=(f"a change of the subscriptions would not be noticed: {error}",))
        return [subscriptions_result(settings, unseen)]
    except PubSubError as error:
        logger.warning("whether the subscriptions have changed is not known: %s", error)
        return []


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
