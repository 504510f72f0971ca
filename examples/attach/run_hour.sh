#!/bin/sh
# Runs the model for one hour, once the watermark says that the hour is complete: run_hour.sh 2026-11-22T09:00:00Z 11:00
# By cron each hour; tidemark, dbt and $CONFIG, $DATABASE, $WATERMARK are the environment's.
set -eu
hour=$1 end=$2
"${TIDEMARK:-tidemark}" --config "$CONFIG" watermark --wait-for "$end" --timeout "${TIMEOUT:-50m}"
exec "${DBT:-dbt}" run --project-dir "$(dirname "$0")/dbt" --profiles-dir "$(dirname "$0")/dbt" --vars "{hour: '$hour'}"
