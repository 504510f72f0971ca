"""What a rule of the estimator answers: it passed, it holds the watermark, or it has a candidate."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pipeline.watermark.decision import BandEvidence, FrontierEvidence, Reason, SilenceEvidence


class Finding(StrEnum):
    """What a rule found: one name for each branch that a rule can take."""

    FRESH = "both backlogs were read lately"
    STALE = "a backlog was not read, or too long ago"
    NOT_SOUGHT = "no subscription was sought"
    SOUGHT = "a subscription was sought back"
    COMPLETE = "tracking knows all that base may hold"
    RELEASED = "tracking knows all that base may hold, apart from what was released"
    OLDER_THAN_TRACKING = "base may hold messages from before tracking knows"
    HOLE = "base holds a message that tracking never saw"
    NEAR_NOW = "tracking has no backlog"
    AHEAD_OF_BASE = "tracking is ahead of base by the band"
    BEHIND = "tracking is neither near now nor ahead of base by the band"
    NOTHING_EVER = "no valid message was ever published"
    RECENT = "something was published within the idle timeout"
    NEWEST_MAY_BE_ON_BASE = "base may still hold the newest message"
    BACKLOG = "a subscription has a backlog"
    SILENCE_IS_HELD = "a silence, which is set to hold"
    SILENCE = "a silence"
    NO_ANCHOR = "nothing valid is known from before the band"
    NO_FRONTIER = "no frontier is known before the band"
    BAND = "the least event time of the band"
    FRONTIER = "the lesser of the frontier and the least event time outstanding"


@dataclass(frozen=True, slots=True)
class Passed:
    """The next rule is asked."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Held:
    """The watermark stays where it is. `complete_from` is set where the rule raises it."""

    finding: Finding
    reason: Reason
    complete_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An event time that the watermark may reach, with its evidence."""

    finding: Finding
    evidence: SilenceEvidence | BandEvidence | FrontierEvidence


Verdict = Passed | Held | Candidate
