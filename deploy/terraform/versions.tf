# A module without a provider block: the caller's provider says who asks. To try it by itself, it takes the environment's:
# terraform init && terraform apply -var project=my-project -var bucket=my-lake
terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.50, < 8.0"
    }
  }
}
