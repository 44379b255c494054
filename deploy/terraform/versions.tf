# The stack of deploy/template.yaml as a Terraform module, with the same parts, names, rights and alarms.
# deploy/README.md says how to use it; tests/aws/test_terraform.py compares both, resource by resource.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.40, < 7.0"
    }
  }
}

data "aws_caller_identity" "here" {}
data "aws_partition" "here" {}
data "aws_region" "here" {}
