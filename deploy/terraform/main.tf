# The topic, both subscriptions and the bucket, as `tidemark provision` and the settings' defaults have them. Subscriptions
# have the same filter, no dead letter, no push and no ordering: each would make the two see different messages, or none.
data "google_pubsub_topic" "heartbeats" {
  count   = var.create_topic ? 0 : 1
  project = var.project
  name    = var.topic
}

resource "google_pubsub_topic" "heartbeats" {
  count   = var.create_topic ? 1 : 0
  project = var.project
  name    = var.topic

  lifecycle {
    prevent_destroy = true
  }
}

locals {
  topic = var.create_topic ? google_pubsub_topic.heartbeats[0].id : data.google_pubsub_topic.heartbeats[0].id
}

resource "google_pubsub_subscription" "tracking" {
  project                      = var.project
  name                         = var.tracking_subscription
  topic                        = local.topic
  ack_deadline_seconds         = var.ack_deadline_seconds
  message_retention_duration   = var.retention
  filter                       = var.filter
  retain_acked_messages        = false
  enable_exactly_once_delivery = false
  enable_message_ordering      = false

  expiration_policy {
    ttl = "" # never
  }

  lifecycle {
    prevent_destroy = true
  }
}

# After tracking, so that tracking has every message that base has.
resource "google_pubsub_subscription" "base" {
  project                      = var.project
  name                         = var.base_subscription
  topic                        = local.topic
  ack_deadline_seconds         = var.ack_deadline_seconds
  message_retention_duration   = var.retention
  filter                       = var.filter
  retain_acked_messages        = false
  enable_exactly_once_delivery = false
  enable_message_ordering      = false

  expiration_policy {
    ttl = "" # never
  }

  lifecycle {
    prevent_destroy = true

    precondition {
      condition     = var.base_subscription != var.tracking_subscription
      error_message = "base_subscription and tracking_subscription are one: each of the two takes messages from the other."
    }
  }

  depends_on = [google_pubsub_subscription.tracking]
}

# No lifecycle rule and no retention policy: the log and the tables need their old objects, and housekeeping must be able
# to delete. Deleted objects can be had back for a week (soft delete); versions would keep each replaced one for ever.
resource "google_storage_bucket" "lake" {
  project                     = var.project
  name                        = var.bucket
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = false

  versioning {
    enabled = false
  }

  soft_delete_policy {
    retention_duration_seconds = 604800
  }

  lifecycle {
    prevent_destroy = true
  }
}
