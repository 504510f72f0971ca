"""`tidemark publish`: publish synthetic heartbeats."""

import signal
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Annotated, Any

from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn

from tidemark.local.demo.fitting import check_fit, shape_for
from tidemark.local.demo.shapes.shape import ShapeName
from tidemark.local.demo.synthetic import publish as publish_synthetic
from tidemark.local.demo.synthetic_beats import MOST_STREAMS, SyntheticSource
from tidemark.pipeline.cli.options import AsJson, Span, duration_option, option, since_option
from tidemark.pipeline.cli.output import facts_table, printed, progress_bar, text_of, warn
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.pubsub.connection import publisher_client
from tidemark.pipeline.settings import load_settings

OF_THE_SOURCE = ["streams", "period", "jitter", "lag", "duplicates", "broken", "stragglers", "straggler_delay", "seed"]
"""Options of `publish` that are also parameters of SyntheticSource, with the same names."""

SHARE: dict[str, Any] = {"min": 0, "max": 1}


def publish(
    streams: Annotated[int, option("The number of streams.", min=1, max=MOST_STREAMS)] = 10_000,
    period: Annotated[timedelta, duration_option("The time between a stream's heartbeats.")] = Span(seconds=30),
    since: Annotated[datetime | None, since_option("Begin in the past, at full speed", show_default="0s")] = None,
    lasting: Annotated[timedelta, duration_option("How long to publish live heartbeats.", "--for")] = Span(minutes=5),
    jitter: Annotated[timedelta, duration_option("Delay each message at random, by at most this.")] = Span(seconds=3),
    lag: Annotated[timedelta, duration_option("Additional delay of every message.")] = Span(0),
    duplicates: Annotated[float, option("Share of messages published twice, half of them 60s later.", **SHARE)] = 0.01,
    broken: Annotated[float, option("Share of invalid messages; at least 12 messages unless 0.", **SHARE)] = 0.0001,
    stragglers: Annotated[float, option("Share of messages delayed further, by --straggler-delay.", **SHARE)] = 0.0,
    straggler_delay: Annotated[timedelta, duration_option("The additional delay of stragglers.")] = Span(minutes=1),
    speed_up: Annotated[float | None, option("Publish the past at most this fast; 1: real time.", min=0.001)] = None,
    seed: Annotated[int, option("The same seed gives the same heartbeats.", min=0)] = 20_260_101,
    shape: Annotated[ShapeName, option("The format of messages. The settings must read it.")] = ShapeName.JSON,
    truth: Annotated[Path, option("The Parquet file that records what was published.")] = Path("build/truth.parquet"),
    as_json: AsJson = False,
) -> None:
    """Publish synthetic heartbeats, and record them in a file."""
    arguments, settings, clock, terminal = locals(), load_settings(), SystemClock(), Console(stderr=True)
    of_source = {name: arguments[name] for name in OF_THE_SOURCE}
    source = SyntheticSource(shape=shape_for(settings.message, shape), **of_source)
    now = clock.now()
    begin = since or now
    warn(terminal, *check_fit(source, shape, settings, now))
    stopped = Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    with progress_bar(TextColumn("{task.fields[sent]}"), TimeElapsedColumn()) as progress:
        task = progress.add_task("publishing", total=(now + lasting - begin).total_seconds(), sent="")
        published = publish_synthetic(
            source,
            publisher_client(*settings.pubsub.server),
            settings.pubsub.topic_path,
            clock,
            begin,
            now + lasting,
            truth_path=truth,
            speed_up=speed_up,
            progress=lambda sent, reached: progress.update(
                task, completed=(reached - begin).total_seconds(), sent=f"{sent:,} sent, at {iso(reached)}"
            ),
            stop=stopped.is_set,
        )
    if not published.messages:
        warn(
            terminal,
            f"no message was due in {text_of(now + lasting - begin)}: each stream publishes every "
            f"{text_of(period)}; name a longer --for, or begin earlier with --since 5m",
        )
    facts = {
        "published": published.messages,
        "heartbeats": published.heartbeats,
        "duplicates": published.duplicates,
        "broken": dict(published.broken),
        "messages_per_second": round(published.messages_per_second, 1),
        "truth": str(truth),
    }
    printed(facts, as_json=as_json).print(facts_table(facts))
