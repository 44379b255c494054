# partner bus -> rule -> queue -> function -> downstream_url, with the ledger beside it.
# The comments in deploy/template.yaml give the reasons for every setting here.

locals {
  account   = data.aws_caller_identity.here.account_id
  partition = data.aws_partition.here.partition
  region    = data.aws_region.here.name
  suffix    = data.aws_partition.here.dns_suffix

  # Written out from names, so that a plan shows every policy in full before anything is made.
  sqs             = "arn:${local.partition}:sqs:${local.region}:${local.account}"
  queue_arn       = "${local.sqs}:${var.name}"
  leftover_arn    = "${local.sqs}:${var.name}-leftover"
  undelivered_arn = "${local.sqs}:${var.name}-undelivered"
  dead_letter_arn = "${local.sqs}:${var.name}-dead-letters"
  log_group_arn   = "arn:${local.partition}:logs:${local.region}:${local.account}:log-group:/aws/lambda/${var.name}"
  function_arn    = "arn:${local.partition}:lambda:${local.region}:${local.account}:function:${var.name}"
  table_arn       = "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.name}-ledger"
  topic_arn       = "arn:${local.partition}:sns:${local.region}:${local.account}:${var.name}-alarms"

  on_dynamodb = var.ledger == "DynamoDB"
  url_secret  = { Redis = var.redis_url_secret, Postgres = var.postgres_url_secret, DynamoDB = "" }[var.ledger]
  in_vpc      = length(var.subnet_ids) > 0
  key_arn     = var.key_arn == "" ? null : var.key_arn

  # By the function's timeout: how long a message is hidden, without and with batches that are waited for, how often
  # it may be received, and after how long whatever is unfinished was tried once more.
  timing = {
    "30"  = { hidden = 180, hidden_batching = 480, receives = 1000, round = 600 }
    "60"  = { hidden = 360, hidden_batching = 660, receives = 900, round = 900 }
    "120" = { hidden = 720, hidden_batching = 1020, receives = 590, round = 1200 }
    "300" = { hidden = 1800, hidden_batching = 2100, receives = 280, round = 2400 }
    "900" = { hidden = 5400, hidden_batching = 5700, receives = 100, round = 6000 }
  }[tostring(var.timeout)]

  retention_seconds = 1209600 # 14 days: ONCEBRIDGE_QUEUE_RETENTION_DAYS

  no_plain_text = {
    for queue, arn in {
      queue        = local.queue_arn, leftover = local.leftover_arn, undelivered = local.undelivered_arn,
      dead_letters = local.dead_letter_arn
    } :
    queue => {
      Sid       = "NobodyWithoutTLS"
      Effect    = "Deny"
      Principal = "*"
      Action    = "sqs:*"
      Resource  = arn
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }
  }
  # Without the condition, a rule in anybody's account could send forged events.
  the_rule_sends = {
    for queue, arn in { queue = local.queue_arn, undelivered = local.undelivered_arn } :
    queue => {
      Sid       = "TheRuleSends"
      Effect    = "Allow"
      Principal = { Service = "events.amazonaws.com" }
      Action    = "sqs:SendMessage"
      Resource  = arn
      Condition = {
        ArnLike = {
          "aws:SourceArn" = [
            "arn:${local.partition}:events:${local.region}:${local.account}:rule/*/${var.name}",
            "arn:${local.partition}:events:${local.region}:${local.account}:rule/${var.name}",
          ]
        }
        StringEquals = { "aws:SourceAccount" = local.account }
      }
    }
  }
}

# --- the way in -----------------------------------------------------------------------------------------------------

resource "aws_cloudwatch_event_bus" "bus" {
  count             = var.create_event_bus ? 1 : 0
  name              = var.event_bus_name
  event_source_name = var.event_bus_name
  tags              = var.tags

  # While a partner source has no bus, its events are dropped for good.
  lifecycle { prevent_destroy = true }
}

# Last of all: both queues admit the rule before it is there, and for as long as it is.
resource "aws_cloudwatch_event_rule" "rule" {
  name           = var.name
  description    = "Genesys Cloud events for Oncebridge"
  event_bus_name = var.create_event_bus ? aws_cloudwatch_event_bus.bus[0].name : var.event_bus_name
  state          = "ENABLED"
  event_pattern = jsonencode({
    source        = [{ prefix = var.event_source_prefix }]
    "detail-type" = [for prefix in var.topic_prefixes : { prefix = prefix }]
  })
  tags = var.tags

  depends_on = [
    aws_sqs_queue_policy.queue,
    aws_sqs_queue_policy.undelivered,
    aws_lambda_function.function,
    aws_lambda_event_source_mapping.queue,
  ]
}

resource "aws_cloudwatch_event_target" "queue" {
  rule           = aws_cloudwatch_event_rule.rule.name
  event_bus_name = aws_cloudwatch_event_rule.rule.event_bus_name
  target_id      = "queue"
  arn            = local.queue_arn

  retry_policy {
    maximum_event_age_in_seconds = 86400
    maximum_retry_attempts       = 185
  }
  dead_letter_config { arn = local.undelivered_arn }
}

resource "aws_sqs_queue" "queue" {
  name                       = var.name
  message_retention_seconds  = local.retention_seconds
  visibility_timeout_seconds = var.batching_seconds > 0 ? local.timing.hidden_batching : local.timing.hidden
  receive_wait_time_seconds  = 20
  sqs_managed_sse_enabled    = local.key_arn == null ? true : null
  kms_master_key_id          = local.key_arn
  redrive_policy = jsonencode({
    deadLetterTargetArn = local.leftover_arn
    maxReceiveCount     = local.timing.receives
  })
  tags = var.tags

  depends_on = [aws_sqs_queue.leftover]
}

resource "aws_sqs_queue" "leftover" {
  name                      = "${var.name}-leftover"
  message_retention_seconds = local.retention_seconds
  sqs_managed_sse_enabled   = local.key_arn == null ? true : null
  kms_master_key_id         = local.key_arn
  tags                      = var.tags
}

resource "aws_sqs_queue" "undelivered" {
  name                      = "${var.name}-undelivered"
  message_retention_seconds = local.retention_seconds
  sqs_managed_sse_enabled   = local.key_arn == null ? true : null
  kms_master_key_id         = local.key_arn
  tags                      = var.tags
}

resource "aws_sqs_queue_policy" "queue" {
  queue_url = aws_sqs_queue.queue.id
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [local.the_rule_sends.queue, local.no_plain_text.queue]
  })
}

resource "aws_sqs_queue_policy" "undelivered" {
  queue_url = aws_sqs_queue.undelivered.id
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [local.the_rule_sends.undelivered, local.no_plain_text.undelivered]
  })
}

resource "aws_sqs_queue_policy" "leftover" {
  queue_url = aws_sqs_queue.leftover.id
  policy    = jsonencode({ Version = "2012-10-17", Statement = [local.no_plain_text.leftover] })
}

# --- the function ---------------------------------------------------------------------------------------------------

resource "aws_lambda_function" "function" {
  function_name    = var.name
  filename         = var.zip
  source_code_hash = filebase64sha256(var.zip)
  handler          = var.handler
  runtime          = "python3.12"
  architectures    = [var.architecture]
  memory_size      = var.memory_size
  timeout          = var.timeout
  role             = aws_iam_role.function.arn
  tags             = var.tags

  tracing_config { mode = var.tracing ? "Active" : "PassThrough" }
  logging_config {
    log_format = "Text"
    log_group  = aws_cloudwatch_log_group.function.name
  }
  dynamic "vpc_config" {
    for_each = local.in_vpc ? [1] : []
    content {
      subnet_ids         = var.subnet_ids
      security_group_ids = var.security_group_ids
    }
  }
  environment {
    variables = merge(
      {
        # Redis and Postgres are named by their secret: not everyone who may look at the function may see its password.
        ONCEBRIDGE_LEDGER               = local.on_dynamodb ? "dynamodb://${var.name}-ledger" : "secretsmanager:${local.url_secret}"
        ONCEBRIDGE_RETENTION_DAYS       = "35"
        ONCEBRIDGE_QUEUE_RETENTION_DAYS = "14"
        ONCEBRIDGE_HIDE_UNTIL_RETRY     = "true"
        ONCEBRIDGE_CONCURRENCY          = tostring(var.handlers_at_once)
        ONCEBRIDGE_ALLOWED_SOURCES      = "${var.event_source_prefix}*"
        ONCEBRIDGE_ALLOWED_ORGS         = join(",", var.allowed_orgs)
        ONCEBRIDGE_DOWNSTREAM_URL       = var.downstream_url
        ONCEBRIDGE_DEAD_LETTER_BUS      = var.dead_letter_bus_arn
      },
      var.key_secret == "" ? {} : { ONCEBRIDGE_SECRET = "secretsmanager:${var.key_secret}" },
      var.dead_letter_queue ? { ONCEBRIDGE_DEAD_LETTER_QUEUE = aws_sqs_queue.dead_letters[0].url } : {},
    )
  }

  lifecycle {
    precondition {
      condition     = local.on_dynamodb || local.url_secret != ""
      error_message = "ledger is ${var.ledger}: give the ARN of the secret with its URL in ${lower(var.ledger)}_url_secret."
    }
    precondition {
      condition     = var.batch_size <= 10 || var.batching_seconds > 0
      error_message = "batch_size above 10 needs batching_seconds of 1 or more."
    }
  }
  depends_on = [aws_iam_role_policy.function]
}

resource "aws_lambda_event_source_mapping" "queue" {
  event_source_arn                   = aws_sqs_queue.queue.arn
  function_name                      = aws_lambda_function.function.function_name
  batch_size                         = var.batch_size
  maximum_batching_window_in_seconds = var.batching_seconds
  function_response_types            = ["ReportBatchItemFailures"]
  tags                               = var.tags
  scaling_config { maximum_concurrency = var.maximum_concurrency }
}

# For direct, asynchronous invocations alone; messages of the queue return to the queue.
resource "aws_lambda_function_event_invoke_config" "function" {
  function_name                = aws_lambda_function.function.function_name
  maximum_event_age_in_seconds = 21600
  maximum_retry_attempts       = 2
  destination_config {
    on_failure { destination = aws_sqs_queue.leftover.arn }
  }
}

resource "aws_cloudwatch_log_group" "function" {
  name              = "/aws/lambda/${var.name}"
  retention_in_days = var.log_retention_days
  kms_key_id        = local.key_arn
  tags              = var.tags
}

# --- the ledger -----------------------------------------------------------------------------------------------------

# As `oncebridge migrate` makes it, and with backups. Without it every event that is delivered again takes effect again.
resource "aws_dynamodb_table" "ledger" {
  count                       = local.on_dynamodb ? 1 : 0
  name                        = "${var.name}-ledger"
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = "pk"
  range_key                   = "sk"
  deletion_protection_enabled = true
  tags                        = var.tags

  attribute {
    name = "pk"
    type = "S"
  }
  attribute {
    name = "sk"
    type = "S"
  }
  ttl {
    attribute_name = "expires"
    enabled        = true
  }
  point_in_time_recovery { enabled = true }
  dynamic "server_side_encryption" {
    for_each = local.key_arn == null ? [] : [1]
    content {
      enabled     = true
      kms_key_arn = local.key_arn
    }
  }

  lifecycle { prevent_destroy = true }
}

# --- dead letters, sent on ------------------------------------------------------------------------------------------

resource "aws_sqs_queue" "dead_letters" {
  count                     = var.dead_letter_queue ? 1 : 0
  name                      = "${var.name}-dead-letters"
  message_retention_seconds = local.retention_seconds
  sqs_managed_sse_enabled   = local.key_arn == null ? true : null
  kms_master_key_id         = local.key_arn
  tags                      = var.tags
}

resource "aws_sqs_queue_policy" "dead_letters" {
  count     = var.dead_letter_queue ? 1 : 0
  queue_url = aws_sqs_queue.dead_letters[0].id
  policy    = jsonencode({ Version = "2012-10-17", Statement = [local.no_plain_text.dead_letters] })
}
