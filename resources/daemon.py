"""Dagster's daemon, which ends within ten seconds of SIGTERM: `python -m tidemark.resources.daemon` with the arguments
of `dagster-daemon`. Dagster's own waits half a minute for a busy thread."""

from tidemark.resources.ending import end_soon_after_a_signal
from tidemark.resources.json_logs import ask_for_json
from tidemark.resources.private import command

if __name__ == "__main__":
    end_soon_after_a_signal()
    ask_for_json()
    command("dagster-daemon")()
