"""Sentences that name the streams to blame for disorder, if they are few."""

from collections.abc import Sequence
from itertools import accumulate

from tidemark.pipeline.clock import format_duration
from tidemark.pipeline.lake.tables.quarantine import RejectedPayload, by_stream
from tidemark.pipeline.phrases import percent, words
from tidemark.pipeline.tuning.disorder import Disorder
from tidemark.pipeline.tuning.stream_disorder import Side

SECOND_US = 1_000_000

FEW_STREAMS = 0.1
"""Largest share of all streams that is few enough to blame."""

MOST_STREAMS = 0.5
"""Largest share of the streams, or of the slow or fast ones, that is named."""

NEARLY_ALL = 0.8
"""A few streams are to blame if they sent at least this share of the slow or fast messages."""

MOST_LAG_LESS = 0.99
"""A rejected message delays the watermark more than others if it lags more than this share of the landed messages."""

STREAMS_NAMED = 5
"""Most streams of rejected messages that are named: those with the most messages."""


def those_that_delay(rejected: Sequence[RejectedPayload], disorder: Disorder) -> list[RejectedPayload]:
    """Return the messages with a rejected payload that lag more than nearly all landed messages."""
    usual_us = disorder.lag.quantile(MOST_LAG_LESS) * SECOND_US
    return [message for message in rejected if message.lag_us > usual_us]


def rejected_sentence(rejected: Sequence[RejectedPayload], disorder: Disorder) -> str | None:
    """Name the streams whose messages hold the watermark although their payload is rejected. None if there are no such
    messages."""
    delaying = those_that_delay(rejected, disorder)
    if not delaying:
        return None
    streams = by_stream(delaying)
    named = [f"{count:,} of {stream}" for stream, count in streams.items()]
    if len(named) > STREAMS_NAMED:
        others = sum(list(streams.values())[STREAMS_NAMED:])
        named = [*named[:STREAMS_NAMED], f"{others:,} of {len(named) - STREAMS_NAMED:,} other streams"]
    worst = words(max(message.lag_us for message in delaying) / SECOND_US)
    return (
        "Messages with readable times whose payload was rejected lag more than 99 % of the landed messages, up to "
        f"{worst}: {_listed(named)}. Those that lag more than the band do not hold the watermark, unless tracking is "
        "not given their payload; the others hold it like any message."
    )


def blame_sentence(disorder: Disorder, side: Side) -> str | None:
    """Name the streams that are slow, or have clocks that run fast. None if the source names no streams."""
    if not disorder.streams:
        return None
    found, where = disorder.sides[side], f"{'behind' if side == 'slow' else 'ahead of'} the typical one"
    worst, messages, streams = found.worst, found.beyond_band, found.streams
    if not messages:
        band = format_duration(disorder.band)
        return f"No stream is {side}: no message is to blame for more than the band of {band} by being {where}."
    share = percent(messages / disorder.messages)
    if not streams:
        return f"No stream is {side} by more than the band; {share} of the messages are, and have no stream."
    head = (
        f"{streams:,} of {disorder.streams:,} streams {'is' if streams == 1 else 'are'} {side} by more than the band: "
        f"{share} of the messages, up to {words(found.max_seconds)} {where}"
    )
    names = [each.stream for each in worst]
    if streams <= len(worst) and streams <= max(1, disorder.streams * MOST_STREAMS):
        return f"{head}. {'It is' if streams == 1 else 'They are'} {_listed(names[:streams])}."
    few = max(1, min(disorder.streams * FEW_STREAMS, streams * MOST_STREAMS))
    blamed = list(accumulate(each.blame(side)[0] for each in worst))
    needed = next((number for number, theirs in enumerate(blamed, 1) if theirs >= NEARLY_ALL * messages), None)
    if needed is not None and needed <= few:
        return f"{head}; {percent(blamed[needed - 1] / messages)} of these are of {_listed(names[:needed])}."
    if streams > disorder.streams * FEW_STREAMS:
        return f"{head}; that is spread over too many streams for a few to be to blame."
    return f"{head}; the worst are {_listed(names[:3])}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
