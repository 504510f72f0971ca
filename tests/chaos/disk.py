"""A disk of the lake's own, small enough to be filled, where this user may mount one."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def why_none() -> str | None:
    """Why there can be no such disk here; None where there can."""
    if shutil.which("mount") is None or shutil.which("umount") is None:
        return "there is no mount"
    return None if os.geteuid() == 0 else "it takes root to mount a tmpfs"


def let_go(folder: Path) -> None:
    """Unmount what an earlier run left there."""
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[str | None]:
    """A tmpfs at the folder for the block, afterwards a plain folder with what was on it. Where it cannot be had the
    folder is a plain one all along, and the block gets the reason."""
    folder.mkdir(parents=True, exist_ok=True)
    reason = why_none()
    if reason is None:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
        reason = f"mount said: {mounted.stderr.strip()}" if mounted.returncode else None
    try:
        yield reason
    finally:
        if folder.is_mount():
            kept = folder.with_name(f"{folder.name}.kept")
            shutil.copytree(folder, kept)
            let_go(folder)
            folder.rmdir()
            kept.rename(folder)
