"""Settings of tests: whose policy differs in what no setting changes, and of a small Spark."""

from dataclasses import replace
from typing import Any

from pydantic import PrivateAttr

from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.watermark.policy import Policy


class QuickSettings(Settings):
    """Settings with a policy of their own."""

    _changes: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def policy(self) -> Policy:
        return replace(super().policy, **self._changes)


def with_policy(settings: Settings, **changes: Any) -> Settings:
    """These settings, with other values in the policy."""
    made = QuickSettings(**{name: getattr(settings, name) for name in Settings.model_fields})
    made._changes = changes
    return made


def classic(master: str, **config: str) -> SparkSettings:
    """A session in each run's own process, with little memory."""
    return SparkSettings(remote=None, config={"spark.master": master, "spark.driver.memory": "1g", **config})
