"""Every error that tidemark raises on purpose. A message says what was wrong, where, and what to do next."""


class TidemarkError(Exception):
    """The root of them. Catch it to report any of them to a person."""


class InvalidSettings(TidemarkError):
    """A setting is unknown, unreadable or out of range; the message names it, its value and its source."""


class WindowNotClosed(TidemarkError):
    """A run was asked to compute a window that the watermark has not passed. Nothing was written."""


class WindowExpired(TidemarkError):
    """A run was asked to compute a window whose heartbeats are no longer kept. Nothing was written."""


class WatermarkNotReached(TidemarkError):
    """The watermark has not reached an event time within the time that was given."""


class WindowNotComputed(TidemarkError):
    """The rows of a window were asked for, and it is not computed."""


class PubSubError(TidemarkError):
    """Pub/Sub refused a request, or did not answer."""


class BaseReadByOthers(PubSubError):
    """With `pubsub.attach` somebody else reads base: what pulls from it, or needs what has landed, is refused."""


class PubSubUnreachable(PubSubError):
    """No answer from Pub/Sub or the emulator. Nothing was acknowledged; the next tick tries again."""


class SubscriptionMissing(PubSubError):
    """The topic or a subscription does not exist."""


class PermissionMissing(PubSubError):
    """The credentials lack a permission, which the message names."""


class ReadingUnavailable(PubSubError):
    """The publish time of the oldest unacknowledged message cannot be read now."""


class ReadingPostponed(ReadingUnavailable):
    """The budget of snapshots puts a reading off. The last one stays true meanwhile."""


class SnapshotRefused(ReadingUnavailable):
    """Pub/Sub refuses a snapshot: the backlog's oldest message is within an hour of its expiry."""


class ProvisionRefused(PubSubError):
    """The existing topic or subscriptions would break the method: both must see the same messages."""


class LakeError(TidemarkError):
    """The lake cannot do what was asked."""


class ObjectExists(LakeError):
    """A create-only object exists already, with other content."""


class ObjectMissing(LakeError):
    """The object does not exist."""


class ObjectReplaced(LakeError):
    """Another writer has replaced the object. This one has not written it."""


class CorruptObject(LakeError):
    """An object exists but cannot be read as what it should be."""


class DamagedNote(CorruptObject):
    """A note was read whole, and its content is not of its kind."""


class NewerFormat(LakeError):
    """An object is whole, and was written by a version of tidemark that this one cannot read."""


class NothingToTune(LakeError):
    """Nothing has landed in the time range of a tuning report."""


class LakeUnwritable(LakeError):
    """The lake refuses writes."""


class LakeFull(LakeError):
    """No space is left for the lake."""


class LakeUnreachable(LakeError):
    """No answer from the object store."""


class LandingOver(LakeError):
    """A landing was asked for under a name that is finished. This request acknowledged nothing."""


class ContractReplaced(LakeError):
    """Messages were judged by another contract than the newest of the lake. They were not acknowledged."""


class LakeOwned(LakeError):
    """Another pipeline writes the lake. Nothing was pulled or written."""


class TableConflict(LakeError):
    """A commit lost against other commits too many times."""


class TableFailed(TidemarkError):
    """A table of one's own cannot be computed: its function or SQL fails, or gives rows that the lake cannot hold, or
    its file has changed so that Dagster must load it again."""


class SparkUnreachable(TidemarkError):
    """No Spark server answers at the configured address."""


class ExecutorsUnable(TidemarkError):
    """Spark's executors lack what a task of tidemark's needs, or have another tidemark. Nothing was pulled, and no
    window was written."""


class ToolMissing(TidemarkError):
    """A program that must be installed is missing; the message says how to get it."""


class DagsterPartMissing(TidemarkError):
    """This Dagster lacks a part that has no public name; the message names it, and says what does not work."""


class ServiceFailed(TidemarkError):
    """A process that tidemark started has ended, or is not ready in time (the message names its log); or a Dagster that
    is asked for a run does not answer, or does not take it."""


class AlreadyRunning(ServiceFailed):
    """Another `tidemark up` runs in the same folder, or runs the same pipeline on the same lake."""


class TraceUnusable(TidemarkError):
    """A trace cannot be replayed: it is empty, or a column is missing or of an unusable type."""


class SampleUnusable(TidemarkError):
    """A sample for a trial cannot be read as a message, or there are too many."""
