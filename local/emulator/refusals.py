"""Errors of the model. Each names the gRPC status of the service's error."""


class ModelError(Exception):
    """Root of the model's errors."""

    status = "INTERNAL"


class NotFound(ModelError):
    """No such topic, subscription or snapshot exists."""

    status = "NOT_FOUND"


class AlreadyExists(ModelError):
    """The name of a new topic, subscription or snapshot is taken."""

    status = "ALREADY_EXISTS"


class Invalid(ModelError):
    """The request is malformed, regardless of the state. Nothing was done."""

    status = "INVALID_ARGUMENT"


class Refused(ModelError):
    """The state does not allow the request: a snapshot would expire within an hour, or a seek names another topic's
    snapshot. Nothing was done."""

    status = "FAILED_PRECONDITION"


class Transient(ModelError):
    """A temporary fault: a retry may succeed. The caller cannot know whether the call took effect."""


class Unavailable(Transient):
    """There was no answer."""

    status = "UNAVAILABLE"


class Throttled(Transient):
    """There were too many requests. Nothing was done."""

    status = "RESOURCE_EXHAUSTED"


class DeadlineExceeded(Transient):
    """The answer did not arrive in time."""

    status = "DEADLINE_EXCEEDED"
