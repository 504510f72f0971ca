-- The rows of heartbeat_diffs, made from heartbeats in BigQuery, over the external tables of docs/how-to/reading.md.
-- It has not been run there.
WITH named AS (
  SELECT *, COALESCE('p' || publisher_id, 'm' || message_id) AS id FROM `my-project.tidemark.heartbeats`
),
copies AS (
  SELECT *,
    LOGICAL_AND(late) OVER (PARTITION BY stream_id, event_time, id) AS always_late,
    ROW_NUMBER() OVER (PARTITION BY stream_id, event_time, id ORDER BY publish_time, message_id) AS copy
  FROM named
),
paired AS (
  SELECT *,
    UNIX_MICROS(event_time) - UNIX_MICROS(LAG(event_time) OVER stream) AS gap,
    LAG(event_time) OVER stream AS before,
    LAG(temperature) OVER stream AS before_temperature,
    LAG(status) OVER stream AS before_status
  FROM copies WHERE copy = 1
  WINDOW stream AS (PARTITION BY stream_id ORDER BY event_time, id)
),
near AS (
  SELECT *, COALESCE(gap <= 600000000, FALSE) AS is_near,
    TIMESTAMP_MICROS(DIV(UNIX_MICROS(event_time), 300000000) * 300000000) AS start
  FROM paired
)
SELECT stream_id, event_time,
  IF(is_near, before, NULL) AS previous_event_time,
  IF(is_near, gap / 1000000, NULL) AS gap_seconds,
  IF(is_near, GREATEST(DIV(2 * gap + 30000000, 60000000) - 1, 0), NULL) AS missed_heartbeats,
  temperature,
  IF(is_near, before_temperature, NULL) AS previous_temperature,
  IF(is_near, SAFE_SUBTRACT(temperature, before_temperature), NULL) AS temperature_delta,
  status,
  IF(is_near, before_status, NULL) AS previous_status,
  IF(is_near, status IS DISTINCT FROM before_status, NULL) AS status_changed,
  publish_time, message_id, always_late AS late, FORMAT_TIMESTAMP('%Y-%m-%dT%H-%MZ', start) AS `window`
FROM near
WHERE FORMAT_TIMESTAMP('%Y-%m-%dT%H-%MZ', start) IN (SELECT `window` FROM `my-project.tidemark.heartbeat_diffs`)
