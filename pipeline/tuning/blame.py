"""Who is to blame for disorder, in words: which streams are slow or fast, where it is few of them."""

from collections.abc import Sequence
from itertools import accumulate

from pipeline.durations import format_duration
from pipeline.tuning.disorder import Disorder
from pipeline.tuning.phrases import percent, words
from pipeline.tuning.stream_disorder import Side, StreamDisorder

FEW_STREAMS = 0.1
"""Of all streams: more than so many are not a few to blame."""

MOST_STREAMS = 0.5
"""Of all streams, or of those that are slow or fast: more than so many are not told from the others by a name."""

NEARLY_ALL = 0.8
"""Of the messages that are slow or fast: so many must be of a few streams for these to be the ones to blame."""


def slow_sentence(disorder: Disorder) -> str | None:
    """Who is slow, in words; None where the source names no streams."""
    return _blame(
        disorder, disorder.slowest, disorder.slow_beyond_band, disorder.slow_max_seconds, disorder.slow_streams, "slow"
    )


def fast_sentence(disorder: Disorder) -> str | None:
    """Whose clocks run fast, in words; None where the source names no streams."""
    return _blame(
        disorder, disorder.fastest, disorder.fast_beyond_band, disorder.fast_max_seconds, disorder.fast_streams, "fast"
    )


def _blame(
    disorder: Disorder,
    worst: Sequence[StreamDisorder],
    messages: int,
    most_seconds: float,
    streams: int,
    which: Side,
) -> str | None:
    if not disorder.streams:
        return None
    band = format_duration(disorder.band)
    where = "behind the typical one" if which == "slow" else "ahead of the typical one"
    if not messages:
        return f"No stream is {which}: no message is to blame for more than the band of {band} by being {where}."
    if not streams:
        share = percent(messages / disorder.messages)
        return f"No stream is {which} by more than the band; {share} of the messages are, and have no stream."
    head = (
        f"{streams:,} of {disorder.streams:,} streams {'is' if streams == 1 else 'are'} {which} by more than the band: "
        f"{percent(messages / disorder.messages)} of the messages, up to {words(most_seconds)} {where}"
    )
    if streams <= len(worst) and streams <= max(1, disorder.streams * MOST_STREAMS):
        names = [each.stream for each in worst[:streams]]
        return f"{head}. {'It is' if streams == 1 else 'They are'} {_listed(names)}."
    few = max(1, min(disorder.streams * FEW_STREAMS, streams * MOST_STREAMS))
    if culprits := _culprits(worst, messages, few, which):
        share = percent(sum(beyond_band(each, which) for each in culprits) / messages)
        return f"{head}; {share} of these are of {_listed([each.stream for each in culprits])}."
    if streams > disorder.streams * FEW_STREAMS:
        return f"{head}; that is spread over too many streams for a few to be to blame."
    return f"{head}; the worst are {_listed([each.stream for each in worst[:3]])}."


def _culprits(
    worst: Sequence[StreamDisorder], messages: int, at_most_streams: float, which: Side
) -> Sequence[StreamDisorder]:
    """The fewest streams that have nearly all of the messages that are to blame; none where those are not few."""
    for number, theirs in enumerate(accumulate(beyond_band(each, which) for each in worst), start=1):
        if number > at_most_streams:
            break
        if theirs >= NEARLY_ALL * messages:
            return worst[:number]
    return ()


def beyond_band(stream: StreamDisorder, which: Side) -> int:
    """How many of a stream's messages are to blame for more than the band."""
    return stream.slow_beyond_band if which == "slow" else stream.fast_beyond_band


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
