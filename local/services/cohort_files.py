"""Generates the project of `tidemark init --cohort`: one pipeline per cohort of a topic's messages, and one for all
other messages. A cohort is the messages that pass a filter."""

import json
import re
from collections.abc import Mapping, Sequence

from tidemark.local.emulator.filters import parse_filter
from tidemark.local.emulator.refusals import Invalid
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings_sections import PubSubSettings

REST = "rest"
"""The name of the pipeline for messages that pass no cohort's filter."""

NAMED = re.compile(r"([a-z][a-z0-9_]{0,39})\s*=\s*(.*)", re.S)
COMBINES = re.compile(r"\b(?:AND|OR)\b")
NO_NAME = re.compile(rf"{COMBINES.pattern}|\bNOT\b|!=|\A\s*-")
"""Matches filters with several comparisons or a negation, for which no name is derived."""

SETTINGS = """\
# The pipeline {name}, one of {count} over a topic. This file has only what differs from the defaults; for all settings,
# see docs/reference/settings.md. Write what the pipelines share, such as [message], into each file.
[pubsub]
project = "{pubsub.project}"                 # on Google's service: yours
topic = "{pubsub.topic}"
base_subscription = "{pubsub.topic}-{name}-base"
tracking_subscription = "{pubsub.topic}-{name}-tracking"
filter = {filter}
emulator_host = "127.0.0.1:8085"           # on Google's service: ""
emulator = "local"                         # Google's official emulator ignores filters

{windows}[dagster]
name = "{name}"
location = "definitions.py"                # the name that `dagster dev -f definitions.py` gives it

[lake]
uri = "file:lakes/{name}"                  # on Google's service: gs://bucket/{name}

[spark]
remote = ""

[spark.config]
"spark.master" = "local[2]"
"""

DEFINITIONS = '''\
"""One code location with the pipelines of all cohorts: `dagster dev -f definitions.py`."""

from pathlib import Path

import dagster as dg

import tidemark.dagster as td

HERE = Path(__file__).parent
NAMES = {names}

topic = dg.AssetSpec("topic", description="Where the sources publish.", kinds={{"pubsub"}}, group_name="tidemark")
pipelines = [td.pipeline(HERE / f"{{name}}.toml", name=name, topic=topic.key) for name in NAMES]
defs = dg.Definitions.merge(dg.Definitions(assets=[topic]), *(each.definitions() for each in pipelines))
'''

INSTANCE = """\
# Two sensors of each pipeline wait until their tick is due, each in a thread. Runs that read a backlog (tag
# `tidemark/why`) take up to an hour: with only one at a time, the other slot is left for the windows of all pipelines.
sensors: {{use_threads: true, num_workers: {workers}}}
run_coordinator:
  module: dagster
  class: QueuedRunCoordinator
  config:
    {{max_concurrent_runs: 2, dequeue_interval_seconds: 1, tag_concurrency_limits: [{{key: tidemark/why, limit: 1}}]}}
run_monitoring: {{enabled: true}}
run_retries: {{enabled: true, max_retries: 2, retry_on_asset_or_op_failure: false}}
telemetry: {{enabled: false}}
"""


def cohorts_of(written: Sequence[str]) -> dict[str, str]:
    """Return the filter of each cohort and of the pipeline REST, keyed by name. Each text in `written` is
    `NAME=FILTER`, or only `FILTER`, from which a name is derived.

    Raises InvalidSettings if a filter is invalid, a name is missing or taken, or the filter of REST is too long.
    """
    filters: dict[str, str] = {}
    for one in written:
        given = NAMED.fullmatch(one.strip())
        name, text = (given[1], given[2]) if given else (_derived(one), one.strip())
        if name in filters or name == REST:
            raise InvalidSettings(f"two pipelines would be called {name}: write another name first, as in NAME={text}")
        filters[name] = _checked(f"the cohort {name}", text)
    parts = [f"({text})" if len(filters) > 1 and COMBINES.search(text) else text for text in filters.values()]
    fewer = "name fewer cohorts, or write shorter filters"
    return filters | {REST: _checked(REST, f"NOT ({' OR '.join(parts)})", fewer)}


def _checked(name: str, text: str, then: str = "docs/how-to/cohorts.md has examples") -> str:
    try:
        parse_filter(text)
    except Invalid as error:
        raise InvalidSettings(f"{name} cannot have this filter: {error}; {then}") from error
    return text


def _derived(text: str) -> str:
    """Derive a name from the last words of a filter with one comparison: `eu` from `attributes.region = "eu"`."""
    words = re.findall("[a-z0-9]+", text.lower()) if not NO_NAME.search(text) else []
    for begin in range(len(words) - 1, 0, -1):
        if words[begin][0].isalpha():
            return "_".join(words[begin:])[:40]
    raise InvalidSettings(f"a name cannot be derived from the filter {text!r}: give one, as in eu={text.strip()}")


def project_files(filters: Mapping[str, str], pubsub: PubSubSettings, first: str | None) -> dict[str, str]:
    """Return the contents of the project's files, keyed by file name: the settings of each pipeline, Dagster's
    definitions and `dagster.yaml`. `first` is the value of `windows.first`, if any."""
    files = {}
    for name, text in filters.items():
        files[f"{name}.toml"] = SETTINGS.format(
            name=name,
            count=len(filters),
            pubsub=pubsub,
            windows="" if first is None else f'[windows]\nfirst = "{first}"\n\n',
            filter=f"'{text}'" if "'" not in text and text.isprintable() else json.dumps(text, ensure_ascii=False),
        )
    files["definitions.py"] = DEFINITIONS.format(names=json.dumps(list(filters)))
    files["dagster.yaml"] = INSTANCE.format(workers=4 + 2 * len(filters))
    return files
