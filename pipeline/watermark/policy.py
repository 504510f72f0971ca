"""The policy: all parameters of a decision, as opposed to observed values."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal


@dataclass(frozen=True, slots=True)
class Policy:
    """The estimator's settings.

    - `rule` selects the bound on the event times of messages that may still land: the earliest event time in the band,
      or the frontier.
    - `band` is the disorder that is allowed for.
    - `idle_timeout` is the minimum length of a silence, and `idle` says what the watermark does in one.
    - `quantile`: at most this share of the messages of each publish second is passed over, beginning with the earliest
      event times. It tolerates slow clocks.
    - `reading_slack` is subtracted from the tracking reading and `base_slack` from the base reading, because the
      service may not show a message until a moment after its publish time.
    - `max_lag`: a message that is published more than this after its event does not hold the watermark. None: every
      message holds it.
    - `undecided`: the maximum time for which a message waits on tracking for its schema.

    Four parameters are not settings, but the simulation varies them:

    - `near_real_time`: a subscription has no backlog if its oldest message was at most this old at the reading.
      Readers on Spark acknowledge in rounds of 5 s, and tracking is normally up to two rounds behind.
    - `max_idle_lag`: in a silence, the sources' recent lag holds the watermark back by at most this time, in case a
      source with a wrong clock published last.
    - `max_reading_age`: if a reading is overdue by more than this, the watermark is held, so that the outage is
      reported.
    - `seek_tolerance`: a reading that is lower than the one before by more than this means a seek. Smaller differences
      are ignored, because the service's readings may go back by seconds.
    """

    rule: Literal["band", "frontier"] = "band"
    band: timedelta = timedelta(seconds=10)
    near_real_time: timedelta = timedelta(seconds=10)
    idle_timeout: timedelta = timedelta(minutes=2)
    idle: Literal["advance", "hold"] = "advance"
    max_idle_lag: timedelta = timedelta(minutes=5)
    max_reading_age: timedelta = timedelta(minutes=5)
    seek_tolerance: timedelta = timedelta(seconds=30)
    quantile: float = 0.0
    reading_slack: timedelta = timedelta(0)
    base_slack: timedelta = timedelta(0)
    max_lag: timedelta | None = None
    undecided: timedelta = timedelta(0)

    @property
    def near_on_tracking(self) -> timedelta:
        """Maximum age of tracking's oldest message at which rule 4 sees no backlog. It includes a wait for a schema."""
        return self.near_real_time + self.undecided

    def with_band(self, band: timedelta) -> "Policy":
        """Return the policy that the settings would give with this band. On Google's service, `base_slack` defaults
        to the band, so it changes with the band. If the settings give a slack, it applies to the readings of both
        subscriptions, and does not change."""
        follows = self.base_slack == self.band != self.reading_slack
        return replace(self, band=band, base_slack=band if follows else self.base_slack)
