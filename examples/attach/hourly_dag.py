"""An Airflow DAG that runs a dbt model for an hour once a BigQuery subscription has loaded the whole hour.

Copy it into the folder of DAGs, beside `airflow_sensor.py`. `tidemark attach` runs elsewhere; Airflow reads its lake.
"""

import os
from datetime import UTC, datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow_sensor import WatermarkSensor

DBT, PROJECT = os.environ.get("DBT", "dbt"), os.environ.get("DBT_PROJECT", "/opt/dbt/hourly")
HOUR = "{{ (data_interval_end - macros.timedelta(hours=1)).strftime('%Y-%m-%dT%H:00:00Z') }}"
"""The hour that ends with the data interval, under any timetable of the schedule."""

with DAG("hourly", schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False) as dag:
    complete = WatermarkSensor(
        task_id="complete",
        lake=os.environ.get("TIDEMARK_LAKE", "gs://my-lake/orders"),
        mode="reschedule",
        poke_interval=60,
        timeout=6 * 3600,
    )
    model = BashOperator(
        task_id="model",
        bash_command=f"""{DBT} run --project-dir {PROJECT} --profiles-dir {PROJECT} --vars "{{hour: '{HOUR}'}}" """,
        append_env=True,
    )
    complete >> model
