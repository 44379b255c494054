output "queue_url" {
  description = "Where events wait"
  value       = aws_sqs_queue.queue.url
}

output "leftover_queue_url" {
  description = "What was received too often"
  value       = aws_sqs_queue.leftover.url
}

output "undelivered_queue_url" {
  description = "What EventBridge could not deliver"
  value       = aws_sqs_queue.undelivered.url
}

output "dead_letter_queue_url" {
  description = "Where dead letters are sent to, beside the ledger; null without that queue"
  value       = one(aws_sqs_queue.dead_letters[*].url)
}

output "function_name" {
  description = "The function that processes events"
  value       = aws_lambda_function.function.function_name
}

output "ledger_url" {
  description = "For --ledger on the command line; null unless the ledger is DynamoDB"
  value       = local.on_dynamodb ? "dynamodb://${aws_dynamodb_table.ledger[0].name}?region=${local.region}" : null
}
