"""`tidemark attach`: decide the watermark for a subscription that another consumer reads, without Dagster or Spark."""

from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from typing import Annotated

import typer

from tidemark.local.services.ownership import Ownership
from tidemark.local.services.processes import page_sentence
from tidemark.pipeline.cli.here import lake_of
from tidemark.pipeline.cli.options import option
from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.errors import InvalidSettings, NewerFormat, ProvisionRefused, PubSubUnreachable
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.settle import Settling, judge_of
from tidemark.pipeline.ingest.signals import signals_of
from tidemark.pipeline.ingest.ticks import Tracked, tick_budget, track
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.observe.outlet import check_libraries
from tidemark.pipeline.observe.recorder import Recorder
from tidemark.pipeline.phrases import printable
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.pubsub.readings import Subscriptions
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.quality.failing import TRACKING, TickNotes
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.settings_sections import LISTEN

CHECKS_EVERY = timedelta(minutes=1)
"""Interval between two checks of both subscriptions' settings."""

GIVES_BACK_SECONDS = 0.2
"""Time allowed for sending the last requests, which return pulled messages to Pub/Sub. The command does not wait for
responses."""


def attach(
    ticks: Annotated[int | None, option("End after this many ticks; exit code 1 if the last failed.", min=1)] = None,
) -> None:
    """Track a subscription that another system reads.

    Pulls from the tracking subscription, decides the watermark and writes it to the lake, until Ctrl-C. Never pulls
    from the base subscription. Needs pubsub.attach = true. Several `tidemark attach` may run at the same time.
    """
    settings, clock = load_settings(), SystemClock()
    if not settings.pubsub.attach:
        raise InvalidSettings(
            "pubsub.attach is false, so this pipeline reads the base subscription itself: run `tidemark up`. If "
            "another consumer reads it, set attach = true and base_subscription under [pubsub] (docs/how-to/attach.md)"
        )
    check_libraries(settings.metrics)
    if settings.metrics.has_page:
        print(page_sentence(settings.metrics), flush=True)
    listening = settings.metrics.model_copy(update={"listen": settings.metrics.listen or LISTEN})
    settings = settings.model_copy(update={"metrics": listening})
    with closing(Attached(settings, clock)) as attached, suppress(KeyboardInterrupt):
        if settings.emulated:
            attached.warn(provision_here(settings, clock).warnings)
        with suppress(PubSubUnreachable):  # the first tick reports it
            attached.check_options()
        done, ok, next_at = 0, True, clock.monotonic()
        while ticks is None or done < ticks:
            clock.sleep(max(next_at - clock.monotonic(), 0.0))
            next_at = max(next_at, clock.monotonic() - 1) + settings.watermark.tick.total_seconds()
            ok, done = attached.tick(), done + 1
        if not ok:
            raise typer.Exit(1)


class Attached:
    """Runs the ticks of one `tidemark attach` process. The ticks share clients, and print a line only if it changed."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._pubsub = Subscriptions(settings, Kept(), clock)
        self._tracking: PubSubSubscription | None = None
        self._lake, self._ownership = lake_of(settings, clock), Ownership(settings, clock, say=_say)
        self._log, self._signals = self._lake.tracking_log(), signals_of(settings, self._lake)
        self._judge = judge_of(settings, self._lake)
        self._copies = RememberedCopies(settings.copies_remembered)
        self._recorder = Recorder(settings, {TRACKING: settings.watermark.tick}, (), clock)
        self._looks_at = clock.monotonic()
        self._notes, self._in_lake = TickNotes(settings, clock), self._lake.failed_ticks()
        self._said: dict[str, object] = {}

    def tick(self) -> bool:
        """Pull from tracking, decide and publish the watermark, and print what is new. Return False if the tick failed.
        Pub/Sub then redelivers the messages that were not stored. Raises NewerFormat if a newer version wrote the
        lake."""
        began = self._clock.monotonic()
        self._recorder.begin(TRACKING)
        try:
            self._ownership.state()
            if began >= self._looks_at:
                self.check_options()
            tracked = self._track()
        except NewerFormat:  # nothing is written into a lake of a later version
            raise
        except Exception as error:
            failed = self._notes.failed(TRACKING, error, self._in_lake)
            self._recorder.ticked(TRACKING, self._clock.monotonic() - began, failed)
            self._say_once("failed", f"a tick failed; the next one tries again: {type(error).__name__}: {error}")
            return False
        self._recorder.ticked(TRACKING, self._clock.monotonic() - began)
        self._recorder.tracked(tracked)
        self._notes.good(TRACKING, self._in_lake, tracked.persisted.waiting.sentence())
        self._said.pop("failed", None)
        decision = tracked.decision
        self._say_once("decision", decision.sentence(), (decision.watermark, decision.reason), decision.at)
        self._say_once("problems", "; ".join(tracked.problems))
        return True

    def check_options(self) -> None:
        """Check the options of both subscriptions, and print the dangers (see `Drift`) as warnings. Raises
        ProvisionRefused if an option makes the watermark wrong, and PubSubError if the lookup fails."""
        if (found := self._pubsub.drift()).breaks:
            raise ProvisionRefused("; ".join(found.breaks))
        self._looks_at = self._clock.monotonic() + CHECKS_EVERY.total_seconds()
        self.warn(found.dangers)

    def warn(self, sentences: Sequence[str]) -> None:
        """Print the warnings, unless they are the same as at the previous call."""
        self._say_once("warnings", "; ".join(f"warning: {sentence}" for sentence in sentences))

    def close(self) -> None:
        """Send the newest metrics, return unstored messages to Pub/Sub, and close the connection."""
        self._recorder.close()
        if self._tracking is not None:
            self._tracking.close()
        self._clock.sleep(GIVES_BACK_SECONDS)
        self._pubsub.client().transport.close()

    def _track(self) -> Tracked:
        pubsub, settings = self._pubsub, self._settings
        pubsub.sweep()
        self._tracking = pubsub.tracking()
        return track(
            Settling(self._log, self._clock, {Side.TRACKING: self._tracking}, copies=self._copies),
            {Side.TRACKING: pubsub.tracking_backlog(), Side.BASE: pubsub.base_backlog()},
            self._judge,
            settings.policy,
            tick_budget(settings, Side.TRACKING),
            until_gone=pubsub.tracking_backlog("pulling"),
            spending=pubsub.spending(),
            signals=self._signals,
        )

    def _say_once(self, about: str, text: str, key: object = None, at: datetime | None = None) -> None:
        """Print a line about a subject, unless the last line about this subject had the same key. Without a key, the
        text is the key."""
        key = text if key is None else key
        if self._said.get(about) != key:
            self._said[about] = key
            if text:
                _say(text, at or self._clock.now())


def _say(text: str, at: datetime | None = None) -> None:
    print(f"{(at or SystemClock().now()).isoformat(timespec='seconds')} {printable(text)}", flush=True)
