"""`tidemark try`: show how the settings read sample messages, from files or from the topic."""

import json
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tidemark.pipeline.cli.here import lake_of
from tidemark.pipeline.cli.options import AsJson, apart_from, duration_option, only_with, option, positive, time_option
from tidemark.pipeline.cli.output import columns, console, printed, safe, warn
from tidemark.pipeline.clock import Clock, SystemClock, format_duration, iso
from tidemark.pipeline.figures import counted
from tidemark.pipeline.ingest.samples import Sample, SampleReading, SampleVerdict, Trial, read_samples, try_samples
from tidemark.pipeline.lake.owner import AcceptedSchemas
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.sampling import sample_messages
from tidemark.pipeline.pubsub.schemas import reader_of
from tidemark.pipeline.settings import Settings, load_settings

NOT_ALL_PASS = 3
"""Exit code if a sample is rejected or undecided, or if there is no sample. Codes 1 and 2 mean errors."""

MOST_SAMPLED, SAMPLE_WAIT = 1000, timedelta(seconds=30)
"""Maximum number of messages to sample from the topic, and default time to wait for them."""

SHOWN = 40
"""Maximum number of characters printed per value."""


def try_(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE...", help="Files, or folders of files.")] = None,
    attribute: Annotated[
        list[str] | None, option("An attribute to add to bare payloads; repeat for more.", metavar="KEY=VALUE")
    ] = None,
    published: Annotated[datetime | None, time_option("The publish time of every message.")] = None,
    sample: Annotated[
        int | None, option("Instead of files, try this many new messages of the topic.", min=1, max=MOST_SAMPLED)
    ] = None,
    timeout: Annotated[
        timedelta | None, duration_option("With --sample: wait at most this long; 30s if not given.", parser=positive)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how the settings read sample messages.

    Prints each message's stream, event time and fields, or why the message is rejected.

    A file contains one payload, a JSON payload per line, an Avro object container, or messages as `gcloud pubsub
    subscriptions pull --format=json` prints them. Without --published, the publish time is the one in the file, or now.

    --sample creates a temporary subscription, so it shows only messages published from then on.

    No message lands. Exit code 0: all samples are heartbeats; 3: a sample is rejected or undecided, or there is none.
    """
    if sample is not None:
        apart_from("--sample", files=files, attribute=attribute, published=published)
    else:
        only_with("--sample", timeout=timeout)
        if not files:
            raise typer.BadParameter("name a file, or use --sample")
    settings, clock = load_settings(), SystemClock()
    now = clock.now()
    if sample is not None:
        samples = _of_the_topic(settings, clock, sample, timeout or SAMPLE_WAIT, quiet=as_json)
    else:
        reading = SampleReading(now, dict(map(_attribute, attribute or ())), published, settings.message.payload)
        samples = read_samples(files or (), reading)
    accepted = None
    if settings.contract.payload.asks_for_schemas:  # no other trial needs the lake
        accepted = AcceptedHere(lake_of(settings).objects(), settings.message.schema_names)
    reader = reader_of(settings.contract, settings.pubsub, accepted, once=True)
    trial = try_samples(samples, reader, clock.now() if sample else now)
    _print(trial, settings, printed(trial_facts(trial), as_json=as_json, exact=True))
    if trial.rejected or trial.undecided or not trial.heartbeats:
        raise typer.Exit(NOT_ALL_PASS)


class AcceptedHere(AcceptedSchemas):
    """Like AcceptedSchemas, but writes nothing to the lake: `accept` changes only this object."""

    def accept(self, name: str) -> None:
        self._names |= {name}


def _attribute(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"--attribute {written}: write KEY=VALUE, such as stream_id=sensor-7")
    return name, value


def _of_the_topic(settings: Settings, clock: Clock, count: int, wait: timedelta, *, quiet: bool) -> list[Sample]:
    """Return up to `count` messages published to the topic within `wait`. Raises PubSubError if Pub/Sub fails."""
    pubsub = settings.pubsub
    if not quiet:
        said = f"waiting at most {format_duration(wait)} for {counted(count, 'message')} of {pubsub.topic_path}"
        said += f" (filter: {pubsub.filter})" * bool(pubsub.filter)
        console().print(f"[dim]{safe(said)}; only messages published from now on count[/]", soft_wrap=True)
    with subscriber_client(*pubsub.server) as client:
        messages = sample_messages(client, pubsub, clock, count, wait)
    return [Sample(message["message_id"][0].as_py(), message) for message in messages]


def trial_facts(trial: Trial) -> dict[str, Any]:
    """Return the verdicts and the summary as plain values for JSON."""
    return {
        "samples": trial.samples,
        "heartbeats": len(trial.heartbeats),
        "rejected": dict(trial.rejected),
        "undecided": trial.undecided,
        "absent_fields": list(trial.absent),
        "fields_of_another_kind": list(trial.of_another_kind),
        "verdicts": [{"verdict": verdict.verdict, **asdict(verdict)} for verdict in trial.verdicts],
    }


def _print(trial: Trial, settings: Settings, terminal: Console) -> None:
    kinds = settings.message.kinds
    if heartbeats := trial.heartbeats:
        has_ids = any(verdict.publisher_id for verdict in heartbeats)
        names = ["sample", "stream", "event time", *(["publisher id"] if has_ids else [])]
        table = columns(*names, *(f"{name} ({kind})" for name, kind in kinds.items()))
        for verdict in heartbeats:
            event_time = None if verdict.event_time is None else iso(verdict.event_time, exact=True)
            known = [verdict.sample, verdict.stream_id, event_time]
            ids = [verdict.publisher_id] if has_ids else []
            table.add_row(*(safe(value, SHOWN) for value in (*known, *ids)), *(_field(verdict, name) for name in kinds))
        terminal.print(table)
    for verdict in trial.verdicts:
        if not verdict.is_heartbeat:
            text = f"[bold]{safe(verdict.reason)}[/]  {safe(verdict.sample)}: {safe(verdict.detail)}"
            terminal.print(text, soft_wrap=True)
    if trial.absent:
        warn(terminal, f"no sample has a value for {', '.join(trial.absent)}: check [message.fields]")
    if trial.of_another_kind:
        others = ", ".join(trial.of_another_kind)
        warn(terminal, f"every value of {others} has another type than [message.fields] says")
    undecided = f", {trial.undecided:,} undecided" if trial.undecided else ""
    terminal.print(
        f"[bold]{counted(trial.samples, 'sample')}: {counted(len(trial.heartbeats), 'heartbeat')}, "
        f"{trial.rejected.total():,} rejected{undecided}[/]"
    )


def _field(verdict: SampleVerdict, name: str) -> str:
    if name in verdict.of_another_kind:
        return "[yellow]another kind[/]"
    value = verdict.fields[name]
    return safe(value if isinstance(value, str) else json.dumps(value), SHOWN)
