#!/bin/sh
# Runs the model for one hour, from its start, once the watermark has reached its end:
#   run_hour.sh 2026-11-22T09:00:00Z 2026-11-22T10:00:00Z
# By cron each hour; tidemark, dbt and $CONFIG, $DATABASE, $WATERMARK are the environment's.
set -eu
hour=$1 end=$2
"${TIDEMARK:-tidemark}" --config "$CONFIG" watermark --wait-for "$end" --timeout "${TIMEOUT:-50m}"
exec "${DBT:-dbt}" run --project-dir "$(dirname "$0")/dbt" --profiles-dir "$(dirname "$0")/dbt" --vars "{hour: '$hour'}"
