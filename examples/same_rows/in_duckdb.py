"""Compute the rows of heartbeat_diffs from heartbeats in DuckDB, by the rules in docs/how-to/reading.md."""

import duckdb
from deltalake import DeltaTable

lake = "gs://my-bucket/lake"
heartbeats = DeltaTable(f"{lake}/heartbeats").to_pyarrow_dataset()
computed = [partition["window"] for partition in DeltaTable(f"{lake}/heartbeat_diffs").partitions()]
query = """
    with named as (
      select *, coalesce('p' || publisher_id, 'm' || message_id) as id from heartbeats
    ),
    copies as (
      select * replace (bool_and(late) over (partition by stream_id, event_time, id) as late),
        row_number() over (partition by stream_id, event_time, id order by publish_time, message_id) as copy
      from named
    ),
    paired as (
      select *,
        epoch_us(event_time) - epoch_us(lag(event_time) over stream) as gap,
        lag(event_time) over stream as before,
        lag(temperature) over stream as before_temperature,
        lag(status) over stream as before_status
      from copies where copy = 1
      window stream as (partition by stream_id order by event_time, id)
    ),
    near as (
      select *, coalesce(gap <= 600000000, false) as is_near,
        if(is_near, temperature - before_temperature, null) as delta,
        strftime(make_timestamp(epoch_us(event_time) // 300000000 * 300000000), '%Y-%m-%dT%H-%MZ') as "window"
      from paired
    )
    select stream_id, event_time,
      if(is_near, before, null) as previous_event_time,
      if(is_near, gap / 1000000, null) as gap_seconds,
      if(is_near, greatest((2 * gap + 30000000) // 60000000 - 1, 0), null) as missed_heartbeats,
      temperature,
      if(is_near, before_temperature, null) as previous_temperature,
      if(isfinite(delta), delta, null) as temperature_delta,
      status,
      if(is_near, before_status, null) as previous_status,
      if(is_near, status is distinct from before_status, null) as status_changed,
      publish_time, message_id, late, "window"
    from near
    where list_contains($computed, "window")
"""
rows = duckdb.execute(query, {"computed": computed}).fetchall()
