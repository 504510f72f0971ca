"""Which streams are to blame for disorder, in words; streams are named only where they are few."""

from collections.abc import Sequence
from itertools import accumulate

from pipeline.durations import format_duration
from pipeline.tuning.disorder import Disorder
from pipeline.tuning.phrases import percent, words
from pipeline.tuning.stream_disorder import Side

FEW_STREAMS = 0.1
"""At most this share of all streams are few enough to blame."""

MOST_STREAMS = 0.5
"""Names of more than this share of the streams, or of the slow or fast ones, set nobody apart."""

NEARLY_ALL = 0.8
"""A few streams are to blame if they have at least this share of the slow or fast messages."""


def blame_sentence(disorder: Disorder, side: Side) -> str | None:
    """Which streams are slow, or have clocks that run fast. None where the source names no streams."""
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
