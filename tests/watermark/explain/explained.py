"""Logs for every way in which a watermark can stand, small enough to be explained by hand.

A message is published each second and happens a second before, unless a log says otherwise; the band is 10 s.
"""

from tests.watermark.builders import empty_at, published, reading, seconds
from tests.watermark.fold import EVERY_SECOND, Log, ticked
from tidemark.pipeline.watermark.policy import Policy


def steady() -> Log:
    """Both subscriptions near now, ticks every ten seconds."""
    return ticked((90, 88.25, 89.25), (100, 98.25, 99.25))


def straggler(policy: Policy | None = None) -> Log:
    """Base does not land what was published at second 50."""
    return ticked((90, 50.25), (100, 50.25), policy=policy)


def tracking_behind() -> Log:
    """Tracking has read half a minute less than there is, and base nearly as much."""
    return ticked((80, 78.25, 79.25), (130, 85.25, 90.25), policy=Policy(undecided=seconds(5)))


def idle(policy: Policy | None = None) -> Log:
    """Nothing has been published for three minutes."""
    return ticked((110,), (290,), policy=policy)


def idle_and_held() -> Log:
    """The same silence, which is set to hold."""
    return idle(Policy(idle="hold"))


def incomplete() -> Log:
    """Base holds two minutes that are older than tracking."""
    return ticked((100, 50.25), known_from=70)


def hole() -> Log:
    """Base names a message that tracking has acknowledged and never counted."""
    return ticked(
        (80, 49),
        (100, 50.5),
        messages=published((second, second - 1) for second in range(100) if not 50 <= second < 53),
    )


def no_data() -> Log:
    """The very beginning."""
    return ticked((6, 4.25), messages=published((second + 0.25, second - 0.75) for second in range(5)))


def stale() -> Log:
    """Base could not be read for seven minutes."""
    log = Log(messages=EVERY_SECOND)
    log.tick(100, base=95.25)
    log.read(520, None, reading(520))
    return log


def never_read() -> Log:
    """No reading was ever to be had of base."""
    log = Log(messages=EVERY_SECOND)
    log.read(100, None, reading(100))
    return log


def sought() -> Log:
    """Somebody sought base back by more than a minute."""
    return ticked((100, 95.25), (110, 20.25))


def released() -> Log:
    """The straggler was let go."""
    log = straggler()
    log.release(80, now=101)
    log.tick(110, base=50.25)
    return log


def pinned_after_a_release() -> Log:
    """A tick later, and the straggler is there still."""
    log = released()
    log.tick(120, base=50.25)
    return log


def frontier(policy: Policy | None = None) -> Log:
    """The tighter rule, with one stream that is half a minute late and one that is on time."""
    return ticked(
        (90, 88.25),
        (100, 98.25),
        messages=EVERY_SECOND + published((second + 0.5, second - 30) for second in range(0, 100, 5)),
        policy=Policy(rule="frontier") if policy is None else policy,
    )


def unchanged() -> Log:
    """A late stream is in the band, and the watermark came further before."""
    log = Log(messages=EVERY_SECOND)
    log.tick(100)
    log.publish(published([(101, 60)]))
    log.tick(105)
    return log


def idle_and_unchanged() -> Log:
    """Silence after a message that was minutes behind the others."""
    log = Log(messages=published((second, second) for second in range(100)))
    log.tick(104)
    log.publish(published([(105, -195)]))
    log.tick(230)
    return log


def late_within_the_band() -> Log:
    """Base is behind, and what pins was published a moment ago, half a minute late."""
    return ticked((100, 50.25), messages=EVERY_SECOND + published([(95.5, 40)]))


def sparse() -> Log:
    """Base is behind, and nothing has been published since what it holds."""
    return ticked((70, 50), messages=published((second, second - 1) for second in range(0, 51, 10)))


def frontier_within_the_backlog() -> Log:
    """The tighter rule; what base holds is the frontier itself."""
    return ticked(
        (85, 70),
        (88, 70),
        messages=published((second, second - 1) for second in range(0, 81, 10)),
        policy=Policy(rule="frontier"),
    )


def frontier_after_a_seek() -> Log:
    """Tracking was sought back to below what is summed up."""
    return ticked(
        (100,), (110, None, 40.25), (115, None, 80.25), policy=Policy(rule="frontier", near_real_time=seconds(60))
    )


def incomplete_on_the_service() -> Log:
    """Base is past where tracking begins, but by less than the slack."""
    return ticked((100, 75.25), policy=Policy(reading_slack=seconds(1), base_slack=seconds(10)), known_from=70)


def on_the_service() -> Log:
    """Slacks are taken off, as on Google's service."""
    return straggler(Policy(reading_slack=seconds(1), base_slack=seconds(10)))


def clock_ahead() -> Log:
    """The machine's clock is 15 s ahead of Pub/Sub's."""
    log = Log(messages=EVERY_SECOND)
    for server in (90, 100):
        log.read(server + 15, empty_at(server + 0.05, ahead=15), empty_at(server, ahead=15))
    return log


def clock_set_back() -> Log:
    """The machine's clock was an hour ahead, and is right again."""
    log = Log(messages=EVERY_SECOND)
    log.read(90 + 3600, empty_at(90.05, ahead=3600), empty_at(90, ahead=3600))
    log.read(100, empty_at(100.05, ahead=0), empty_at(100, ahead=0))
    return log


SITUATIONS = {
    name: build
    for name, build in list(globals().items())
    if callable(build) and getattr(build, "__module__", None) == __name__
}
"""Every one of them by its name."""
