"""The ledger in a DynamoDB table."""
