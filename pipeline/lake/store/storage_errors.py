"""Translates messages of the operating system and the Delta library into LakeErrors that say what to do."""

import re
from urllib.parse import unquote, urlsplit

from tidemark.pipeline.errors import CorruptObject, LakeError, LakeFull, LakeUnreachable, LakeUnwritable
from tidemark.pipeline.version import newer_format

UNWRITABLE = (
    *("os error 13", "os error 30", "os error 20", "Permission denied", "Read-only file system", "Not a directory"),
    *("PermissionDenied", "ReadOnlyFilesystem", "NotADirectory", "Invalid table location", "403 Forbidden"),
    *("401 Unauthorized", "necessary privileges", "valid authentication credentials", "Operation not permitted"),
)
UNREACHABLE = (
    *("error sending request", "Connection refused", "timed out", "dns error", "error decoding response body"),
    *("408 Request Timeout", "429 Too Many Requests", "500 Internal Server Error", "502 Bad Gateway"),
    *("503 Service Unavailable", "504 Gateway Timeout"),
)
NEWER = ("Unsupported table features", "Unsupported minimum reader", "Unsupported: Feature")
DAMAGED = ("Invalid JSON", "Json", "Parquet error", "corrupt", "Invalid table version", "found gap")
FULL = ("os error 28", "os error 122", "No space left", "Disk quota exceeded")
"""Texts in messages that identify each kind of error. The Delta library calls a folder that is a file an invalid
location."""

CALL = re.compile(r"Error performing (GET|HEAD|PUT|POST|DELETE) (\S+)")
DRAWING = re.compile(r"\x1b\[[0-9;]*m|\u21b3")
"""Colour codes and arrows in the library's messages."""

LONGEST = 500
"""Maximum number of characters shown of the library's message."""


def storage_error(uri: str, text: str) -> LakeError:
    """Return the LakeError for a message about the file or table at `uri`."""
    plain = " ".join(DRAWING.sub("", text).split())
    told, call = plain[:LONGEST] or "no reason given", _call(plain)
    if any(sign in text for sign in FULL):
        return LakeFull(f"no space is left for {uri}; free some, and the next tick continues from the durable state")
    if any(sign in text for sign in UNWRITABLE):
        needed = "" if call is None else f"{call} is needed. "
        remedy = "let this user write there, or set lake.uri to another place"
        if uri.startswith("gs://"):
            remedy = f"grant these credentials roles/storage.objectUser on gs://{urlsplit(uri).netloc}"
        return LakeUnwritable(f"the lake refuses {uri}: {needed}{told}; {remedy}")
    if any(sign in text for sign in UNREACHABLE):
        during = "" if call is None else f" to {call}"
        return LakeUnreachable(
            f"no answer from the lake at {uri}{during}: {told}; the next tick retries from the durable state. If this "
            "persists, check the network"
        )
    if any(sign in text for sign in NEWER):
        return newer_format(uri, {}, told)
    if any(sign in text for sign in DAMAGED):
        return CorruptObject(f"{uri} has a damaged file: {told}; restore its earlier version or a backup")
    return LakeError(f"the lake failed at {uri}: {told}")


def _call(text: str) -> str | None:
    """Return the permission and the object that the failed request needs; None if the message names no request."""
    found = CALL.search(text)
    if found is None:
        return None
    method, url = found[1], urlsplit(found[2])
    name = unquote(url.path).lstrip("/").partition("/")[2]
    if not name:
        return "storage.objects.list"
    verb = {"GET": "get", "HEAD": "get", "DELETE": "delete"}.get(method, "create")
    return f"storage.objects.{verb} of {name}"
