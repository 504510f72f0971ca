output "settings" {
  description = "What the settings file has to say."
  value = {
    "pubsub.project"               = var.project
    "pubsub.topic"                 = var.topic
    "pubsub.base_subscription"     = google_pubsub_subscription.base.name
    "pubsub.tracking_subscription" = google_pubsub_subscription.tracking.name
    "pubsub.filter"                = var.filter
    "lake.uri"                     = "gs://${google_storage_bucket.lake.name}"
  }
}

output "accounts" {
  description = "The service accounts, for GOOGLE_APPLICATION_CREDENTIALS' place: attach them, make no keys."
  value       = { for name, account in google_service_account.account : name => account.email }
}
