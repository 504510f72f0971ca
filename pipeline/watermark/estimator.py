"""Decides the watermark, or a reason to hold it, from the histogram of published messages and from the readings of both
backlogs.

`estimate` evaluates the rules in order, up to the first rule that holds the watermark or has a candidate. `advance`
compares the candidate with the watermark.

Guarantee: if disorder is at most `policy.band`, no message that is still to land has an event time below the watermark.
A quantile, a release or a seek can break the guarantee. Apart from these, there are only two exceptions:

- Messages that lag more than `policy.max_lag`.
- Messages published after a silence in which the idle rule advanced the watermark, if they lag more than the recent lag
  plus the band.

A message's lag is its publish time minus its event time. The proof is in `docs/concepts/watermark.md`.
"""

from collections.abc import Sequence

from tidemark.pipeline.clock import from_us
from tidemark.pipeline.watermark.decision import Bound, Decision, Reason
from tidemark.pipeline.watermark.histogram import Cell, bucket_of
from tidemark.pipeline.watermark.rules import RULES, Candidate, Finding, Held, Passed, Rules, Verdict
from tidemark.pipeline.watermark.situation import Situation


def estimate(situation: Situation, rules: Rules = RULES) -> Decision:
    """Return the decision. Pure: the same situation gives the same decision, bit for bit."""
    return advance(situation, verdicts_of(situation, rules))


def verdicts_of(situation: Situation, rules: Rules = RULES) -> list[Verdict]:
    """Evaluate the rules in order, and return their verdicts, up to the first hold or candidate."""
    verdicts: list[Verdict] = []
    for rule in rules:
        verdicts.append(rule(situation))
        if not isinstance(verdicts[-1], Passed):
            break
    return verdicts


def advance(s: Situation, verdicts: Sequence[Verdict]) -> Decision:
    """Rule 7: return the decision. The watermark moves to the candidate of the last verdict if this candidate is
    higher, and never goes back."""
    last = verdicts[-1]
    evidence = last.evidence if isinstance(last, Candidate) else None
    candidate = None if evidence is None else evidence.candidate
    raised = last.complete_from if isinstance(last, Held) else None
    moves = candidate is not None and (s.watermark is None or candidate > s.watermark)
    newest = s.holding.newest_publish_us
    was_completed = Finding.NOT_SOUGHT in (verdict.finding for verdict in verdicts)  # rule 3 was reached
    return Decision(
        at=s.at,
        watermark=candidate if moves else s.watermark,
        reason=last.reason if isinstance(last, Held) else _moved(s, last) if moves else _unmoved(s, verdicts),
        base=s.base,
        tracking=s.tracking,
        newest_publish_time=None if newest is None else from_us(newest),
        complete_from=raised or s.complete_from,
        released_before=s.release if was_completed else None,
        evidence=evidence,
    )


def _moved(s: Situation, verdict: Verdict) -> Reason:
    if verdict.finding is Finding.SILENCE:
        return Reason.IDLE_ADVANCED
    return Reason.RELEASED if s.release else Reason.ADVANCED


def _unmoved(s: Situation, verdicts: Sequence[Verdict]) -> Reason:
    if Finding.SILENCE_IS_HELD in (verdict.finding for verdict in verdicts):
        return Reason.IDLE_HELD
    match verdicts[-1]:
        case Candidate(evidence=Bound(pin=pin)) if is_pinned_by_backlog(s, pin):
            return Reason.PINNED_BY_BACKLOG
    return Reason.UNCHANGED


def is_pinned_by_backlog(s: Situation, pin: Cell) -> bool:
    """Return True if base is more than a band behind tracking, and the message that determines the candidate (the pin)
    may still be in base's backlog. Base's reading is used without slack. If it falls within the pin's publish second,
    the pin counts as part of the backlog."""
    return s.base_as_read < s.band_edge and pin.publish_bucket >= bucket_of(s.base_as_read)
