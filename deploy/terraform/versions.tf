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

provider "google" {
  project = var.project
  region  = var.region
}
