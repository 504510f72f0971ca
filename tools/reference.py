"""Generate the parts of documentation pages that follow from the code: `make reference`.

Each page has handwritten prose, and one generated part between two marks. The generated words come from the code:
docstrings of settings, errors and reasons, texts of columns, help of commands, descriptions of instruments.
"""

import ast
import inspect
import json
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from enum import Enum
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pyarrow as pa
import typer
from pydantic.fields import FieldInfo

from tidemark.pipeline.cli.app import app
from tidemark.pipeline.clock import format_duration
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.contract.messages import described
from tidemark.pipeline.contract.payloads.rejections import RejectionReason
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.lake.log.codec import CELL_COLUMNS, CELLS, DECISION_COLUMNS, DECISIONS, NOTES
from tidemark.pipeline.lake.log.notes import WatermarkContent
from tidemark.pipeline.lake.tables.corrections import CORRECTION_COLUMNS, CORRECTIONS
from tidemark.pipeline.lake.tables.diffs import STATUS, STATUS_COLUMNS, diff_columns
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_columns, message_columns
from tidemark.pipeline.lake.tables.quarantine import QUARANTINE, QUARANTINE_COLUMNS
from tidemark.pipeline.lake.tables.streams import STREAM_COLUMNS, STREAMS
from tidemark.pipeline.observe.instruments import INSTRUMENTS, Instrument, Kind
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import Effect, Section
from tidemark.pipeline.watermark.decision import Reason

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BEGIN, END = "<!-- `make reference` writes what follows, from the code. -->", "<!-- It ends here. -->"

LIST_OR_RANGE = re.compile(r"list\[(.*)\]| range")
"""The parts of an option's type that the page does not show: `list[...]` around a type, and the word `range`."""

FOLDERS = ("assets", "resources", "pipeline", "local")
"""The product's folders, from Dagster's assets down to the parts that replace services on one machine."""

FIELDS: Mapping[str, FieldKind] = {"temperature": FieldKind.NUMBER, "status": FieldKind.TEXT}
"""The compared fields that `tidemark init` writes."""


def pages() -> dict[Path, str]:
    """Return the text of each page, with its generated part up to date."""
    parts = {
        "reference/settings": settings(),
        "reference/commands": commands(),
        "reference/tables": tables(),
        "reference/metrics": metrics(),
        "reference/reasons": reasons(),
        "reference/errors": errors(),
        "inside/architecture": folders(),
    }
    return {path: _between_marks(path, part) for name, part in parts.items() for path in [DOCS / f"{name}.md"]}


def _between_marks(path: Path, part: Iterable[str]) -> str:
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    return "\n".join((before + BEGIN, *part, END + rest.partition(END)[2]))


def settings() -> Iterator[str]:
    """Yield a table of the effects of a change, and a table for each section of the settings."""
    effects = ((effect, linked(text)) for effect, text in documented(Effect, [*Effect.__members__]).items())
    yield from ("", *table(("on a change", "effect"), ((Effect[name], text) for name, text in effects)))
    for name, field in Settings.model_fields.items():
        kind = section_of(field)
        name = f"{name}.NAME" if get_origin(field.annotation) is dict else name
        yield from ("", f"## `[{name}]`", linked(inspect.getdoc(kind) or ""), "")
        yield from table(("name", "default", "meaning", "values", "on a change"), _settings_of(kind))


def section_of(field: FieldInfo) -> type[Section]:
    """Return the section class of a field of the settings. The field may be a dictionary of sections."""
    kind: Any = field.annotation
    return get_args(kind)[1] if get_origin(kind) is dict else kind


def _settings_of(section: type[Section]) -> Iterator[Sequence[str]]:
    own_first = sorted(section.model_fields, key=lambda name: name not in section.__annotations__)
    for name, text in documented(section, own_first).items():
        field = section.model_fields[name]
        default = "required" if field.is_required() else as_written(field.get_default(call_default_factory=True))
        bounds = values(field.annotation, field.metadata)
        yield f"`{field.alias or name}`", default, linked(text), bounds, effect_of(section, name)


def effect_of(section: type[Section], name: str) -> Effect:
    """Return the effect of changing a setting, by its field's name."""
    own = [mark for mark in section.model_fields[name].metadata if isinstance(mark, Effect)]
    return own[0] if own else section.effect


def as_written(value: Any) -> str:
    """Format a default as it is written in a settings file."""
    if value is None or value == "" or value == {}:
        return "empty"
    if isinstance(value, timedelta):
        return f"`{format_duration(value)}`"
    if isinstance(value, datetime):
        return f"`{value:%Y-%m-%dT%H:%M:%SZ}`"
    return f"`{value}`" if isinstance(value, str | Path) else f"`{json.dumps(value)}`"


def values(kind: Any, bounds: Sequence[Any] = ()) -> str:
    """Describe the values that a setting may have, from its type and bounds."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return values(inner[0], [mark for one in inner[1:] for mark in getattr(one, "metadata", [one])])
    if origin in (Union, types.UnionType):
        some = [values(one, bounds) for one in inner if one is not type(None)]
        return " or ".join((["empty"] if type(None) in inner else []) + some)
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return ", ".join(f"`{one}`" if one else "empty" for one in (inner or [member.value for member in kind]))
    if kind is bool:
        return "`true`, `false`"
    if kind in (int, float, timedelta):
        return _between(kind, {type(one).__name__: getattr(one, type(one).__name__.lower(), None) for one in bounds})
    return {datetime: "a time in UTC", list: "a list", dict: "a table"}.get(origin or kind, "text")


def _between(kind: type, bounds: Mapping[str, Any]) -> str:
    least, above, most, below = (bounds.get(name) for name in ("Ge", "Gt", "Le", "Lt"))
    if most and (least or (least is not None and kind is not timedelta)):
        return f"{_bare(least)} to {_bare(most)}"
    words = {"at least": least or None, "above": above, "at most": most, "below": below}
    written = ", ".join(f"{word} {_bare(bound)}" for word, bound in words.items() if bound is not None)
    return written or {int: "a whole number", float: "a number", timedelta: "a duration"}[kind]


def _bare(bound: Any) -> str:
    return "0" if not bound else as_written(bound).strip("`")


def commands() -> Iterator[str]:
    """Yield a table for each panel of `tidemark --help`: a row for each command, followed by a row for each option."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("tidemark", ["status"], resilient_parsing=True)
    panels: dict[str, list[Sequence[str]]] = {}
    for name in group.list_commands(context):
        panel = getattr(group.get_command(context, name), "rich_help_panel", None)
        rows = panels.setdefault(panel if isinstance(panel, str) else "Commands", [])
        command = group.resolve_command(context, [name])[1]
        options = {one.opts[0]: one for one in command.params if not one.hidden}
        json_too = " With `--json`: as JSON." if options.pop("--json", None) else ""
        rows.append((f'<a id="{name}"></a>**`tidemark {name}`**', linked(command.help) + json_too))
        rows += [_parameter(one, context) for one in options.values()]
    for panel, rows in panels.items():
        yield from ("", f"## {panel}", "", *table(("command, option", "meaning"), rows))


def _parameter(one: Any, context: Any) -> Sequence[str]:
    kind = (one.metavar or LIST_OR_RANGE.sub(r"\1", one.display_type(context))).replace("|", ", ")
    is_flag = isinstance(one.default, bool)
    if one.param_type_name == "argument":
        name = one.metavar or one.name.upper()
    else:
        name = one.opts[0] if is_flag else f"{one.opts[0]} {kind}"
    shown = one.show_default if isinstance(one.show_default, str) else as_written(one.default)
    default = "Required. " if one.required else "" if is_flag or shown == "empty" else f"Default: {shown}. "
    return f"`{name}`", default + linked(one.help)


def tables() -> Iterator[str]:
    """Yield the columns of each table and of the log's entries, and the keys of `watermark.json`."""
    held: Sequence[tuple[str, str, pa.Schema, Mapping[str, str]]] = (
        ("`heartbeats`", "Every landed message whole.", *described(heartbeat_columns(FIELDS))),
        (
            "`quarantine`",
            "Every rejected message whole, in the columns of `heartbeats` from `message_id` to `landed_at`.",
            pa.schema([one for one in QUARANTINE if one.name not in {column.name for column in message_columns()}]),
            QUARANTINE_COLUMNS,
        ),
        (
            "`heartbeat_diffs`",
            "One row a heartbeat of a computed window, beside the previous one of its stream.",
            *described(diff_columns(FIELDS)),
        ),
        ("`stream_status`", "One row a window, stream and kind.", STATUS, STATUS_COLUMNS),
        ("`streams`", "One row a stream. The table has no partitions.", STREAMS, STREAM_COLUMNS),
        ("`corrections`", "One row a changed row, if `windows.corrections` is true.", CORRECTIONS, CORRECTION_COLUMNS),
        ("The log: histograms", "Entries of the kinds `histogram` and `compacted`.", CELLS, CELL_COLUMNS),
        ("The log: decisions", "Entries of the kind `decision`, of one row.", DECISIONS, DECISION_COLUMNS),
    )
    for title, text, schema, columns in held:
        yield from ("", f"## {title}", text, "")
        yield from table(
            ("column", "type", "meaning"), ((f"`{one.name}`", _type(one), linked(columns[one.name])) for one in schema)
        )
    yield from ("", "## The log: notes", "Entries of one row, each kind with its columns.", "")
    notes = [
        (f"`{kind.__name__.lower()}`", f"`{name}`", _type(schema.field(name)), text)
        for kind, schema in NOTES.items()
        for name, text in documented(kind, schema.names).items()
    ]
    yield from table(("kind", "column", "type", "meaning"), notes)
    said = documented(WatermarkContent, [field.name for field in fields(WatermarkContent)])
    yield from ("", "## `watermark.json`", "One line of JSON beside the tables.", "")
    yield from table(("key", "meaning"), ((f"`{name}`", linked(text)) for name, text in said.items()))


def _type(column: pa.Field) -> str:
    kind = "timestamp" if pa.types.is_timestamp(column.type) else str(column.type)
    return kind.replace("int64", "long").replace(" ('map')", "")


def metrics() -> Iterator[str]:
    """Yield a table of all instruments."""
    head = ("OpenTelemetry", "Prometheus", "kind, unit", "attributes", "meaning")
    yield from ("", *table(head, map(_instrument, INSTRUMENTS)))


def _instrument(one: Instrument) -> Sequence[str]:
    suffix = {"s": "_seconds", "By": "_bytes"}.get(one.unit, "") + ("_total" if one.kind is Kind.COUNTER else "")
    attributes = ", ".join(f"`{name}`" for name in one.attributes)
    prometheus = one.name.replace(".", "_") + suffix
    return f"`{one.name}`", f"`{prometheus}`", f"{one.kind}, `{one.unit}`", attributes, one.description


def reasons() -> Iterator[str]:
    """Yield a table of the reasons for decisions, and a table of the reasons for rejections."""
    told: Sequence[tuple[str, str, type[Enum]]] = (
        ("Decisions", "what moves the watermark", Reason),
        ("Rejections", "what to do", RejectionReason),
    )
    for title, action, kind in told:
        yield from ("", f"## {title}", "")
        rows = (
            (f"`{name}`", *_meaning_and_action(text)) for name, text in documented(kind, [*kind.__members__]).items()
        )
        yield from table(("reason", "meaning", action), rows)


def errors() -> Iterator[str]:
    """Yield a table of all errors, each below its base class."""
    yield from ("", *table(("error", "meaning", "what to do"), _errors(TidemarkError, 0)))


def _errors(kind: type[TidemarkError], depth: int) -> Iterator[Sequence[str]]:
    yield (f"{'↳ ' * depth}`{kind.__name__}`", *_meaning_and_action(inspect.getdoc(kind) or ""))
    for below in kind.__subclasses__():
        if below.__module__ == TidemarkError.__module__:
            yield from _errors(below, depth + 1)


def folders() -> Iterator[str]:
    """Yield a table of the product's folders, described by the docstrings of their packages."""
    packages = sorted(path for top in FOLDERS for path in (ROOT / top).rglob("__init__.py"))
    texts = {path.parent: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in packages}
    rows = ((f"`{folder.relative_to(ROOT)}/`", text.partition("\n\n")[0]) for folder, text in texts.items())
    yield from ("", *table(("folder", "what lives there"), rows))


def _meaning_and_action(text: str) -> tuple[str, str]:
    meaning, _, action = linked(text).partition("\n\n")
    return meaning, action


def documented(kind: type, names: Sequence[str]) -> dict[str, str]:
    """Return the docstring below each of these attributes of a class. Raises LookupError if an attribute has none."""
    found: dict[str, str] = {}
    for one in reversed([base for base in kind.__mro__ if base.__module__.startswith("tidemark.")]):
        for definition in ast.walk(ast.parse(dedent(inspect.getsource(one)))):
            for attribute, below in pairwise(definition.body if isinstance(definition, ast.ClassDef) else []):
                match attribute, below:
                    case (
                        ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]),
                        ast.Expr(ast.Constant(str(text))),
                    ):
                        found[name] = inspect.cleandoc(text)
    if missing := [name for name in names if name not in found]:
        raise LookupError(f"{kind.__module__}.{kind.__name__}: write a docstring below {', '.join(missing)}")
    return {name: found[name] for name in names}


def linked(text: str) -> str:
    """Replace each path of a documentation page in the text by a link."""
    found = re.sub(r"docs/(?:([\w-]+)/)?([\w-]+)\.md(#[\w-]+)?", _link, text)
    return found.replace("SECURITY.md", "[security](../../SECURITY.md)")


def _link(page: re.Match[str]) -> str:
    folder, name, anchor = page.groups()
    place = f"{name}.md" if folder == "reference" else f"../{folder}/{name}.md"
    return f"[{name.replace('-', ' ')}]({place}{anchor or ''})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table in Markdown, one line per row."""
    for row in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in row) + " |"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
