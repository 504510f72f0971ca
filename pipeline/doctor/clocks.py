"""Compares this machine's clock with that of the services, by the `Date` header of a response."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

from tidemark.pipeline.clock import format_duration
from tidemark.pipeline.doctor.bucket import bucket_url
from tidemark.pipeline.doctor.finding import Said, Setup, broken, ok, warning
from tidemark.pipeline.doctor.rest import PUBSUB, Answer, Silent, ask

RESOLUTION = timedelta(seconds=1)
"""The header `Date` has whole seconds."""

AGREES = timedelta(seconds=1)
"""Differences up to this are not reported."""


def check_clock(setup: Setup) -> Iterator[Said]:
    """Compare with Pub/Sub's clock; with an emulator, compare with the clock of Cloud Storage if the lake is in a
    bucket. Silent if the service does not answer: other checks report that."""
    settings = setup.settings
    with suppress(Silent):
        if not settings.emulated:
            yield from compared(setup, ask(PUBSUB, setup.clock, with_credentials=False), "Pub/Sub")
        elif settings.lake.folder is None:
            answer = ask(bucket_url(settings.lake), setup.clock, with_credentials=settings.lake.endpoint is None)
            yield from compared(setup, answer, "Cloud Storage")
        else:
            yield ok("neither the emulator nor the lake has a clock to compare with")


def compared(setup: Setup, answer: Answer, whose: str) -> Iterator[Said]:
    """Report the least difference between this machine's clock and a server's."""
    if answer.server_at is None:
        yield warning(f"{whose} sends no time in its responses, so this machine's clock could not be compared")
        return
    ahead = answer.asked_at - (answer.server_at + RESOLUTION)
    behind = answer.server_at - answer.answered_at
    near = setup.settings.policy.near_real_time
    remedy = "let NTP set the machine's clock (`timedatectl set-ntp true`)"
    if ahead > near:
        yield broken(
            f"this machine's clock is {_written(ahead)} ahead of {whose}'s, more than "
            f"{format_duration(near)}: the watermark holds (HELD_CLOCK_SKEW); {remedy}"
        )
    elif max(ahead, behind) > AGREES:
        which = "ahead of" if ahead > behind else "behind"
        yield warning(f"this machine's clock is {_written(max(ahead, behind))} {which} {whose}'s: {remedy}")
    else:
        yield ok(f"this machine's clock agrees with {whose}'s to about a second")


def _written(difference: timedelta) -> str:
    return format_duration(timedelta(seconds=round(difference.total_seconds())))
