"""Compares the lake with the publisher's truth file, using SQL.

Its queries share no code with the pipeline, and the Delta library only lists files. The expected rows follow from the
truth file alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.settings_sections import WindowSettings

EXPECTED = """
create table expected as
with beats as (
    select stream_id, event_time, heartbeat_id,
        any_value(temperature) as temperature, any_value(status) as status,
        list(message_id) as message_ids, min(published_at) as first_published
    from read_parquet($truth) where kind in ('heartbeat', 'duplicate')
    group by stream_id, event_time, heartbeat_id
), paired as (
    select *, lag(event_time) over w as before, lag(temperature) over w as temperature_before,
        lag(status) over w as status_before
    from beats window w as (partition by stream_id order by event_time, heartbeat_id)
), bounded as (
    select *, before is not null and epoch_us(event_time) - epoch_us(before) <= $lookback_us as paired from paired
)
select stream_id, event_time, message_ids, first_published,
    strftime(make_timestamp(epoch_us(event_time) // $length_us * $length_us), '%Y-%m-%dT%H-%MZ') as "window",
    case when paired then before end as previous_event_time,
    case when paired then (epoch_us(event_time) - epoch_us(before)) / 1e6 end as gap_seconds,
    case when paired then greatest(
        floor((epoch_us(event_time) - epoch_us(before)) / $period_us + 0.5)::bigint - 1, 0) end as missed_heartbeats,
    temperature, case when paired then temperature_before end as previous_temperature,
    case when paired then temperature - temperature_before end as temperature_delta,
    status, case when paired then status_before end as previous_status,
    case when paired then status is distinct from status_before end as status_changed
from bounded
"""

DIFFERENCES = """
create table differences as
select * from (
    select coalesce(e.stream_id, a.stream_id) as stream_id, coalesce(e.event_time, a.event_time) as event_time,
        case when a.stream_id is null then 'missing'
             when e.stream_id is null then 'not in the truth'
             when a.copies > 1 then 'more than once'
             when e."window" is distinct from a."window" then 'in another window'
             when not list_contains(e.message_ids, a.message_id) then 'another message'
             when a.publish_time < e.first_published - interval 1 second then 'published before it was sent'
             when (e.previous_event_time, e.gap_seconds, e.missed_heartbeats, e.temperature, e.previous_temperature,
                   e.temperature_delta, e.status, e.previous_status, e.status_changed) is distinct from
                  (a.previous_event_time, a.gap_seconds, a.missed_heartbeats, a.temperature, a.previous_temperature,
                   a.temperature_delta, a.status, a.previous_status, a.status_changed) then 'other values' end as what
    from expected e full outer join
        (select *, count(*) over (partition by stream_id, event_time) as copies from actual) a
        on e.stream_id = a.stream_id and e.event_time = a.event_time
) where what is not null
"""

LATE = """
select count(*) from (
    select stream_id, event_time, coalesce(publisher_id, message_id) from read_parquet($files)
    group by all having bool_and(late))
"""

MISSED = """
select count(*) from (select distinct stream_id, event_time from read_parquet($files)) h
where not exists (select 1 from actual a where a.stream_id = h.stream_id and a.event_time = h.event_time)
"""

QUARANTINE_DIFFERENCES = """
with rejected as (
    select message_id, any_value(kind) as reason, any_value(payload) as payload, any_value(attributes) as attributes
    from read_parquet($truth) where kind not in ('heartbeat', 'duplicate') group by message_id
), kept as (
    select message_id, any_value(reason) as reason, any_value(payload) as payload, any_value(attributes) as attributes
    from quarantined group by message_id
)
select coalesce(r.message_id, k.message_id), r.reason, k.reason from rejected r full outer join kept k
    on r.message_id = k.message_id
where r.message_id is null or k.message_id is null or r.reason <> k.reason
    or r.payload is distinct from k.payload
    or (select count(*) from unnest(json_keys(r.attributes)) as names(name)
        where k.attributes[name] is distinct from json_extract_string(r.attributes, '$."' || name || '"')) > 0
    or len(json_keys(r.attributes)) <> cardinality(k.attributes)
"""


@dataclass(frozen=True, slots=True)
class TruthComparison:
    """The result of a comparison.

    - `rows` is the number of rows in `heartbeat_diffs`. `landed` is the number in `heartbeats`.
    - `by_what` contains the number of differences per kind. `examples` contains some of the rows that differ.
    - `late` is the number of heartbeats whose copies all landed late.
    - `missed` is the number of landed heartbeats without a row in `heartbeat_diffs`.
    - `quarantined` contains the number of messages by reason.
    """

    rows: int
    expected_rows: int
    windows: int
    differences: int
    by_what: dict[str, int]
    examples: list[Any]
    late: int
    missed: int
    landed: int
    quarantined: dict[str, int]
    quarantine_differences: int


def compare(truth: Path, lake: Path, windows: WindowSettings) -> TruthComparison:
    """Compare every row of `heartbeat_diffs`, and every message in `quarantine`, with the truth file."""
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")

    def run(sql: str, **values: Any) -> Any:
        return connection.execute(sql, values).fetchall()

    def one(sql: str, **values: Any) -> Any:
        return run(sql, **values)[0][0]

    run(
        EXPECTED,
        truth=str(truth),
        lookback_us=duration_us(windows.lookback),
        period_us=duration_us(windows.heartbeat_period),
        length_us=duration_us(windows.length),
    )
    run(
        "create table actual as select * from read_parquet($files, hive_partitioning = true, "
        "hive_types = {'window': varchar}, union_by_name = true)",
        files=DeltaTable(lake / "heartbeat_diffs").file_uris(),
    )
    run(DIFFERENCES)
    run("create table quarantined (message_id varchar, reason varchar, payload blob, attributes map(varchar, varchar))")
    if DeltaTable.is_deltatable(str(lake / "quarantine")):
        run(
            "insert into quarantined select message_id, reason, payload, attributes from read_parquet($files)",
            files=DeltaTable(lake / "quarantine").file_uris(),
        )
    landed = DeltaTable(lake / "heartbeats").file_uris()
    return TruthComparison(
        rows=one("select count(*) from actual"),
        expected_rows=one("select count(*) from expected"),
        windows=one('select count(distinct "window") from expected'),
        differences=one("select count(*) from differences"),
        by_what=dict(run("select what, count(*) from differences group by 1 order by 2 desc")),
        examples=run("select * from differences order by 1, 2 limit 5"),
        late=one(LATE, files=landed),
        missed=one(MISSED, files=landed),
        landed=one("select count(*) from read_parquet($files)", files=landed),
        quarantined=dict(run("select reason, count(distinct message_id) from quarantined group by 1 order by 1")),
        quarantine_differences=len(run(QUARANTINE_DIFFERENCES, truth=str(truth))),
    )
