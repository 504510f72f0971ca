"""A pipeline that runs already: whether it decides, and by the settings that are here."""

from collections.abc import Iterator

from tidemark.pipeline.doctor.finding import Level, Said, Setup, ok
from tidemark.pipeline.durations import rough
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.quality.failing import read_ticks


def check_running(setup: Setup) -> Iterator[Said]:
    """By the lake, and by what its process says outside of it. What fails is broken where that process lives; otherwise
    it may have been stopped."""
    settings, now = setup.settings, setup.clock.now()
    lake = Lake(settings.lake, settings.message.kinds, setup.clock)
    try:
        record = lake.tracking_log().newest_decision()
        ticks = read_ticks(lake, settings, None if record is None else record.decision, now)
    except LakeError:  # the checks of the lake and of its version say it
        return
    yield from ((Level.WARNING, one.sentence()) for one in ticks.failing if one.waits)
    bad = Level.BROKEN if ticks.is_alive else Level.WARNING
    yield from ((bad, said) for said in ticks.failures)
    if ticks.settings:
        yield Level.WARNING, ticks.settings
    if record is not None and not ticks.failures:
        yield ok(f"the newest decision is {rough(now - record.decision.at)} old")
