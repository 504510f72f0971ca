"""Writes deploy/roles/*.yaml from the table of permissions: python tools/write_roles.py. A test holds them together."""

from pathlib import Path

from tidemark.pipeline.identity.roles import role_files

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "roles"

if __name__ == "__main__":
    for old in FOLDER.glob("*.yaml"):
        old.unlink()
    for name, content in role_files().items():
        (FOLDER / name).write_text(content)
