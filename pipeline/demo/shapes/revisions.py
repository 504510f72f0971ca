"""Which revision of its schema a device writes: a fleet that is upgraded beat by beat."""

from tidemark.pipeline.demo.shapes.shape import Beat

FIRST, SECOND, UNKNOWN = "00000001", "00000002", "0000000f"
"""The names of the revisions, and of one that does not exist."""

UPGRADED_OVER = 6
"""Beats within which all devices are upgraded, a sixth of them at each."""

SCHEMA_REVISION, SCHEMA_ENCODING = "googclient_schemarevisionid", "googclient_schemaencoding"
"""The attributes by which Pub/Sub names a message's schema."""


def revision_of(beat: Beat) -> str:
    """The revision of a beat's message: first or second."""
    return FIRST if beat.sequence < 1 + int(beat.stream[-5:]) % UPGRADED_OVER else SECOND


def without_status_at_first(beat: Beat) -> Beat:
    """The beat as its device can say it: the first revision has no status."""
    return beat._replace(status=None) if revision_of(beat) == FIRST else beat


def named(revision: str) -> dict[str, str]:
    """The attributes of a binary message by that revision."""
    return {SCHEMA_REVISION: revision, SCHEMA_ENCODING: "BINARY"}
