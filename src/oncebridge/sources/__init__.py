"""Where deliveries come from: files, Lambda, SQS, HTTP, and claims for handlers in other processes."""
