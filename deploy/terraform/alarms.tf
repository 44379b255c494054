# The alarms of deploy/template.yaml. Each goes off at the first, but for age and retries; its description names the next step.

locals {
  # EventBridge names the bus of a rule in its metrics, except the default bus.
  rule_dimensions = merge(
    var.event_bus_name == "default" ? {} : { EventBusName = var.event_bus_name },
    { RuleName = var.name },
  )
  alarms = {
    "leftover" = {
      description = "Messages were received too often without being settled; find out why, then redrive them"
      namespace   = "AWS/SQS"
      metric      = "ApproximateNumberOfMessagesVisible"
      dimensions  = { QueueName = "${var.name}-leftover" }
      statistic   = "Maximum"
      period      = 300
      periods     = 1
      threshold   = 0
    }
    "undelivered" = {
      description = "EventBridge could not deliver; look at the attributes of the messages, then redrive them"
      namespace   = "AWS/SQS"
      metric      = "ApproximateNumberOfMessagesVisible"
      dimensions  = { QueueName = "${var.name}-undelivered" }
      statistic   = "Maximum"
      period      = 300
      periods     = 1
      threshold   = 0
    }
    "oldest-message" = {
      description = "Messages wait for long without being tried; the function does not run, or cannot keep up"
      namespace   = "AWS/SQS"
      metric      = "ApproximateAgeOfOldestMessage"
      dimensions  = { QueueName = var.name }
      statistic   = "Maximum"
      period      = 300
      periods     = 1
      threshold   = var.oldest_message_seconds
    }
    "unfinished" = {
      description = "Messages are tried for long and fail; the ledger or the receiver is away, see the function's log"
      namespace   = "Oncebridge"
      metric      = "OldestUnfinished"
      dimensions  = { Function = var.name }
      statistic   = "Maximum"
      period      = local.timing.round
      periods     = 1
      threshold   = var.oldest_message_seconds
    }
    "retrying" = {
      description = "Deliveries fail again and again; the receiver is away or unsteady, see the function's log"
      namespace   = "Oncebridge"
      metric      = "Retrying"
      dimensions  = { Function = var.name }
      statistic   = "Sum"
      period      = local.timing.round
      periods     = 3
      threshold   = 0
    }
    "lost-claims" = {
      description = "Claims were taken over while a handler ran, so an effect may be there twice; raise lease_seconds"
      namespace   = "Oncebridge"
      metric      = "LostClaims"
      dimensions  = { Function = var.name }
      statistic   = "Sum"
      period      = 300
      periods     = 1
      threshold   = 0
    }
    "silent-topics" = {
      description = "A topic that usually comes at this hour does not; oncebridge top and the function's log name it"
      namespace   = "Oncebridge"
      metric      = "SilentTopics"
      dimensions  = { Function = var.name }
      statistic   = "Sum"
      period      = 300
      periods     = 1
      threshold   = 0
    }
    "errors" = {
      description = "Invocations failed or ran out of time; what they had comes again"
      namespace   = "AWS/Lambda"
      metric      = "Errors"
      dimensions  = { FunctionName = var.name }
      statistic   = "Sum"
      period      = 300
      periods     = 1
      threshold   = 0
    }
    "throttles" = {
      description = "The account has no concurrency left for the function"
      namespace   = "AWS/Lambda"
      metric      = "Throttles"
      dimensions  = { FunctionName = var.name }
      statistic   = "Sum"
      period      = 300
      periods     = 1
      threshold   = 0
    }
    "dead-letters" = {
      description = "Events became dead letters; see oncebridge dead list"
      namespace   = "Oncebridge"
      metric      = "DeadLetters"
      dimensions  = { Function = var.name }
      statistic   = "Sum"
      period      = 300
      periods     = 1
      threshold   = 0
    }
    "conflicts" = {
      description = "The same id came with other content, which may be an attack; see oncebridge dead list"
      namespace   = "Oncebridge"
      metric      = "Conflicts"
      dimensions  = { Function = var.name }
      statistic   = "Sum"
      period      = 300
      periods     = 1
      threshold   = 0
    }
    "unhandled" = {
      description = "No handler and no sink takes the topic of some events; see oncebridge doctor, or narrow the rule"
      namespace   = "Oncebridge"
      metric      = "Unhandled"
      dimensions  = { Function = var.name }
      statistic   = "Sum"
      period      = 300
      periods     = 1
      threshold   = 0
    }
    "failed-invocations" = {
      description = "EventBridge gave up on events; they are in the undelivered queue"
      namespace   = "AWS/Events"
      metric      = "FailedInvocations"
      dimensions  = local.rule_dimensions
      statistic   = "Sum"
      period      = 300
      periods     = 1
      threshold   = 0
    }
    "lost-invocations" = {
      description = "EventBridge could not even put events into the undelivered queue, and they are lost"
      namespace   = "AWS/Events"
      metric      = "InvocationsFailedToBeSentToDlq"
      dimensions  = local.rule_dimensions
      statistic   = "Sum"
      period      = 300
      periods     = 1
      threshold   = 0
    }
  }
  alarm_actions = var.alarm_email != "" ? [aws_sns_topic.alarms[0].arn] : (var.alarm_topic_arn != "" ? [var.alarm_topic_arn] : null)
}

resource "aws_cloudwatch_metric_alarm" "alarm" {
  for_each            = local.alarms
  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.description
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  statistic           = each.value.statistic
  period              = each.value.period
  evaluation_periods  = each.value.periods
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.threshold
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
  tags                = var.tags
}

# A part in front of the queue that is switched off, paused or removed makes no errors, only silence.
resource "aws_cloudwatch_metric_alarm" "silence" {
  count               = var.silence_minutes > 0 ? 1 : 0
  alarm_name          = "${var.name}-silence"
  alarm_description   = "No event came; look at the integration in Genesys Cloud, the partner event source, and the rule"
  namespace           = "AWS/SQS"
  metric_name         = "NumberOfMessagesSent"
  dimensions          = { QueueName = var.name }
  statistic           = "Sum"
  period              = 60
  evaluation_periods  = var.silence_minutes
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  treat_missing_data  = "breaching" # an unused queue reports nothing at all
  alarm_actions       = local.alarm_actions
  tags                = var.tags
}

resource "aws_sns_topic" "alarms" {
  count             = var.alarm_email != "" ? 1 : 0
  name              = "${var.name}-alarms"
  kms_master_key_id = local.key_arn
  tags              = var.tags

  lifecycle {
    precondition {
      condition     = var.alarm_topic_arn == ""
      error_message = "Give alarm_topic_arn or alarm_email, not both: subscribe the address to your topic."
    }
  }
}

resource "aws_sns_topic_subscription" "alarms" {
  count     = var.alarm_email != "" ? 1 : 0
  topic_arn = aws_sns_topic.alarms[0].arn
  protocol  = "email"
  endpoint  = var.alarm_email
}

resource "aws_sns_topic_policy" "alarms" {
  count = var.alarm_email != "" ? 1 : 0
  arn   = aws_sns_topic.alarms[0].arn
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TheAlarmsTell"
      Effect    = "Allow"
      Principal = { Service = "cloudwatch.amazonaws.com" }
      Action    = "sns:Publish"
      Resource  = local.topic_arn
      Condition = {
        ArnLike      = { "aws:SourceArn" = "arn:${local.partition}:cloudwatch:${local.region}:${local.account}:alarm:${var.name}-*" }
        StringEquals = { "aws:SourceAccount" = local.account }
      }
    }]
  })
}
