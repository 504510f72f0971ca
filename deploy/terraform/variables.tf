variable "project" {
  description = "The project's id (not its number), as pubsub.project."
  type        = string
}

variable "region" {
  description = "Where the bucket is: near to what runs tidemark, or every call is slow and paid for as traffic."
  type        = string
  default     = "europe-west1"
}

variable "topic" {
  description = "The topic's name, as pubsub.topic."
  type        = string
  default     = "heartbeats"
}

variable "create_topic" {
  description = "Whether to create the topic. false: it is there and somebody else's."
  type        = bool
  default     = false
}

variable "signal_topic" {
  description = "As signal.publish_to: a topic that is there, or null. The tracker may publish to it."
  type        = string
  default     = null
}

variable "base_subscription" {
  description = "As pubsub.base_subscription."
  type        = string
  default     = "heartbeats-base"
}

variable "tracking_subscription" {
  description = "As pubsub.tracking_subscription."
  type        = string
  default     = "heartbeats-tracking"
}

variable "filter" {
  description = "As pubsub.filter, of both subscriptions. It is fixed for their life: another one needs subscriptions of other names."
  type        = string
  default     = ""
}

variable "ack_deadline_seconds" {
  description = "As pubsub.ack_deadline."
  type        = number
  default     = 60
}

variable "retention" {
  description = "As pubsub.retention, in seconds. The same for both: tracking must not keep messages for less time than base."
  type        = string
  default     = "604800s"
}

variable "bucket" {
  description = "The lake's bucket, as in lake.uri."
  type        = string
}

variable "accounts" {
  description = "Which service account does which part; parts of one process share one. The parts are those of ../roles."
  type        = map(string)
  default = {
    tracker   = "tidemark-code"
    lander    = "tidemark-code"
    checks    = "tidemark-code"
    runs      = "tidemark-runs"
    web       = "tidemark-web"
    provision = "tidemark-provision"
  }
}

variable "kubernetes" {
  description = "On GKE: the namespace and, for each service account, the Kubernetes account that may act as it."
  type = object({
    namespace = string
    accounts  = map(string)
  })
  default = null
}

variable "notification_channels" {
  description = "Who is told by the alerts: ids of notification channels."
  type        = list(string)
  default     = []
}

variable "oldest_unacked_seconds" {
  description = "An alert when a subscription's oldest unacknowledged message is older. Readers on Spark help from ingest.start_after (1h) on."
  type        = map(number)
  default = {
    base     = 5400
    tracking = 600
  }
}

variable "status_logged_by" {
  description = "What logs `tidemark status --json`: k8s_container for a CronJob on GKE, gce_instance for a machine with the Ops Agent."
  type        = string
  default     = "k8s_container"
}

variable "watermark_lag_seconds" {
  description = "An alert when the watermark is further behind than this."
  type        = number
  default     = 1800
}
