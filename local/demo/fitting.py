"""Checks that a pipeline's settings read the messages of a shape as the publisher intends."""

from collections import Counter
from dataclasses import replace
from datetime import datetime

import numpy as np
from google.pubsub_v1 import PubsubMessage

from tidemark.local.demo.shapes.json_shapes import JsonObject
from tidemark.local.demo.shapes.shape import Shape, ShapeName
from tidemark.local.demo.synthetic_beats import SyntheticSource, compose, messages
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.errors import InvalidSettings, TidemarkError
from tidemark.pipeline.ingest.samples import UNDECIDED, Sample, Trial, try_samples
from tidemark.pipeline.pubsub.pulls import table_of
from tidemark.pipeline.pubsub.schemas import reader_of
from tidemark.pipeline.settings import Settings, config_file
from tidemark.pipeline.settings_message import MessageSettings

Meant = tuple[str | None, int | None, str | None]
"""The intended values of a heartbeat: its stream, its event time in microseconds, and its publisher id."""

STREAMS, BEATS = 12, 12
"""Number of streams in a check, and number of heartbeats per stream. Each stream has enough heartbeats to change to the
second schema revision."""

PUBLISHER_SAYS = ("event_time", "stream_id", "publisher_id")
"""The settings in `[message]` that name the attributes of JSON-shaped messages."""


def shape_for(message: MessageSettings, name: ShapeName) -> Shape:
    """Return the message format (shape) with this name. JSON messages have the attributes from which the settings read
    time and ids. If the settings do not read all these values from attributes, the attributes have default names."""
    if name is not ShapeName.JSON:
        from tidemark.local.demo.shapes.all_shapes import SHAPES  # imports fastavro

        return SHAPES[name]
    places = [getattr(message, place) for place in PUBLISHER_SAYS]
    if not all(isinstance(place, str) and place.startswith("attribute:") for place in places):
        return JsonObject()
    return JsonObject(*(place.removeprefix("attribute:") for place in places))


def check_fit(source: SyntheticSource, name: ShapeName, settings: Settings, now: datetime) -> list[str]:
    """Return warnings about fields that the source's messages do not have. Raises InvalidSettings if the messages
    would be misread with these settings; the error names settings that would read them correctly."""
    reader = reader_of(settings.contract, settings.pubsub, once=True)
    trial, misfit = trial_of(source, reader, now)
    if misfit is None:
        absent = ", ".join([*trial.absent, *trial.of_another_kind])
        return [f"no message of the shape {name} has a value for {absent} of [message.fields]"] if absent else []
    from tidemark.local.demo.shapes.all_shapes import SHAPES

    fits = []
    for other in ShapeName:
        tried, wrong = trial_of(replace(source, shape=SHAPES[other]), reader, now)
        fits += [other] * (wrong is None and not tried.absent)
    shape = SHAPES[name]
    do = f"publish with --shape {fits[0]}, which the settings read; or put" if fits else "put"
    files = f" and add the files {', '.join(shape.files)}" if shape.files else ""
    raise InvalidSettings(
        f"the settings misread messages of the shape {name}: {misfit}. {do[0].upper()}{do[1:]} "
        f"the settings below under [message] in {config_file()}{files} (`tidemark init --shape {name} FOLDER` writes "
        f"a folder with all of this):\n\n"
        f"{shape.settings.strip()}"
    )


def trial_of(source: SyntheticSource, reader: HeartbeatReader, now: datetime) -> tuple[Trial, str | None]:
    """Compose heartbeats of the source, and read them as the pipeline would. Return the result, and a sentence about
    the first heartbeat that is not read as intended (None if all are). Raises TidemarkError if a message cannot be
    judged now, for example because protoc was killed."""
    whole = replace(source, streams=STREAMS, broken=0, duplicates=0, silent=0)
    rows = np.concatenate(list(messages(whole, now - BEATS * source.period, now)))
    composed = compose(whole, rows)
    meant: Counter[Meant] = Counter(
        (beat.stream, beat.event_ms * 1000, beat.heartbeat_id) for one in composed for beat in one.beats
    )
    latest = from_us(int(rows["publish_us"].max()))
    samples = []
    for number, one in enumerate(composed):
        message = PubsubMessage.pb()(data=one.payload, attributes=one.attributes)
        message.publish_time.FromDatetime(latest)
        samples.append(Sample(str(number), table_of([message])))
    trial = try_samples(samples, reader, now)
    for verdict in trial.verdicts:
        if verdict.reason == UNDECIDED:
            raise TidemarkError(f"cannot check now how the settings read messages: {verdict.detail}; try again")
        if not verdict.is_heartbeat:
            return trial, f"a message would be rejected ({verdict.reason}: {verdict.detail})"
    read: Counter[Meant] = Counter((one.stream_id, _us(one.event_time), one.publisher_id) for one in trial.heartbeats)
    for stream, event_us, publisher_id in meant - read:
        other = next((one for one in trial.heartbeats if _us(one.event_time) == event_us), trial.heartbeats[0])
        return trial, (
            f"a heartbeat of the stream {stream} with the id {publisher_id} would be read as one of the stream "
            f"{other.stream_id} with the id {other.publisher_id}"
        )
    return trial, None


def _us(time: datetime | None) -> int | None:
    return None if time is None else to_us(time)
