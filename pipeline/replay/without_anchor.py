"""The rules without the anchor, to show which messages it saves. Nothing in production uses them."""

from pipeline.watermark.rules import RULES, band_start, bound, least_since
from pipeline.watermark.situation import Situation
from pipeline.watermark.verdict import Verdict


def bound_without_anchor(s: Situation) -> Verdict:
    """Like rule 6, with a band that reaches back to `min(B, T - D)` and no further."""
    if s.policy.rule == "frontier":
        return bound(s)
    return least_since(s, band_start(s.oldest_base, s.band_edge, None), None)


RULES_WITHOUT_ANCHOR = (*RULES[:-1], bound_without_anchor)
