"""Deliveries from an SQS queue."""
