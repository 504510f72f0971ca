"""A check that is declared once: for the sensor that evaluates it, and for running it by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from inspect import getdoc

import dagster as dg

from tidemark.assets.catalog import key_of
from tidemark.pipeline.settings import Settings
from tidemark.resources.keys import LAKE, PUBSUB, keys_of, lake_of, pubsub_of
from tidemark.resources.lake import LakeResource
from tidemark.resources.pubsub import PubSubResource


@dataclass(frozen=True)
class Look:
    """What a check looks at: the lake, by the parts of its `user`, and the subscriptions, at a moment."""

    lake: LakeResource
    pubsub: PubSubResource
    user: str
    now: datetime

    @cached_property
    def watermark(self) -> datetime | None:
        """The watermark, read once. Raises as `LakeResource.state`."""
        return self.lake.state(self.user).watermark


@dataclass(frozen=True, slots=True)
class Check:
    """A check of an asset. The function that evaluates it has its name, and its docstring describes it in the UI."""

    asset: dg.AssetKey
    evaluate: Callable[[Look], dg.AssetCheckResult]

    @property
    def name(self) -> str:
        """Its name in Dagster."""
        return self.evaluate.__name__

    def by_hand(self, settings: Settings, now: Callable[[], datetime]) -> dg.AssetChecksDefinition:
        """The check for running by hand."""

        @dg.asset_check(
            asset=key_of(settings, self.asset),
            name=self.name,
            description=getdoc(self.evaluate),
            required_resource_keys=keys_of(settings, LAKE, PUBSUB),
        )
        def checked(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
            return self.evaluate(Look(lake_of(context, settings), pubsub_of(context, settings), "checks", now()))

        return checked

    def reported(self, look: Look, result: dg.AssetCheckResult | None = None) -> dg.AssetCheckEvaluation:
        """What a sensor reports: this result, or what is found now."""
        found = result or self.evaluate(look)
        return evaluation_of(found._replace(asset_key=key_of(look.lake.settings, self.asset), check_name=self.name))


def check_of(asset: dg.AssetKey) -> Callable[[Callable[[Look], dg.AssetCheckResult]], Check]:
    """The decorator that makes a function the check of an asset."""
    return lambda evaluate: Check(asset, evaluate)


def evaluation_of(result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """A result that names its check, as the event that a sensor or a job reports."""
    return dg.AssetCheckEvaluation(**result._asdict())
