"""Which pipeline writes the lake."""

from collections.abc import Iterator

from tidemark.local.services.ownership import Life, Ownership
from tidemark.pipeline.doctor.finding import Said, Setup, broken, ok, warning
from tidemark.pipeline.errors import LakeError, NewerFormat
from tidemark.pipeline.lake.owner import NAME


def check_owner(setup: Setup) -> Iterator[Said]:
    """No other pipeline writes the lake."""
    ownership = Ownership(setup.settings, setup.clock)
    try:
        there, life, is_damaged = ownership.look()
    except NewerFormat:
        raise
    except LakeError:  # the check of the lake says it
        return
    if is_damaged:
        yield warning(
            f"{NAME} in the lake is damaged, so the pipeline that writes the lake is not known; its next start writes "
            "it again"
        )
    elif there is None:
        yield ok("no pipeline has written the lake yet")
    elif not ownership.is_other(there):
        yield ok(f"the lake is this pipeline's: {ownership.sentence(there)}")
    elif life is Life.DEAD:
        yield warning(
            f"another pipeline wrote the lake, and has ended: {ownership.sentence(there)}. The next start of this one "
            "takes the lake over; if that is not meant, set lake.uri"
        )
    else:
        yield broken(ownership.refusal(there))
