"""Errors with which tidemark's own Pub/Sub refuses calls. An error's `status` is the gRPC status with which Google's
service reports it."""


class ModelError(Exception):
    """The base class of the errors with which a PubSubModel refuses a call."""

    status = "INTERNAL"


class NotFound(ModelError):
    """The named topic, subscription, snapshot or schema does not exist."""

    status = "NOT_FOUND"


class AlreadyExists(ModelError):
    """The name of a new topic, subscription, snapshot or schema is taken."""

    status = "ALREADY_EXISTS"


class Invalid(ModelError):
    """The request is invalid, for example because it exceeds a limit or has a malformed id. Nothing was done."""

    status = "INVALID_ARGUMENT"


class Refused(ModelError):
    """The state of the model does not allow the request: a snapshot would expire within an hour, a seek names a
    snapshot of another topic, or a fault is simulated. Nothing was done."""

    status = "FAILED_PRECONDITION"


class Transient(ModelError):
    """A temporary fault. A retry may succeed. Unless the error says otherwise, the call may have taken effect."""


class Unavailable(Transient):
    """The call got no answer."""

    status = "UNAVAILABLE"


class Throttled(Transient):
    """There were too many requests. Nothing was done."""

    status = "RESOURCE_EXHAUSTED"


class DeadlineExceeded(Transient):
    """The answer did not arrive in time."""

    status = "DEADLINE_EXCEEDED"
