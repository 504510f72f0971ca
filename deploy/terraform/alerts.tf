# Nothing is landed or tracked: the oldest message that base or tracking has not acknowledged is too old.
resource "google_monitoring_alert_policy" "oldest_unacked" {
  for_each              = local.subscriptions
  project               = var.project
  display_name          = "${var.name}: old messages on ${each.key}"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "oldest unacknowledged message of ${each.value}"

    condition_threshold {
      filter          = "resource.type = \"pubsub_subscription\" AND resource.labels.subscription_id = \"${each.value}\" AND metric.type = \"pubsub.googleapis.com/subscription/oldest_unacked_message_age\""
      comparison      = "COMPARISON_GT"
      threshold_value = var.oldest_unacked_seconds[each.key]
      duration        = "300s"

      aggregations {
        alignment_period   = "60s"
        per_series_aligner = "ALIGN_MAX"
      }
    }
  }

  documentation {
    content   = "`tidemark status`, `tidemark explain`, then the sensor's ticks in Dagster. See docs/how-to/troubleshooting.md."
    mime_type = "text/markdown"
  }
}

# The watermark itself, from the lines of `tidemark status --json` in Cloud Logging: ../systemd/tidemark-status.timer, or
# ../kubernetes/status.yaml. It is absent until the first line is logged.
resource "google_logging_metric" "watermark_lag" {
  project         = var.project
  name            = "${var.name}/watermark_lag_seconds"
  filter          = "jsonPayload.behind_now >= 0 AND jsonPayload.pipeline = \"${var.pipeline}\""
  value_extractor = "EXTRACT(jsonPayload.behind_now)"

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "DISTRIBUTION"
    unit        = "s"
  }

  bucket_options {
    exponential_buckets {
      num_finite_buckets = 32
      growth_factor      = 2
      scale              = 1
    }
  }
}

resource "google_monitoring_alert_policy" "watermark_lag" {
  project               = var.project
  display_name          = "${var.name}: the watermark is behind"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "watermark lag"

    condition_threshold {
      filter          = "resource.type = \"${var.status_logged_by}\" AND metric.type = \"logging.googleapis.com/user/${google_logging_metric.watermark_lag.name}\""
      comparison      = "COMPARISON_GT"
      threshold_value = var.watermark_lag_seconds
      duration        = "0s"

      aggregations {
        alignment_period   = "600s"
        per_series_aligner = "ALIGN_PERCENTILE_50"
      }
    }
  }

  documentation {
    content   = "`tidemark explain` says what holds it, and what would move it."
    mime_type = "text/markdown"
  }
}
