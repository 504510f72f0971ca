"""`tidemark quarantine`: show rejected messages, or land those that pass with the current settings."""

import base64
from datetime import datetime
from typing import Annotated, Any

from rich.progress import MofNCompleteColumn

from tidemark.pipeline.cli.here import Here, here
from tidemark.pipeline.cli.options import AsJson, only_with, option, since_option
from tidemark.pipeline.cli.output import columns, facts_table, grid, printed, progress_bar, safe, text_of
from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.figures import counted
from tidemark.pipeline.ingest.requeue import Requeuer
from tidemark.pipeline.ingest.settle import judge_of
from tidemark.pipeline.lake.tables.quarantine import EVERY, Rejected
from tidemark.pipeline.quality.recent import newest_waiting, read_reasons

MOST_MESSAGES = 10_000
"""Maximum value of `--limit`, because payloads are held in memory and may be large."""

SHOWN = 160
"""Maximum number of printed characters of a message's attributes, and of its payload."""


def quarantine(
    reason: Annotated[RejectionReason | None, option("Only messages with this reason.", case_sensitive=False)] = None,
    since: Annotated[datetime | None, since_option("Only messages rejected since")] = None,
    limit: Annotated[int, option("Maximum number of messages to show.", min=1, max=MOST_MESSAGES)] = 20,
    requeue: Annotated[bool, option("Judge waiting messages again, and land those that pass.", "--requeue")] = False,
    dry_run: Annotated[bool, option("With --requeue: only judge, and report what would land.", "--dry-run")] = False,
    as_json: AsJson = False,
) -> None:
    """Show rejected messages and why they were rejected, or land those that pass now.

    With --requeue, messages that pass the current [message] settings land; the others stay in quarantine. A message
    below the watermark lands late; windows.recompute_missed says whether its window is recomputed. You can run, stop
    and repeat --requeue at any time: messages that have already landed are skipped.
    """
    at = here("quarantine")
    selection = Rejected(reason, since)
    if requeue:
        _requeue(at, selection, dry_run=dry_run, as_json=as_json)
        return
    only_with("--requeue", dry_run=dry_run)
    counts, newest = read_reasons(at.lake, selection), newest_waiting(at.lake, selection, limit)
    messages = [_facts(row) for row in newest]
    facts = {"waiting": dict(counts.waiting), "requeued": dict(counts.requeued), "messages": messages}
    terminal = printed(facts, as_json=as_json)
    names = sorted({*counts.waiting, *counts.requeued}, key=lambda name: (-counts.waiting.get(name, 0), name))
    by_reason = ((name, counts.waiting.get(name, 0), counts.requeued.get(name, 0)) for name in names)
    table = columns("reason", right=("waiting", "requeued"), rows=by_reason, gap=2)
    terminal.print(table if names else "nothing was rejected" if selection == EVERY else "no rejected message matches")
    for row in newest:
        terminal.print(f"\n[bold]{safe(row['reason'])}[/]  published {safe(row['publish_time'])}")
        attributes = ", ".join(f"{name}={value}" for name, value in row["attributes"] or ())
        payload = (row["payload"] or b"")[: 4 * SHOWN + 4].decode(errors="backslashreplace")  # 4 bytes a character
        shown = (
            *(("detail", row["detail"]), ("message", row["message_id"]), ("rejected", row["landed_at"])),
            *(("ordering key", row["ordering_key"]), ("attributes", attributes), ("payload", payload)),
        )
        cut = {"attributes": SHOWN, "payload": SHOWN}
        rows = ((f"  [dim]{name}[/]", safe(value, cut.get(name))) for name, value in shown if value)
        terminal.print(grid(2, rows))


def _requeue(at: Here, selection: Rejected, *, dry_run: bool, as_json: bool) -> None:
    settings, lake = at.settings, at.lake
    requeuer = Requeuer(lake, judge_of(settings, lake), at.clock)
    with progress_bar(MofNCompleteColumn(), quiet=as_json) as progress:
        judging = progress.add_task("judging", total=requeuer.quarantine.rows_of(selection))
        done = requeuer.run(selection, dry_run=dry_run, tell=lambda rows: progress.advance(judging, rows))
    if selection == EVERY and not dry_run:
        lake.judged_by().note(settings.judged_by, at.clock.now())
    still_rejected = {reason.value: count for reason, count in done.rejected.items()}
    facts = {
        "dry_run": dry_run,
        "landed": done.heartbeats,
        "late": done.late,
        "landed_before": done.there,
        "still_rejected": still_rejected,
        "of_another_kind": dict(done.of_another_kind),
    }
    waiting = done.rejected.total()
    others = ", ".join(f"{counted(n, 'value')} of {name}" for name, n in done.of_another_kind.items())
    shown = {
        "would land" if dry_run else "landed": counted(done.heartbeats, "heartbeat"),
        "late": f"{done.late:,} of them",
        "landed before": counted(done.there, "heartbeat"),
        "still rejected": counted(waiting, "message") + (f": {text_of(still_rejected)}" if waiting else ""),
        "of another kind": others or "no value",
    }
    printed(facts, as_json=as_json).print(facts_table(shown))


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    """Return a rejected message as plain values for JSON. A payload that is not UTF-8 is returned in base64, as
    `payload_base64`."""
    facts = {**row, "attributes": dict(row["attributes"] or ())}
    payload = facts.pop("payload") or b""
    try:
        return {**facts, "payload": payload.decode()}
    except UnicodeDecodeError:
        return {**facts, "payload_base64": base64.b64encode(payload).decode()}
