"""The throw-away topic and subscriptions of a measurement: made, removed again, and swept after a killed run.

Nothing is made that may not be removed: deleting is tried first, on names that do not exist yet. A later run removes
what a killed one left, by its label, once that is an hour old. Pub/Sub itself deletes the subscriptions after a day.
"""

import re
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from typing import Any

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import PermissionMissing, PubSubError
from tidemark.pipeline.pubsub.resources import Resources
from tidemark.pipeline.pubsub.sampling import short_lived
from tidemark.pipeline.settings_sections import PubSubSettings

LABEL = "tidemark-measure"
"""Its value is when the measurement began, in seconds since the epoch."""

NAME = re.compile(rf"projects/[^/]+/(topics|subscriptions|snapshots)/(tidemark-reading-)?{LABEL}-[0-9a-f]{{12}}.*")

LEFT_AFTER = timedelta(hours=1)
"""No measurement takes so long."""

NEEDED = {
    "snapshot": "pubsub.snapshots.create and pubsub.snapshots.delete on the project",
    "subscription": "pubsub.subscriptions.create and pubsub.subscriptions.delete on the project, and "
    "pubsub.topics.attachSubscription on the topic",
    "topic": "pubsub.topics.create and pubsub.topics.delete on the project",
}
"""The permissions for each kind that is made, in the order of removal."""


class Timed:
    """A client whose calls' seconds are noted by their names."""

    def __init__(self, client: Any, clock: Clock, seconds: defaultdict[str, list[float]]) -> None:
        self._client, self._clock, self._seconds = client, clock, seconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        def timed(*args: Any, **named: Any) -> Any:
            began = self._clock.monotonic()
            try:
                return found(*args, **named)
            finally:
                self._seconds[name].append(self._clock.monotonic() - began)

        return timed


class Place:
    """The names of one measurement, and the requests that make and remove what they name. `seconds` has how long each
    call took, by its name."""

    def __init__(self, publisher: Any, subscriber: Any, settings: PubSubSettings, clock: Clock) -> None:
        self.settings, self.clock = settings, clock
        self.seconds = defaultdict[str, list[float]](list)
        self.publisher, self.subscriber = self.timed(publisher), self.timed(subscriber)
        self._resources = Resources(self.subscriber, self.publisher)
        self.bounds = self._resources.bounds
        self.labels = {LABEL: str(int(clock.now().timestamp()))}
        self._id = f"{LABEL}-{uuid.uuid4().hex[:12]}"
        self._project = f"projects/{settings.project}"
        self.topic = self._path("topic")
        self._made: list[tuple[str, str]] = []

    def timed(self, client: Any) -> Any:
        """The client, whose calls count from now on."""
        return Timed(client, self.clock, self.seconds)

    def make_topic(self) -> None:
        """Raises PermissionMissing, and makes nothing, if anything that a measurement makes could not be removed."""
        for kind in NEEDED:
            self._resources.delete(kind, self._path(kind), NEEDED[kind])
        self._make("topic", {"name": self.topic})

    def subscribe(self, role: str, **options: Any) -> str:
        """A subscription of the topic, with these options besides, that nothing keeps for longer than a day."""
        path = self._path("subscription", f"-{role}")
        self._make("subscription", {**short_lived(path, self.topic), **options})
        return path

    def remove(self) -> None:
        """Remove all that was made, the topic last; Ctrl-C does not end it. What cannot be removed is named in the
        error."""
        with ThreadPoolExecutor(1) as pool:
            removing = pool.submit(self._remove)
            while not removing.done():
                with suppress(KeyboardInterrupt):
                    wait([removing])
            removing.result()

    def sweep(self) -> list[str]:
        """Remove what killed measurements left behind, and return the names. Does nothing where these credentials may
        not list it."""
        before = (self.clock.now() - LEFT_AFTER).timestamp()
        swept = []
        with suppress(PermissionMissing):
            found = [(kind, one) for kind in NEEDED for one in self._resources.listed(kind, self._project)]
            for kind, one in found:
                began = one.labels.get(LABEL, "")
                if NAME.fullmatch(one.name) and began.isdecimal() and int(began) < before:
                    self._resources.delete(kind, one.name, NEEDED[kind])
                    swept.append(one.name)
        return swept

    def _remove(self) -> None:
        with suppress(PubSubError):  # the snapshots of a reading that was interrupted
            snapshots = self._resources.listed("snapshot", self._project)
            self._made += [("snapshot", one.name) for one in snapshots if self._id in one.name]
        left: list[str] = []
        problem: PubSubError | None = None
        for kind, path in reversed(self._made):
            try:
                self._resources.delete(kind, path, NEEDED[kind])
            except PubSubError as error:
                problem = error
                left.append(f"gcloud pubsub {kind}s delete {path}")
        if problem is not None:
            raise type(problem)(
                f"{problem}. Delete yourself what the measurement made: `{'; '.join(left)}`. Otherwise Pub/Sub deletes "
                "the subscriptions after a day, and a later `tidemark doctor --measure` the rest"
            ) from problem

    def _path(self, kind: str, role: str = "") -> str:
        return f"{self._project}/{kind}s/{self._id}{role}"

    def _make(self, kind: str, request: dict[str, Any]) -> None:
        """Create it. It is removed even if creating it was interrupted, or its answer was lost."""
        self._made.append((kind, request["name"]))
        self._resources.create(kind, {**request, "labels": self.labels}, NEEDED[kind])
