-- A dbt model on BigQuery: what is complete by tidemark's watermark, and not there yet. `tidemark.watermark` is the external
-- table of docs/how-to/watermark-for-others.md. It has not been run.
{{ config(materialized='incremental', unique_key='hour') }}

select timestamp_trunc(event_time, hour) as hour, count(*) as heartbeats
from {{ source('tidemark', 'heartbeats') }}
where event_time < (select timestamp_trunc(watermark, hour) from {{ source('tidemark', 'watermark') }})
{% if is_incremental() %}
  and event_time >= (
    select coalesce(timestamp_add(max(hour), interval 1 hour), timestamp '1970-01-01') from {{ this }}
  )
{% endif %}
group by hour
