"""Errors of the model. The service turns each into its gRPC status."""


class ModelError(Exception):
    """Root of the model's errors."""


class NotFound(ModelError):
    """No such topic, subscription or snapshot exists."""


class AlreadyExists(ModelError):
    """The name of a new topic, subscription or snapshot is taken."""


class Invalid(ModelError):
    """The request is malformed, whatever the state. Nothing was done."""


class Refused(ModelError):
    """The state does not allow it: a snapshot that would expire within an hour, a seek to another topic's snapshot.
    Nothing was done."""


class Transient(ModelError):
    """A passing fault: a retry may succeed. The caller cannot know whether the call took effect."""


class Unavailable(Transient):
    """No answer."""


class Throttled(Transient):
    """Too many requests. Nothing was done."""


class DeadlineExceeded(Transient):
    """The answer did not come in time."""
