"""Logs for every way in which a watermark can stand, small enough to be explained by hand.

A message is published each second and happens a second before, unless a log says otherwise; the band is 10 s.
"""

from tests.watermark.builders import empty_at, published, reading, seconds
from tests.watermark.fold import Log
from tidemark.pipeline.watermark.policy import Policy

EVERY_SECOND = published((second + 0.25, second - 0.75) for second in range(100))


def steady() -> Log:
    """Both subscriptions near now, ticks every ten seconds."""
    log = Log()
    log.publish(EVERY_SECOND)
    log.tick(90, base=88.25, tracking=89.25)
    log.tick(100, base=98.25, tracking=99.25)
    return log


def straggler(policy: Policy | None = None) -> Log:
    """Base does not land what was published at second 50."""
    log = Log(policy)
    log.publish(EVERY_SECOND)
    log.tick(90, base=50.25)
    log.tick(100, base=50.25)
    return log


def tracking_behind() -> Log:
    """Tracking has read half a minute less than there is, and base nearly as much."""
    log = Log()
    log.publish(EVERY_SECOND)
    log.tick(80, base=78.25, tracking=79.25)
    log.tick(130, base=85.25, tracking=90.25)
    return log


def idle(policy: Policy | None = None) -> Log:
    """Nothing has been published for three minutes."""
    log = Log(policy)
    log.publish(EVERY_SECOND)
    log.tick(110)
    log.tick(290)
    return log


def idle_and_held() -> Log:
    """The same silence, which is set to hold."""
    return idle(Policy(idle="hold"))


def incomplete() -> Log:
    """Base holds two minutes that are older than tracking."""
    log = Log(known_from=70)
    log.publish(EVERY_SECOND)
    log.tick(100, base=50.25)
    return log


def hole() -> Log:
    """Base names a message that tracking has acknowledged and never counted."""
    log = Log()
    log.publish(published((second, second - 1) for second in range(100) if not 50 <= second < 53))
    log.tick(80, base=49)
    log.tick(100, base=50.5)
    return log


def no_data() -> Log:
    """The very beginning."""
    log = Log()
    log.publish(published((second + 0.25, second - 0.75) for second in range(5)))
    log.tick(6, base=4.25)
    return log


def stale() -> Log:
    """Base could not be read for seven minutes."""
    log = Log()
    log.publish(EVERY_SECOND)
    log.tick(100, base=95.25)
    log.read(520, None, reading(520))
    return log


def never_read() -> Log:
    """No reading was ever to be had of base."""
    log = Log()
    log.publish(EVERY_SECOND)
    log.read(100, None, reading(100))
    return log


def sought() -> Log:
    """Somebody sought base back by more than a minute."""
    log = Log()
    log.publish(EVERY_SECOND)
    log.tick(100, base=95.25)
    log.tick(110, base=20.25)
    return log


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
    log = Log(Policy(rule="frontier") if policy is None else policy)
    log.publish(EVERY_SECOND + published((second + 0.5, second - 30) for second in range(0, 100, 5)))
    log.tick(90, base=88.25)
    log.tick(100, base=98.25)
    return log


def unchanged() -> Log:
    """A late stream is in the band, and the watermark came further before."""
    log = Log()
    log.publish(EVERY_SECOND)
    log.tick(100)
    log.publish(published([(101, 60)]))
    log.tick(105)
    return log


def idle_and_unchanged() -> Log:
    """Silence after a message that was minutes behind the others."""
    log = Log()
    log.publish(published((second, second) for second in range(100)))
    log.tick(104)
    log.publish(published([(105, -195)]))
    log.tick(230)
    return log


def late_within_the_band() -> Log:
    """Base is behind, and what pins was published a moment ago, half a minute late."""
    log = Log()
    log.publish(EVERY_SECOND + published([(95.5, 40)]))
    log.tick(100, base=50.25)
    return log


def sparse() -> Log:
    """Base is behind, and nothing has been published since what it holds."""
    log = Log()
    log.publish(published((second, second - 1) for second in range(0, 51, 10)))
    log.tick(70, base=50)
    return log


def frontier_within_the_backlog() -> Log:
    """The tighter rule; what base holds is the frontier itself."""
    log = Log(Policy(rule="frontier"))
    log.publish(published((second, second - 1) for second in range(0, 81, 10)))
    log.tick(85, base=70)
    log.tick(88, base=70)
    return log


def frontier_after_a_seek() -> Log:
    """Tracking was sought back to below what is summed up."""
    log = Log(Policy(rule="frontier", near_real_time=seconds(60)))
    log.publish(EVERY_SECOND)
    log.tick(100)
    log.tick(110, tracking=40.25)
    log.tick(115, tracking=80.25)
    return log


def incomplete_on_the_service() -> Log:
    """Base is past where tracking begins, but by less than the slack."""
    log = Log(Policy(reading_slack=seconds(1), base_slack=seconds(10)), known_from=70)
    log.publish(EVERY_SECOND)
    log.tick(100, base=75.25)
    return log


def on_the_service() -> Log:
    """Slacks are taken off, as on Google's service."""
    return straggler(Policy(reading_slack=seconds(1), base_slack=seconds(10)))


def clock_ahead() -> Log:
    """The machine's clock is 15 s ahead of Pub/Sub's."""
    log = Log()
    log.publish(EVERY_SECOND)
    for server in (90, 100):
        log.read(server + 15, empty_at(server + 0.05, ahead=15), empty_at(server, ahead=15))
    return log


def clock_set_back() -> Log:
    """The machine's clock was an hour ahead, and is right again."""
    log = Log()
    log.publish(EVERY_SECOND)
    log.read(90 + 3600, empty_at(90.05, ahead=3600), empty_at(90, ahead=3600))
    log.read(100, empty_at(100.05, ahead=0), empty_at(100, ahead=0))
    return log


SITUATIONS = {
    name: build
    for name, build in list(globals().items())
    if callable(build) and getattr(build, "__module__", None) == __name__
}
"""Every one of them by its name."""
