"""Lets runs use the commits that another process on the same machine has read, instead of reading them again. For a
lake in a bucket, this saves a request per commit.

The commits of a table are in one hand-over file in the temporary folder. Nothing depends on the file: if it is missing
or damaged, a run reads the log. Its content may be old, so a run checks it against the log (see TableLog). Only runs
that compute windows use the file. Commands and checks read the log, because they must see damage there.
"""

import json
import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Event

from tidemark.pipeline.machine import replacing

COMMITS, BYTES = 64, 1 << 20
"""Maximum number of commits in the file, enough for two checkpoint intervals, and maximum size of the file in bytes."""

ACCEPTED = Event()
"""Set in a process that computes windows. Only such a process uses the commits that others hand on."""


def hand_on(uri: str, first: int, commits: list[bytes]) -> None:
    """Write the last COMMITS of `commits` to the table's hand-over file, unless they exceed BYTES. `commits` are
    consecutive, and `first` is the version of the first one. Errors are ignored."""
    last = commits[-COMMITS:]
    with suppress(OSError, UnicodeDecodeError):
        body = json.dumps([first + len(commits) - len(last), [commit.decode() for commit in last]]).encode()
        if len(body) > BYTES:
            return
        with replacing(_file(uri)) as made:
            made.write_bytes(sha256(body).digest() + body)


def handed(uri: str) -> tuple[int, list[bytes]] | None:
    """Return the version of the first commit in the table's hand-over file, and all commits in it. Return None if
    ACCEPTED is not set, or if the file is missing or damaged."""
    with suppress(OSError, ValueError, TypeError, AttributeError):  # another version may have written it
        content = _file(uri).read_bytes() if ACCEPTED.is_set() else b""
        if content and sha256(content[32:]).digest() == content[:32]:
            first, commits = json.loads(content[32:])
            return first, [commit.encode() for commit in commits]
    return None


def withdraw(uri: str) -> None:
    """Delete the table's hand-over file. Errors are ignored."""
    with suppress(OSError):
        _file(uri).unlink(missing_ok=True)


def _file(uri: str) -> Path:
    """Return a table's hand-over file. Raises PermissionError if the folder is not private to this user."""
    folder = Path(tempfile.gettempdir()) / f"tidemark-commits-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(folder)
    return folder / sha256(uri.encode()).hexdigest()
