{# The heartbeats of one hour, each once. `events` is what a subscription that writes metadata fills: message_id,
   publish_time, attributes (JSON) and data, at least once. Copies of a publisher share its own id. #}
{{ config(materialized='incremental', incremental_strategy='delete+insert', unique_key='hour') }}

select
  timestamptz '{{ var("hour") }}' as hour,
  stream_id,
  event_time,
  heartbeat_id
from (
  select
    message_id,
    publish_time,
    attributes ->> 'stream_id' as stream_id,
    attributes ->> 'heartbeat_id' as heartbeat_id,
    coalesce(
      make_timestamptz(try_cast(attributes ->> 'event_time' as bigint) * 1000),
      try_cast(attributes ->> 'event_time' as timestamptz)
    ) as event_time
  from {{ source('loaded', 'events') }}
)
where stream_id is not null
  and event_time >= timestamptz '{{ var("hour") }}'
  and event_time < timestamptz '{{ var("hour") }}' + interval 1 hour
qualify row_number() over (partition by stream_id, event_time, coalesce(heartbeat_id, message_id) order by publish_time) = 1
