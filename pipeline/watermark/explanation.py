"""A decision in plain words: what was seen, which rule spoke, and what would make the watermark move."""

from datetime import timedelta

from pipeline.clock import iso
from pipeline.durations import format_duration
from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import EffectiveReading

WHAT_MOVES_IT = {
    Reason.ADVANCED: "It moves on with the next messages that are published and landed.",
    Reason.UNCHANGED: "It moves when newer messages push the oldest event times out of the band.",
    Reason.PINNED_BY_BACKLOG: "It moves when base lands and acknowledges what holds that event time.",
    Reason.HELD_TRACKING_BEHIND: "It moves when the tracking subscription has caught up: see whether its sensor ticks.",
    Reason.HELD_INCOMPLETE: "It moves when base has landed what tracking knows nothing of.",
    Reason.HELD_NO_DATA: "It moves once a message with an event time is older, by its publish time, than the band.",
    Reason.HELD_STALE_READING: "It moves when the backlogs can be read again: see the problems of the last ticks.",
    Reason.HELD_SEEK: "It moves at the next tick; what a seek replays is late where it lands below the watermark.",
    Reason.IDLE_ADVANCED: "It follows the clock, at the recent lag and the band behind, until something is published.",
    Reason.IDLE_HELD: 'It moves when something is published, or with watermark.idle = "advance".',
    Reason.RELEASED: "An operator let stragglers go; it moves on with the next messages.",
}


def explain(decision: Decision, policy: Policy) -> list[str]:
    """Sentences, from what was observed to what follows."""
    sentences = [decision.sentence() + "."]
    sentences += [_outstanding("base", decision.base, policy), _outstanding("tracking", decision.tracking, policy)]
    band = format_duration(policy.band)
    if decision.base is not None and decision.tracking is not None:
        ahead = decision.tracking.oldest_unacked - decision.base.oldest_unacked
        if ahead >= policy.band and policy.band > timedelta(0):
            sentences.append(f"Tracking is {_rough(ahead)} ahead of base, which is at least the band of {band}.")
    if decision.band_start is not None and decision.band_end is not None:
        sentences.append(
            f"Looked at were at most {_messages(decision.messages_in_band)} published from "
            f"{iso(decision.band_start)} to {iso(decision.band_end)}: base's backlog, and at least the band of {band} "
            "before what tracking has read, back to the anchor"
            + (f" at {iso(decision.anchor)}." if decision.anchor else ".")
        )
    if decision.pin is not None:
        sentences.append(
            f"The least event time among them is {iso(decision.pin.min_event_time)}, of "
            f"{_messages(decision.pin.count)} published within the second from {iso(decision.pin.published_from)}."
        )
    if decision.recent_lag is not None:
        sentences.append(
            f"Nothing is published: the newest message came at {_at(decision)}, the recent lag is "
            f"{_rough(decision.recent_lag)}; the candidate is now less the band less that lag."
        )
    sentences.append(WHAT_MOVES_IT[decision.reason])
    return sentences


def _outstanding(name: str, reading: EffectiveReading | None, policy: Policy) -> str:
    if reading is None:
        return f"What {name} has outstanding is not known."
    newest = reading.newest
    if newest.age <= policy.near_real_time:
        return f"{name.capitalize()} had no backlog at {iso(newest.observed_at)}."
    return (
        f"{name.capitalize()} had not acknowledged a message published at {iso(reading.oldest_unacked)}, "
        f"{_rough(newest.age)} before it was observed."
    )


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _at(decision: Decision) -> str:
    return "an unknown moment" if decision.newest_publish_time is None else iso(decision.newest_publish_time)


def _rough(duration: timedelta) -> str:
    return format_duration(timedelta(seconds=round(duration.total_seconds())))
