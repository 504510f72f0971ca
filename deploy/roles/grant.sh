#!/bin/sh
# Creates tidemark's roles from the files beside it, and grants those of the named parts to one member. Run it again
# after an upgrade: an existing role is brought up to its file. docs/how-to/identity.md explains the parts.
#
#   PROJECT=my-project BASE=heartbeats-base TRACKING=heartbeats-tracking BUCKET=my-lake \
#   MEMBER=serviceAccount:tidemark@my-project.iam.gserviceaccount.com \
#   sh deploy/roles/grant.sh tracker lander checks runs
#
# SIGNAL=topic as well, if signal.publish_to names one.
# It needs roles/iam.roleAdmin on the project, and the right to grant roles on what is named.
set -eu
cd "$(dirname "$0")"
: "${PROJECT:?}" "${MEMBER:?}" "${1:?name the parts, such as: tracker lander checks runs}"

for part in "$@"; do
  [ "$part" != web ] || continue # it needs nothing of Google
  for file in "$part".*.yaml; do
    [ -e "$file" ] || { echo "grant.sh: there is no part $part" >&2; exit 2; }
    case $file in *.signal.yaml) [ -n "${SIGNAL:-}" ] || continue ;; esac
    role="tidemark.${file%.yaml}"
    gcloud iam roles create "$role" --project="$PROJECT" --file="$file" --quiet ||
      gcloud iam roles update "$role" --project="$PROJECT" --file="$file" --quiet
    set -- "--member=$MEMBER" "--role=projects/$PROJECT/roles/$role"
    case $file in
    *.bucket.yaml)
      gcloud storage buckets add-iam-policy-binding "gs://${BUCKET:?}" "$@"
      ;;
    provision.* | *.project.yaml) # what provisioning creates is not there yet to be granted on
      gcloud projects add-iam-policy-binding "$PROJECT" --condition=None "$@"
      ;;
    *.signal.yaml)
      gcloud pubsub topics add-iam-policy-binding "$SIGNAL" --project="$PROJECT" "$@"
      ;;
    *.subscription.yaml)
      gcloud pubsub subscriptions add-iam-policy-binding "${TRACKING:?}" --project="$PROJECT" "$@"
      gcloud pubsub subscriptions add-iam-policy-binding "${BASE:?}" --project="$PROJECT" "$@"
      ;;
    *.tracking.yaml)
      gcloud pubsub subscriptions add-iam-policy-binding "${TRACKING:?}" --project="$PROJECT" "$@"
      ;;
    *.base.yaml)
      gcloud pubsub subscriptions add-iam-policy-binding "${BASE:?}" --project="$PROJECT" "$@"
      ;;
    esac
  done
done
