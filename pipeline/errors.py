"""Everything that tidemark raises on purpose. A message says what was wrong, where, and what to do next."""

__all__ = [
    "CorruptObject",
    "InvalidSettings",
    "LakeError",
    "LakeFull",
    "LakeUnreachable",
    "LakeUnwritable",
    "LandingOver",
    "NothingToTune",
    "ObjectExists",
    "ObjectMissing",
    "PermissionMissing",
    "ProvisionRefused",
    "PubSubError",
    "PubSubUnreachable",
    "ReadingUnavailable",
    "ServiceFailed",
    "SnapshotRefused",
    "SparkUnreachable",
    "SubscriptionMissing",
    "TableConflict",
    "TidemarkError",
    "ToolMissing",
    "TraceUnusable",
    "WindowExpired",
    "WindowNotClosed",
]


class TidemarkError(Exception):
    """The root: whoever catches this catches all that tidemark reports to a person."""


class InvalidSettings(TidemarkError):
    """A setting is unknown, unreadable or out of range; the message names it, its value and its source."""


class WindowNotClosed(TidemarkError):
    """A computation was asked for a window that the watermark has not passed. Nothing was written."""


class WindowExpired(TidemarkError):
    """A computation was asked for a window whose heartbeats are no longer kept. Nothing was written."""


class PubSubError(TidemarkError):
    """Pub/Sub answered something that the pipeline cannot go on from."""


class PubSubUnreachable(PubSubError):
    """No answer from Pub/Sub or the emulator. Nothing was acknowledged; the next tick tries again."""


class SubscriptionMissing(PubSubError):
    """The topic or a subscription does not exist."""


class PermissionMissing(PubSubError):
    """The credentials lack a permission, which the message names."""


class ReadingUnavailable(PubSubError):
    """The publish time of the oldest unacknowledged message could not be read at this moment."""


class SnapshotRefused(ReadingUnavailable):
    """Pub/Sub refuses a snapshot: the backlog's oldest message is within an hour of its expiry."""


class ProvisionRefused(PubSubError):
    """What exists would break the method: the two subscriptions would not see the same messages."""


class LakeError(TidemarkError):
    """The lake did not do what was asked."""


class ObjectExists(LakeError):
    """A create-only object is already there, with other content."""


class ObjectMissing(LakeError):
    """There is no such object."""


class CorruptObject(LakeError):
    """An object is there but cannot be read as what it should be."""


class NothingToTune(LakeError):
    """Nothing has landed in the time that a tuning report is about."""


class LakeUnwritable(LakeError):
    """The lake refuses writes."""


class LakeFull(LakeError):
    """No space is left for the lake."""


class LakeUnreachable(LakeError):
    """No answer from the object store."""


class LandingOver(LakeError):
    """A name to land under that nobody will ask for any more. Nothing was acknowledged for it now."""


class TableConflict(LakeError):
    """A commit lost against others more often than is reasonable."""


class SparkUnreachable(TidemarkError):
    """No Spark server answers at the configured address."""


class ToolMissing(TidemarkError):
    """A program that is needed beforehand is not on this machine; the message says how to get it."""


class ServiceFailed(TidemarkError):
    """A process that tidemark started ended or did not become ready; the message names its log."""


class TraceUnusable(TidemarkError):
    """A trace cannot be replayed as it is: a column is missing or of a type that says too little, or it is empty."""
