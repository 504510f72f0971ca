"""The errors that tidemark reports to its users. Each error says what is wrong, where, and what to do next."""


class TidemarkError(Exception):
    """The base class of all errors of tidemark."""


class InvalidSettings(TidemarkError):
    """A setting is unknown, unreadable or out of range, or differs from what the lake has: the length of the computed
    windows, or a field's type. The error names the setting, its value and its source.

    Correct the setting."""


class WindowNotClosed(TidemarkError):
    """A run was asked to compute a window that the watermark has not passed. Nothing was written.

    Wait; `tidemark explain` says what holds the watermark."""


class WindowExpired(TidemarkError):
    """A run was asked to compute a window whose heartbeats are no longer kept. Nothing was written.

    Nothing to do: the window's rows stay as they are. `housekeeping.heartbeats` sets how long heartbeats are kept."""


class WatermarkNotReached(TidemarkError):
    """The watermark did not reach an event time before the timeout.

    Wait longer. The error says where the watermark is and what holds it."""


class WindowNotComputed(TidemarkError):
    """The rows of a window were requested, but the window is not computed.

    The error says whether to wait, or to look at `tidemark status` for failures."""


class PubSubError(TidemarkError):
    """Pub/Sub refused a request, or did not answer.

    Do what the error says."""


class BaseReadByOthers(PubSubError):
    """With `pubsub.attach`, another consumer reads base. tidemark does not pull from base, so the lake has no
    landed messages.

    See docs/how-to/attach.md for the alternatives."""


class PubSubUnreachable(PubSubError):
    """Pub/Sub or the emulator did not answer, or a quota is exhausted. Nothing was acknowledged; the next tick retries.

    Check the network; for an emulator, check that it runs at `pubsub.emulator_host`. For a quota, raise the quota or
    `watermark.tick`."""


class SubscriptionMissing(PubSubError):
    """The topic or a subscription does not exist.

    Run `tidemark provision`, or correct the names in `[pubsub]` and `[signal]`."""


class PermissionMissing(PubSubError):
    """The credentials are missing, or lack the permission that the error names.

    Grant it (see docs/how-to/identity.md)."""


class ReadingUnavailable(PubSubError):
    """The publish time of the oldest unacknowledged message cannot be read at the moment.

    Wait: gaps in Cloud Monitoring are temporary, and a new subscription has no data point for some minutes."""


class ReadingPostponed(ReadingUnavailable):
    """The snapshot budget postpones a reading of a backlog (see docs/concepts/costs-and-scale.md), and Cloud Monitoring
    has no value.

    Nothing to do: the last reading is still used. The error says when the next one is due."""


class SnapshotRefused(ReadingUnavailable):
    """Pub/Sub refuses a snapshot: the oldest message of the backlog is more than six days and 23 hours old.

    Snapshots are possible again once all messages of that age have landed. Until then, `pubsub.reading = "auto"` reads
    Cloud Monitoring, which needs `monitoring.timeSeries.list`."""


class ProvisionRefused(PubSubError):
    """The existing topic or subscriptions cannot be used, because the watermark needs the same messages on both
    subscriptions.

    Each reason in the error says what to change."""


class LakeError(TidemarkError):
    """An operation on the lake failed.

    Do what the error says. If a field in `[message.fields]` has a different kind from its column in the table, restore
    the field's former kind, or rename the field."""


class ObjectExists(LakeError):
    """A create-only object already exists with different content. This should never happen.

    Find out what else writes to the lake."""


class ObjectMissing(LakeError):
    """A required object does not exist.

    Restore it, and find out what deletes objects in the lake."""


class ObjectReplaced(LakeError):
    """Another writer replaced the object first. Nothing was written.

    Nothing to do: the next tick retries."""


class CorruptObject(LakeError):
    """An object exists, but its content is damaged and cannot be read.

    See docs/how-to/repair.md."""


class DamagedNote(CorruptObject):
    """A note, such as a run's manifest or the note of a failed run, was read but has invalid content.

    The error says whether to restore a copy of the note or to delete the note."""


class NewerFormat(LakeError):
    """An object was written by a newer version of tidemark, and this version cannot read it. Nothing was pulled or
    written.

    Run the newer version (see docs/how-to/upgrading.md). Never run `tidemark repair --forget` on the object."""


class NothingToTune(LakeError):
    """In the time range of a tuning report, nothing landed or was decided, or the cohort key is unsuitable.

    Choose an earlier `--since` or another `--by`."""


class LakeUnwritable(LakeError):
    """The lake refuses writes.

    Grant what the error names, or set another `lake.uri`."""


class LakeFull(LakeError):
    """The lake's disk is full, or a disk of Spark's executors, or a limit on open files or file sizes is reached.

    Free some space, or raise the limit that the message names."""


class BucketMissing(LakeError):
    """The lake's bucket does not exist.

    Create it, or correct lake.uri."""


class LakeUnreachable(LakeError):
    """The object store did not answer.

    Check the network and `lake.endpoint`."""


class LandingOver(LakeError):
    """`format("pubsub")` was asked to read a batch that Spark has finished. The batch may already have been
    deleted. Nothing was acknowledged.

    If a slow task reports this, do nothing. If you restored an old checkpoint, start a new one instead. To be able to
    restore older checkpoints in future, set a larger `keepBatches`."""


class ContractReplaced(LakeError):
    """Messages were judged by a contract that is not the lake's newest. They were not acknowledged and are redelivered.

    Just after a start with changed settings, wait for the next tick of `tracking`. Otherwise, restart the process that
    reports this, with the same `[message]` and version as the other processes. Repack the executors' archive (see
    docs/how-to/spark.md)."""


class LakeOwned(LakeError):
    """Another pipeline, which the error names, writes to the lake, or wrote a different topic's messages to it. Nothing
    was pulled or written.

    Set another `lake.uri` for this pipeline, or, if the topic is the same, stop the other pipeline."""


class TableConflict(LakeError):
    """A commit conflicted with other commits too many times.

    Stop unexpected writers, and run again."""


class TableFailed(TidemarkError):
    """A custom table cannot be computed: its function or SQL fails, or returns rows that the lake cannot store, or its
    file has changed and the code server must restart. Nothing was committed, and no other table is affected.

    Correct what the error names (see docs/how-to/tables.md). The table's windows are then computed automatically."""


class SparkUnreachable(TidemarkError):
    """No Spark Connect server answers at `spark.remote`, or the server expects a different token.

    Start the server, set the token that the error asks for, or set another `spark.remote`."""


class ExecutorsUnable(TidemarkError):
    """Spark's executors or its driver lack what a task needs, or have a different version of tidemark. Nothing was
    pulled, and no window was written.

    Install tidemark for the Python that the error names, or pack it into an archive (see docs/how-to/spark.md)."""


class ToolMissing(TidemarkError):
    """A required program or library is not installed, such as Java or Spark's connector for a bucket.

    The error says how to install it."""


class DagsterPartMissing(TidemarkError):
    """This version of Dagster lacks a non-public part that tidemark uses. The error names it and says what does not
    work.

    Install a supported version (see docs/start/requirements.md)."""


class ServiceFailed(TidemarkError):
    """A process that tidemark started has ended or was not ready in time, a port is taken, or Dagster did not accept a
    requested run.

    The error quotes the end of the process's log, or Dagster's answer: look there for the cause."""


class AlreadyRunning(ServiceFailed):
    """Another `tidemark up` runs in the same folder, or runs the same pipeline on the same lake.

    Stop it first: `tidemark up --stop` with its settings."""


class TraceUnusable(TidemarkError):
    """A trace cannot be replayed: it cannot be read or is empty, or a column or a time in it is unusable.

    Compare its columns with docs/how-to/replay.md."""


class SampleUnusable(TidemarkError):
    """A file for `tidemark try` cannot be read, or there are no samples or too many.

    Choose another file."""


UNREADABLE = (ObjectMissing, CorruptObject)
"""The errors of an object that is missing or damaged."""

REFUSALS = (LakeUnreachable, LakeUnwritable, LakeFull)
"""The errors of the lake's storage itself. They say nothing about a table or an object."""
