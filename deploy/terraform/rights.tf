# What the function may do: statement for statement the role of deploy/template.yaml, each on what it needs alone.

locals {
  statements = concat(
    [
      {
        Sid      = "TakeFromTheQueue"
        Effect   = "Allow"
        Action   = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ChangeMessageVisibility"]
        Resource = local.queue_arn
      },
      { Sid = "KeepWhatFailed", Effect = "Allow", Action = "sqs:SendMessage", Resource = local.leftover_arn },
      {
        Sid      = "WriteLogs"
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Resource = "${local.log_group_arn}:*"
      },
    ],
    [for _ in range(local.on_dynamodb ? 1 : 0) : {
      Sid      = "KeepTheLedger"
      Effect   = "Allow"
      Action   = ["dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"]
      Resource = local.table_arn
    }],
    [for _ in range(local.on_dynamodb ? 1 : 0) : {
      Sid       = "LookForPauses"
      Effect    = "Allow"
      Action    = "dynamodb:Query"
      Resource  = local.table_arn
      Condition = { "ForAllValues:StringEquals" = { "dynamodb:LeadingKeys" = ["note#pauses"] } }
    }],
    [for _ in range(var.ledger == "Redis" && var.redis_url_secret != "" ? 1 : 0) : {
      Sid      = "ReadTheLedgersUrl"
      Effect   = "Allow"
      Action   = "secretsmanager:GetSecretValue"
      Resource = var.redis_url_secret
    }],
    [for _ in range(var.ledger == "Postgres" && var.postgres_url_secret != "" ? 1 : 0) : {
      Sid      = "ReadThePostgresUrl"
      Effect   = "Allow"
      Action   = "secretsmanager:GetSecretValue"
      Resource = var.postgres_url_secret
    }],
    [for _ in range(var.key_secret != "" ? 1 : 0) : {
      Sid      = "ReadTheSecretOfKeys"
      Effect   = "Allow"
      Action   = "secretsmanager:GetSecretValue"
      Resource = var.key_secret
    }],
    [for _ in range(var.dead_letter_queue ? 1 : 0) : {
      Sid      = "SendDeadLettersToTheQueue"
      Effect   = "Allow"
      Action   = ["sqs:SendMessage", "sqs:GetQueueAttributes"]
      Resource = local.dead_letter_arn
    }],
    [for _ in range(var.dead_letter_bus_arn != "" ? 1 : 0) : {
      Sid      = "SendDeadLettersToTheBus"
      Effect   = "Allow"
      Action   = "events:PutEvents"
      Resource = var.dead_letter_bus_arn
      Condition = {
        "ForAllValues:StringEquals" = { "events:source" = "oncebridge", "events:detail-type" = "Dead Letter" }
      }
    }],
    [for _ in range(var.dead_letter_bus_arn != "" ? 1 : 0) : {
      Sid      = "LookForTheBus"
      Effect   = "Allow"
      Action   = "events:DescribeEventBus"
      Resource = var.dead_letter_bus_arn
    }],
    [for _ in range(length(var.secret_arns) > 0 ? 1 : 0) : {
      Sid      = "ReadSecretsOfSinks"
      Effect   = "Allow"
      Action   = "secretsmanager:GetSecretValue"
      Resource = var.secret_arns
    }],
    [for _ in range(length(var.sink_bus_arns) > 0 ? 1 : 0) : {
      Sid      = "PutEventsOnBuses"
      Effect   = "Allow"
      Action   = ["events:PutEvents", "events:DescribeEventBus"]
      Resource = var.sink_bus_arns
    }],
    [for _ in range(length(var.sink_queue_arns) > 0 ? 1 : 0) : {
      Sid      = "SendEventsToQueues"
      Effect   = "Allow"
      Action   = ["sqs:SendMessage", "sqs:GetQueueAttributes"]
      Resource = var.sink_queue_arns
    }],
    [for _ in range(local.key_arn != null ? 1 : 0) : {
      Sid    = "UseTheKey"
      Effect = "Allow"
      Action = [
        "kms:Decrypt",
        "kms:DescribeKey",
        "kms:Encrypt",
        "kms:GenerateDataKey",
        "kms:GenerateDataKeyWithoutPlaintext",
        "kms:ReEncryptFrom",
        "kms:ReEncryptTo",
      ]
      Resource = local.key_arn
      Condition = {
        StringEquals = {
          "kms:ViaService" = ["sqs.${local.region}.${local.suffix}", "dynamodb.${local.region}.${local.suffix}"]
        }
      }
    }],
    [for _ in range(length(var.secret_key_arns) > 0 ? 1 : 0) : {
      Sid       = "DecryptSecrets"
      Effect    = "Allow"
      Action    = "kms:Decrypt"
      Resource  = var.secret_key_arns
      Condition = { StringEquals = { "kms:ViaService" = "secretsmanager.${local.region}.${local.suffix}" } }
    }],
    [for _ in range(var.tracing ? 1 : 0) : {
      Sid      = "WriteTraces"
      Effect   = "Allow"
      Action   = ["xray:PutTraceSegments", "xray:PutTelemetryRecords"]
      Resource = "*" # X-Ray knows no other
    }],
    [for _ in range(local.in_vpc ? 1 : 0) : {
      Sid    = "BeInTheVpc"
      Effect = "Allow"
      Action = [
        "ec2:CreateNetworkInterface",
        "ec2:DeleteNetworkInterface",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSubnets",
        "ec2:AssignPrivateIpAddresses",
        "ec2:UnassignPrivateIpAddresses",
      ]
      Resource = "*" # describing cannot be narrowed, and interfaces have no name before
    }],
    [for _ in range(local.in_vpc ? 1 : 0) : {
      Sid       = "ButNotFromItsCode"
      Effect    = "Deny" # Lambda makes the interfaces, before the function's code runs
      Action    = "ec2:*"
      Resource  = "*"
      Condition = { ArnEquals = { "lambda:SourceFunctionArn" = local.function_arn } }
    }],
  )
}

resource "aws_iam_role" "function" {
  name_prefix          = substr("${var.name}-function-", 0, 38)
  permissions_boundary = var.permissions_boundary_arn == "" ? null : var.permissions_boundary_arn
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" },
    ]
  })
  tags = var.tags
}

resource "aws_iam_role_policy" "function" {
  name   = "function"
  role   = aws_iam_role.function.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.statements })
}
