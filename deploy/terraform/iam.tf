# One service account for each name in var.accounts, with the roles of its parts. The roles are made of the files in
# ../roles, PART.SCOPE.yaml, so that permissions are written down once. The part web has none: the UI asks nothing of
# Google.
locals {
  roles = {
    for file in fileset("${path.module}/../roles", "*.*.yaml") :
    trimsuffix(file, ".yaml") => yamldecode(file("${path.module}/../roles/${file}"))
  }
  scopes = {
    for name, role in local.roles : name => {
      part = split(".", name)[0]
      # Provisioning looks at resources that need not exist yet, and a sample has a subscription of its own.
      scope = startswith(name, "provision.") ? "project" : split(".", name)[1]
    } if contains(keys(var.accounts), split(".", name)[0]) && (split(".", name)[1] != "signal" || var.signal_topic != null)
  }
  subscriptions = {
    base     = google_pubsub_subscription.base.name
    tracking = google_pubsub_subscription.tracking.name
  }
  on_subscriptions = {
    for pair in setproduct(keys(local.scopes), keys(local.subscriptions)) :
    "${pair[0]}/${pair[1]}" => { role = pair[0], subscription = local.subscriptions[pair[1]] }
    if contains(["subscription", pair[1]], local.scopes[pair[0]].scope)
  }
  member_of = {
    for name, of in local.scopes : name => google_service_account.account[var.accounts[of.part]].member
  }
}

resource "google_service_account" "account" {
  for_each     = toset(values(var.accounts))
  project      = var.project
  account_id   = each.value
  display_name = each.value

  lifecycle {
    precondition {
      condition     = length(local.scopes) > 0
      error_message = "There is no ../roles beside this module. Name it with the folder around it, as in …/tidemark//deploy/terraform."
    }
  }
}

resource "google_project_iam_custom_role" "part" {
  for_each    = local.scopes
  project     = var.project
  role_id     = "${var.name}.${each.key}"
  title       = local.roles[each.key].title
  description = local.roles[each.key].description
  stage       = local.roles[each.key].stage
  permissions = local.roles[each.key].includedPermissions
}

resource "google_project_iam_member" "part" {
  for_each = { for name, of in local.scopes : name => of if of.scope == "project" }
  project  = var.project
  role     = google_project_iam_custom_role.part[each.key].id
  member   = local.member_of[each.key]
}

resource "google_pubsub_topic_iam_member" "signal" {
  for_each = { for name, of in local.scopes : name => of if of.scope == "signal" }
  project  = var.project
  topic    = var.signal_topic
  role     = google_project_iam_custom_role.part[each.key].id
  member   = local.member_of[each.key]
}

resource "google_pubsub_subscription_iam_member" "part" {
  for_each     = local.on_subscriptions
  project      = var.project
  subscription = each.value.subscription
  role         = google_project_iam_custom_role.part[each.value.role].id
  member       = local.member_of[each.value.role]
}

resource "google_storage_bucket_iam_member" "part" {
  for_each = { for name, of in local.scopes : name => of if of.scope == "bucket" }
  bucket   = google_storage_bucket.lake.name
  role     = google_project_iam_custom_role.part[each.key].id
  member   = local.member_of[each.key]
}

resource "google_service_account_iam_member" "kubernetes" {
  for_each           = var.kubernetes == null ? {} : var.kubernetes.accounts
  service_account_id = google_service_account.account[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project}.svc.id.goog[${var.kubernetes.namespace}/${each.value}]"
}
