{# Stops the run, with an error, unless the watermark has reached the end of this hour. It reads watermark.json, which
   `tidemark attach` keeps in the lake; on BigQuery read the external table of docs/how-to/watermark-for-others.md instead. #}
{% macro require_complete(hour) %}
  {% if execute and flags.WHICH in ('run', 'build') %}
    {% set found = run_query(
      "select watermark, decided_at, watermark >= timestamptz '" ~ hour ~ "' + interval 1 hour,
              decided_at > now() - interval 5 minute
       from read_json('" ~ env_var('WATERMARK') ~ "',
                      columns = {watermark: 'timestamptz', decided_at: 'timestamptz'})"
    ).rows[0] %}
    {% if not found[3] %}
      {{ exceptions.raise_compiler_error("nobody has decided a watermark since " ~ found[1]) }}
    {% endif %}
    {% if not found[2] %}
      {{ exceptions.raise_compiler_error("the hour " ~ hour ~ " is not complete: the watermark is " ~ found[0]) }}
    {% endif %}
  {% endif %}
{% endmacro %}
