"""Settings that do not go with attach, and what it changes."""

from pathlib import Path

import pytest

from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import load_settings


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ('[watermark]\nmax_lag = "1m"', "watermark.max_lag"),
        ('[ingest]\nmode = "continuous"', 'ingest.mode = "continuous"'),
        ('[tables.t]\nfile = "t.sql"\nkey = ["a"]', "[tables]"),
        ("[windows]\ncorrections = true", "windows.corrections"),
        ('[quarantine]\nrequeue = "when the contract changes"', "quarantine.requeue"),
    ],
)
def test_what_needs_landing_is_refused_by_name(tmp_path: Path, written: str, named: str) -> None:
    file = tmp_path / "tidemark.toml"
    file.write_text(f"[pubsub]\nattach = true\n{written}\n")
    with pytest.raises(InvalidSettings, match=r"pubsub\.attach = true cannot be combined with") as refused:
        load_settings(file)
    assert named in str(refused.value)
    file.write_text(f"{written}\n")
    load_settings(file)
