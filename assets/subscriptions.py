"""The check `subscriptions`: whether both still are what the method needs, although anybody may change them."""

import logging
from collections.abc import Sequence

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS
from tidemark.assets.declared_check import Look, check_of
from tidemark.pipeline.errors import PermissionMissing, PubSubError
from tidemark.pipeline.pubsub.drift import Drift

logger = logging.getLogger(__name__)


@check_of(HEARTBEATS)
def subscriptions(look: Look) -> dg.AssetCheckResult:
    """Whether both subscriptions still are what the method needs, whoever has changed them."""
    return subscriptions_result(look.pubsub.drift())


def subscriptions_result(drift: Drift) -> dg.AssetCheckResult:
    """An error where the method does not hold any more, a warning of what will lose messages later."""
    wrong = [*drift.breaks, *drift.dangers]
    return dg.AssetCheckResult(
        passed=not wrong,
        severity=dg.AssetCheckSeverity.ERROR if drift.breaks else dg.AssetCheckSeverity.WARN,
        description="; ".join(wrong) or "both subscriptions are what the method needs",
        metadata={
            "breaks": dg.MetadataValue.md(_listed(drift.breaks)),
            "dangers": dg.MetadataValue.md(_listed(drift.dangers)),
            "differences": dg.MetadataValue.md(_listed(drift.differences)),
        },
    )


def seen_subscriptions(look: Look) -> list[dg.AssetCheckResult]:
    """The check beside a tick: a warning where it may not look, and nothing where nobody answers, which the ticks that
    pull say themselves."""
    try:
        return [subscriptions.evaluate(look)]
    except PermissionMissing as error:
        unseen = Drift(dangers=(f"a change of the subscriptions would not be noticed: {error}",))
        return [subscriptions_result(unseen)]
    except PubSubError as error:
        logger.warning("whether the subscriptions have changed is not known: %s", error)
        return []


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
