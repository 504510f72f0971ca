"""What the model answers instead of a result. The service turns each into its gRPC status."""


class ModelError(Exception):
    """The root: whoever catches this catches every answer of the model that is not a result."""


class NotFound(ModelError):
    """There is no such topic, subscription or snapshot."""


class AlreadyExists(ModelError):
    """A topic, subscription or snapshot has this name."""


class Invalid(ModelError):
    """The request makes no sense, whatever the state. Nothing was done."""


class Refused(ModelError):
    """The state does not allow it: a snapshot that would live for less than an hour, a seek to a snapshot of another
    topic. Nothing was done."""


class Transient(ModelError):
    """A fault that passes: whoever asks again may get an answer. Whether anything was done is not known."""


class Unavailable(Transient):
    """No answer."""


class Throttled(Transient):
    """Too many requests. Nothing was done."""


class DeadlineExceeded(Transient):
    """The answer did not come in time."""
