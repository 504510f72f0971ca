variable "project" {
  description = "The project's id (not its number), as pubsub.project."
  type        = string

  validation {
    condition     = can(regex("^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "Give the project's id, such as my-project-1234, and not its number."
  }
}

variable "name" {
  description = "What the names of roles, metric and alerts begin with. A project's further pipelines have others, and other accounts."
  type        = string
  default     = "tidemark"

  validation {
    condition     = can(regex("^[a-z][a-z0-9_]{1,29}$", var.name))
    error_message = "A name of 2 to 30 lower-case letters, digits and underscores that begins with a letter."
  }
}

variable "pipeline" {
  description = "As dagster.name, which `tidemark status --json` says: the alert on the watermark is for this pipeline alone."
  type        = string
  default     = "tidemark"
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

  validation {
    condition     = can(regex("^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$", var.topic)) && !startswith(var.topic, "goog")
    error_message = "A name of 3 to 255 characters that begins with a letter and not with goog; a name alone, without projects/…."
  }
}

variable "create_topic" {
  description = "Whether to create the topic. false: it exists, and is managed elsewhere."
  type        = bool
  default     = false
}

variable "signal_topic" {
  description = "As signal.publish_to: an existing topic, or null. The tracker may publish to it."
  type        = string
  default     = null

  validation {
    condition     = var.signal_topic == null || can(regex("^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$", var.signal_topic))
    error_message = "A name of 3 to 255 characters that begins with a letter; a name alone, without projects/…."
  }
}

variable "base_subscription" {
  description = "As pubsub.base_subscription."
  type        = string
  default     = "heartbeats-base"

  validation {
    condition     = can(regex("^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$", var.base_subscription)) && !startswith(var.base_subscription, "goog")
    error_message = "A name of 3 to 255 characters that begins with a letter and not with goog; a name alone, without projects/…."
  }
}

variable "tracking_subscription" {
  description = "As pubsub.tracking_subscription."
  type        = string
  default     = "heartbeats-tracking"

  validation {
    condition     = can(regex("^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$", var.tracking_subscription)) && !startswith(var.tracking_subscription, "goog")
    error_message = "A name of 3 to 255 characters that begins with a letter and not with goog; a name alone, without projects/…."
  }
}

variable "filter" {
  description = "As pubsub.filter, of both subscriptions. It is fixed for their life: another one needs subscriptions of other names."
  type        = string
  default     = ""

  validation {
    condition     = length(var.filter) <= 256
    error_message = "Pub/Sub takes a filter of at most 256 bytes."
  }
}

variable "ack_deadline_seconds" {
  description = "How long a message is leased. A reader extends leases every third of it, and what a killed one held comes again after it."
  type        = number
  default     = 60

  validation {
    condition     = var.ack_deadline_seconds >= 10 && var.ack_deadline_seconds <= 600
    error_message = "Pub/Sub takes 10 to 600 seconds."
  }
}

variable "retention" {
  description = "As pubsub.retention, in seconds. The same for both: tracking must not keep messages for less time than base."
  type        = string
  default     = "604800s"

  validation {
    condition     = can(regex("^[0-9]+s$", var.retention)) && try(tonumber(trimsuffix(var.retention, "s")) >= 600 && tonumber(trimsuffix(var.retention, "s")) <= 2678400, false)
    error_message = "Whole seconds such as 604800s, from 10 minutes (600s) to 31 days (2678400s)."
  }
}

variable "bucket" {
  description = "The lake's bucket, as in lake.uri."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$", var.bucket))
    error_message = "A bucket's name alone, in lower case, without gs://."
  }
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

  validation {
    condition     = length(setsubtract(keys(var.accounts), ["tracker", "lander", "checks", "runs", "web", "provision", "attach", "measure"])) == 0 && (contains(keys(var.accounts), "attach") || length(setsubtract(["tracker", "lander", "checks", "runs"], keys(var.accounts))) == 0)
    error_message = "The parts are tracker, lander, checks, runs, web, provision, attach and measure; attach, or else each of the first four, must have an account."
  }

  validation {
    condition     = alltrue([for account in values(var.accounts) : can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", account))])
    error_message = "An account has 6 to 30 lower-case letters, digits and hyphens: the part of its address before the @."
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
  description = "Who gets the alerts: ids of notification channels."
  type        = list(string)
  default     = []
}

variable "oldest_unacked_seconds" {
  description = "An alert when a subscription's oldest unacknowledged message is older. Readers on Spark help from an hour on."
  type        = map(number)
  default = {
    base     = 5400
    tracking = 600
  }

  validation {
    condition     = toset(keys(var.oldest_unacked_seconds)) == toset(["base", "tracking"]) && alltrue([for seconds in values(var.oldest_unacked_seconds) : seconds > 0])
    error_message = "Give seconds for base and for tracking, each above 0."
  }
}

variable "status_logged_by" {
  description = "What logs `tidemark status --json`: k8s_container for a CronJob on GKE, gce_instance for a machine whose Ops Agent parses the journal's MESSAGE as JSON."
  type        = string
  default     = "k8s_container"
}

variable "watermark_lag_seconds" {
  description = "An alert when the watermark is further behind than this."
  type        = number
  default     = 1800

  validation {
    condition     = var.watermark_lag_seconds > 0
    error_message = "Give seconds above 0."
  }
}
