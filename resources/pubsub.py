"""The two subscriptions as a Dagster resource."""

from dataclasses import replace

import dagster as dg

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.pubsub.readings import Readings
from tidemark.pipeline.pubsub.requirements import Drift, look_at_subscriptions
from tidemark.pipeline.pubsub.spending import Spending
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings


class PubSubResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Base and tracking, and readings of their backlogs. The clients are kept between ticks."""

    settings: dg.ResourceDependency[Settings]
    kept: dg.ResourceDependency[Kept]
    clock: dg.ResourceDependency[Clock]

    def base(self) -> PubSubSubscription:
        """Return the subscription that carries the data. It is kept between ticks, for one thread, since a pull may be
        under way. Raises BaseReadByOthers with `pubsub.attach`."""
        return self._readings().subscription(self.settings.pubsub.base_path)

    def tracking(self) -> PubSubSubscription:
        """Return the subscription whose metadata is kept; like `base`, kept between ticks for one thread."""
        return self._readings().subscription(self.settings.pubsub.tracking_path)

    def base_backlog(self, user: str = "") -> Backlog:
        """Return the readings of base of this `user`; they are not shared between threads."""
        return self._readings().base(user)

    def tracking_backlog(self, user: str = "") -> Backlog:
        """Like `base_backlog`, of tracking."""
        return self._readings().tracking(user)

    def spending(self) -> Spending:
        """Return the snapshot budget that all readings of this process share."""
        return self._readings().spending()

    def sweep(self) -> int:
        """Delete the snapshots that a crash during an earlier reading left behind, and return their number."""
        return self._readings().sweep()

    def drift(self) -> Drift:
        """Return the current faults of both subscriptions. Raises PubSubError if they cannot be read."""
        readings = self._readings()
        found = look_at_subscriptions(readings.client(), self.settings.pubsub, self.settings.contract)
        return replace(found, dangers=(*found.dangers, *readings.taken_away()))

    def _readings(self) -> Readings:
        return Readings(self.settings, self.kept, self.clock)
