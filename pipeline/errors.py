"""Every error that tidemark raises on purpose. A message says what was wrong, where, and what to do next."""


class TidemarkError(Exception):
    """The root: catch it to report any of them to a person."""


class InvalidSettings(TidemarkError):
    """A setting is unknown, unreadable or out of range, or asks for windows of another length than those that were
    computed. The message names it, its value and its source.

    Correct what the message names."""


class WindowNotClosed(TidemarkError):
    """A run was asked to compute a window that the watermark has not passed. Nothing was written.

    Wait; `tidemark explain` says what holds the watermark."""


class WindowExpired(TidemarkError):
    """A run was asked to compute a window whose heartbeats are no longer kept. Nothing was written.

    Nothing: its rows stay as they are (`housekeeping.heartbeats`)."""


class WatermarkNotReached(TidemarkError):
    """The watermark has not reached an event time within the time that was given.

    Wait longer. The message says how far it is and what holds it."""


class WindowNotComputed(TidemarkError):
    """The rows of a window were asked for, and it is not computed.

    Wait for it, or look at what fails with `tidemark status`. The message says which."""


class PubSubError(TidemarkError):
    """Pub/Sub refused a request, or did not answer.

    Follow the message."""


class BaseReadByOthers(PubSubError):
    """With `pubsub.attach` something else reads base: pulling from it is refused, and so is what needs landed messages.

    See docs/how-to/attach.md for what there is instead."""


class PubSubUnreachable(PubSubError):
    """No answer from Pub/Sub or the emulator, or a quota is used up. Nothing was acknowledged; the next tick tries
    again.

    Check the network; with an emulator, whether it runs at `pubsub.emulator_host`. For a quota, raise it or
    `watermark.tick`."""


class SubscriptionMissing(PubSubError):
    """The topic or a subscription does not exist.

    Run `tidemark provision`, or correct the names in `[pubsub]` and `[signal]`."""


class PermissionMissing(PubSubError):
    """The credentials lack a permission, which the message names, or there are none.

    Grant it (docs/how-to/identity.md)."""


class ReadingUnavailable(PubSubError):
    """The publish time of the oldest unacknowledged message cannot be read now.

    Wait: gaps of Cloud Monitoring pass, and a new subscription has no point for some minutes."""


class ReadingPostponed(ReadingUnavailable):
    """The budget of snapshots puts a reading off (docs/concepts/costs-and-scale.md), and Cloud Monitoring has none.

    Nothing: the last reading stays true. The message says when the next one is due."""


class SnapshotRefused(ReadingUnavailable):
    """Pub/Sub refuses a snapshot: the oldest message of the backlog is within an hour of seven days.

    Land faster; readings return by themselves. With `pubsub.reading = "auto"` grant `monitoring.timeSeries.list`."""


class ProvisionRefused(PubSubError):
    """The existing topic or subscriptions would break the method: both must see the same messages.

    Each reason in the message says what to change."""


class LakeError(TidemarkError):
    """The lake cannot do what was asked.

    Follow the message. If a field's kind differs from its column, put the kind back or rename the field."""


class ObjectExists(LakeError):
    """A create-only object exists already, with other content.

    Find out what else writes into the lake's folders. This should never happen."""


class ObjectMissing(LakeError):
    """An object that is needed does not exist.

    Put it back, and find out what deletes in the lake."""


class ObjectReplaced(LakeError):
    """Another writer has replaced the object. This one has not written it.

    Nothing: the next tick looks again."""


class CorruptObject(LakeError):
    """An object exists but cannot be read as what it should be.

    See docs/how-to/repair.md."""


class DamagedNote(CorruptObject):
    """A note, such as a manifest or that of a failed run, was read whole, and its content is not of its kind.

    The message says whether to put back a copy or to delete it."""


class NewerFormat(LakeError):
    """An object was written by a version of tidemark that this one cannot read. Nothing was pulled or written.

    Run that version (docs/how-to/upgrading.md). Never `tidemark repair --forget` it."""


class NothingToTune(LakeError):
    """Nothing has landed in the time range of a tuning report.

    Look further back, with `--since`."""


class LakeUnwritable(LakeError):
    """The lake refuses writes.

    Grant what the message names, or set another `lake.uri`."""


class LakeFull(LakeError):
    """No space is left for the lake.

    Free some."""


class LakeUnreachable(LakeError):
    """No answer from the object store.

    Check the network and `lake.endpoint`."""


class LandingOver(LakeError):
    """A landing was asked for under a name that is finished. This request acknowledged nothing.

    For a Spark task, nothing. For a restored checkpoint, use a new one, or a larger `keepBatches` beforehand."""


class ContractReplaced(LakeError):
    """Messages were judged by another contract than the newest of the lake. They were not acknowledged, and come again.

    Restart the process that says so, with the `[message]` and the version of the others. Pack executors again
    (docs/how-to/spark.md)."""


class LakeOwned(LakeError):
    """Another pipeline, which the message names, writes the lake. Nothing was pulled or written.

    Give this one another `lake.uri`, or stop the other one."""


class TableConflict(LakeError):
    """A commit lost against other commits too many times.

    Stop the writers that should not be there, and run again."""


class TableFailed(TidemarkError):
    """A custom table cannot be computed: its function or SQL fails, or gives rows that the lake cannot hold, or its
    file has changed so that Dagster must load it again. Nothing of it was committed, and no other table is affected.

    Correct what the message names (docs/how-to/tables.md). Its windows are then computed by themselves."""


class SparkUnreachable(TidemarkError):
    """No Spark Connect server answers at `spark.remote`, or it has another token.

    Start it, or set another `spark.remote`."""


class ExecutorsUnable(TidemarkError):
    """Spark's executors, or its driver, lack what a task needs, or have another tidemark. Nothing was pulled, and no
    window was written.

    Install tidemark there, or pack it (docs/how-to/spark.md). The message says which Python on which machine."""


class ToolMissing(TidemarkError):
    """A program that must be installed is missing, such as Java or Spark's connector for a bucket.

    The message says how to get it."""


class DagsterPartMissing(TidemarkError):
    """This Dagster lacks a part that has no public name; the message names it, and says what does not work.

    Install a supported version (docs/start/requirements.md)."""


class ServiceFailed(TidemarkError):
    """A process that tidemark started has ended or is not ready in time, a port is taken, or the Dagster that is asked
    for a run does not take it.

    The message has the end of its log, or what Dagster said."""


class AlreadyRunning(ServiceFailed):
    """Another `tidemark up` runs in the same folder, or runs the same pipeline on the same lake.

    Stop that one first: `tidemark up --stop` with its settings."""


class TraceUnusable(TidemarkError):
    """A trace cannot be replayed: it is empty, or a column is missing or of an unusable type.

    Compare its columns with docs/how-to/replay.md."""


class SampleUnusable(TidemarkError):
    """A sample for a trial cannot be read as a message, or there are too many.

    Name another file."""
