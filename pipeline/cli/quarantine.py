"""What was rejected: `tidemark quarantine` shows it, `tidemark requeue` lands what passes by today's contract."""

import base64
from typing import Annotated, Any

from rich.progress import MofNCompleteColumn

from tidemark.pipeline.cli.options import AsJson, lake_of, landing_only, option, since_option, since_when
from tidemark.pipeline.cli.output import (
    columns,
    console,
    counted,
    facts_table,
    grid,
    print_json,
    progress_bar,
    safe,
    text_of,
)
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.ingest.requeue import Requeuer
from tidemark.pipeline.lake.tables.quarantine import EVERY, Rejected
from tidemark.pipeline.pubsub.schemas import reader_of
from tidemark.pipeline.quality.quarantined import newest_waiting, read_reasons
from tidemark.pipeline.settings import load_settings

MOST_MESSAGES = 10_000
"""The largest `--limit`: payloads are held in memory, and may be large."""

SHOWN = 160
"""The most characters of attributes and of a payload that people see. A detail is shown whole: its end gives advice."""

Reason = Annotated[RejectionReason | None, option("Only what has this reason.", case_sensitive=False)]
Since = Annotated[Any, since_option("what was rejected")]


@landing_only
def quarantine(
    reason: Reason = None,
    since: Since = None,
    limit: Annotated[int, option("The most messages to show.", min=1, max=MOST_MESSAGES)] = 20,
    as_json: AsJson = False,
) -> None:
    """Show what was rejected: how many messages for each reason, and the newest that wait, with their details.

    `tidemark requeue` lands what passes once the section `message` of the settings is mended.
    """
    settings, clock = load_settings(), SystemClock()
    lake, meant = lake_of(settings, clock), Rejected(reason, since_when(since, clock.now()))
    counts, newest = read_reasons(lake, meant), newest_waiting(lake, meant, limit)
    if as_json:
        messages = [_facts(row) for row in newest]
        print_json({"waiting": dict(counts.waiting), "requeued": dict(counts.requeued), "messages": messages})
        return
    names = sorted({*counts.waiting, *counts.requeued}, key=lambda name: (-counts.waiting.get(name, 0), name))
    told = ((name, counts.waiting.get(name, 0), counts.requeued.get(name, 0)) for name in names)
    terminal, table = console(), columns("reason", right=("waiting", "requeued"), rows=told, gap=2)
    terminal.print(table if names else "nothing was rejected")
    for row in newest:
        terminal.print(f"\n[bold]{safe(row['reason'])}[/]  published {safe(row['publish_time'])}")
        attributes = ", ".join(f"{name}={value}" for name, value in row["attributes"] or ())
        payload = (row["payload"] or b"")[: SHOWN + 1].decode(errors="backslashreplace")
        shown = (
            *(("detail", row["detail"]), ("message", row["message_id"]), ("rejected", row["landed_at"])),
            *(("ordering key", row["ordering_key"]), ("attributes", attributes), ("payload", payload)),
        )
        cut = {"attributes": SHOWN, "payload": SHOWN}
        rows = ((f"  [dim]{name}[/]", safe(value, cut.get(name))) for name, value in shown if value)
        terminal.print(grid(2, rows))


@landing_only
def requeue(
    reason: Reason = None,
    since: Since = None,
    dry_run: Annotated[bool, option("Only judge, and say what would land.", "--dry-run")] = False,
    as_json: AsJson = False,
) -> None:
    """Judge what waits in quarantine again, by the settings of now, and land what passes.

    What is below the watermark is late, and windows are computed again as `windows.recompute_missed` says. What still
    fails waits on. Safe while everything runs, to be stopped anywhere, and to repeat: what has landed is passed over.
    """
    settings, clock = load_settings(), SystemClock()
    lake, meant = lake_of(settings, clock), Rejected(reason, since_when(since, clock.now()))
    accepted = lake.accepted_schemas(settings.message.schema_names)
    requeuer = Requeuer.of(lake, reader_of(settings.contract, settings.pubsub, accepted), clock)
    with progress_bar(MofNCompleteColumn(), quiet=as_json) as progress:
        judging = progress.add_task("judging", total=requeuer.quarantine.rows_of(meant))
        done = requeuer.run(meant, dry_run=dry_run, tell=lambda rows: progress.advance(judging, rows))
    if meant == EVERY and not dry_run:
        lake.judged_by().note(settings.contract_digest, clock.now())
    facts = {
        "landed": done.landed,
        "late": done.late,
        "landed_before": done.there,
        "still_rejected": {reason.value: count for reason, count in done.rejected.items()},
        "of_another_kind": dict(done.of_another_kind),
    }
    if as_json:
        print_json({"dry_run": dry_run, **facts})
        return
    waiting = done.rejected.total()
    shown = {
        "would land" if dry_run else "landed": counted(done.landed, "heartbeat"),
        "late": f"{counted(done.late, 'heartbeat')} of them",
        "landed before": counted(done.there, "heartbeat"),
        "still rejected": counted(waiting, "message") + (f": {text_of(facts['still_rejected'])}" if waiting else ""),
        "of another kind": ", ".join(f"{counted(n, 'value')} of {name}" for name, n in done.of_another_kind.items()),
    }
    console().print(facts_table({name: value or "no value" for name, value in shown.items()}))


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    """A row for scripts. A payload that is not UTF-8 is in base64, under another name."""
    facts = {**row, "attributes": dict(row["attributes"] or ())}
    payload = facts.pop("payload") or b""
    try:
        return {**facts, "payload": payload.decode()}
    except UnicodeDecodeError:
        return {**facts, "payload_base64": base64.b64encode(payload).decode()}
