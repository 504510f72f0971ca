-- The rows of heartbeat_diffs, made from heartbeats in Spark SQL: docs/how-to/reading.md has the rules.
-- `heartbeats` is a view of the table, and the session's time zone is UTC (spark.sql.session.timeZone). `computed` is a
-- view with one column, `window`: the computed windows.
WITH named AS (
  SELECT *, coalesce('p' || publisher_id, 'm' || message_id) AS id FROM heartbeats
),
copies AS (
  SELECT *,
    bool_and(late) OVER (PARTITION BY stream_id, event_time, id) AS always_late,
    row_number() OVER (PARTITION BY stream_id, event_time, id ORDER BY publish_time, message_id) AS copy
  FROM named
),
paired AS (
  SELECT *,
    unix_micros(event_time) - unix_micros(lag(event_time) OVER stream) AS gap,
    lag(event_time) OVER stream AS before,
    lag(temperature) OVER stream AS before_temperature,
    lag(status) OVER stream AS before_status
  FROM copies WHERE copy = 1
  WINDOW stream AS (PARTITION BY stream_id ORDER BY event_time, id)
),
near AS (
  SELECT *, coalesce(gap <= 600000000, false) AS is_near,
    temperature - before_temperature AS delta,
    timestamp_micros(unix_micros(event_time) div 300000000 * 300000000) AS start
  FROM paired
)
SELECT stream_id, event_time,
  if(is_near, before, null) AS previous_event_time,
  if(is_near, gap / 1000000, null) AS gap_seconds,
  if(is_near, greatest((2 * gap + 30000000) div 60000000 - 1, 0), null) AS missed_heartbeats,
  temperature,
  if(is_near, before_temperature, null) AS previous_temperature,
  if(is_near AND abs(delta) < double('infinity'), delta, null) AS temperature_delta,
  status,
  if(is_near, before_status, null) AS previous_status,
  if(is_near, NOT status <=> before_status, null) AS status_changed,
  publish_time, message_id, always_late AS late, date_format(start, "yyyy-MM-dd'T'HH-mm'Z'") AS window
FROM near
WHERE date_format(start, "yyyy-MM-dd'T'HH-mm'Z'") IN (SELECT window FROM computed)
