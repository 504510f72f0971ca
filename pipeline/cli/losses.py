"""What is late, missed and lost, as `tidemark status` says it."""

from typing import Any

from pipeline.quality.status import Losses


def loss_facts(losses: Losses) -> dict[str, Any]:
    """The counts: late ones of the last day, lost ones of the last hour, missed and stale ones all."""
    missed, late, lost = losses.missed, losses.late, losses.lost
    return {
        "late": late.total,
        "late_copies": late.copies,
        "late_since": late.since,
        "missed": missed.total,
        "missed_and_mended": missed.mended,
        "windows_stale": len(missed.stale),
        "first_stale_window": missed.stale[0].window.key if missed.stale else None,
        "lost_at_least": lost.at_least,
        "lost_at_most": lost.at_most,
        "lost_since": lost.since,
    }


def loss_details(losses: Losses) -> dict[str, Any]:
    """The same by window, by stream and by minute."""
    missed, late = losses.missed, losses.late
    return {
        "late_by_window": dict(late.by_window),
        "late_by_stream": dict(late.by_stream),
        "missed_by_window": dict(missed.by_window),
        "missed_by_stream": dict(missed.by_stream),
        "stale_windows": [
            {
                "window": stale.window.key,
                "missed": stale.missed,
                "missed_before": stale.missed_before,
                "computed_from": stale.computed_from,
            }
            for stale in missed.stale
        ],
        "lost_by_minute": [
            {
                "minute": minute.start,
                "tracked": minute.tracked,
                "landed": minute.landed,
                "at_least": minute.at_least,
                "at_most": minute.at_most,
            }
            for minute in losses.lost.minutes
        ],
    }
