-- What each region sent in each window. `region` and `temperature` are fields of [message.fields].
SELECT
    window,
    region,
    count(*) AS heartbeats,
    count(DISTINCT stream_id) AS streams,
    min(temperature) AS least_temperature,
    max(temperature) AS greatest_temperature
FROM {heartbeats}
GROUP BY window, region
