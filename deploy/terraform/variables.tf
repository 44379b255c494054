variable "name" {
  type        = string
  description = "What everything is named after, as the template's parts are after its stack"
  validation {
    condition     = can(regex("^[A-Za-z][A-Za-z0-9-]{0,47}$", var.name))
    error_message = "name: a letter, then up to 47 letters, digits and hyphens; queues and roles are named after it."
  }
}

variable "zip" {
  type        = string
  description = "Path of the zip that make package has made: dist/oncebridge-lambda.zip"
}

variable "tags" {
  type        = map(string)
  description = "Tags of everything that can have tags"
  default     = {}
}

variable "event_bus_name" {
  type        = string
  description = "The partner bus, named like its event source - aws.partner/genesys.com/cloud/ORG/SUFFIX"
  validation {
    condition     = can(regex("^(?:[A-Za-z0-9/._-]{1,256})$", var.event_bus_name))
    error_message = "event_bus_name is not of the form that its description names."
  }
}

variable "create_event_bus" {
  type        = bool
  description = "true: make the bus, which accepts the partner event source of that name; false: it is there already"
  default     = false
}

variable "event_source_prefix" {
  type        = string
  description = "How the source of every event begins; others match no rule, and are refused by the function too"
  default     = "aws.partner/genesys.com/"
  validation {
    condition     = can(regex("^(?:[A-Za-z0-9/._-]{1,256})$", var.event_source_prefix))
    error_message = "event_source_prefix is not of the form that its description names."
  }
}

variable "topic_prefixes" {
  type        = list(string)
  description = "How the topics (detail-type) to take begin; v2. is all of them"
  default     = ["v2."]
  validation {
    condition     = alltrue([for one in var.topic_prefixes : can(regex("^(?:[A-Za-z0-9{}._ :-]{1,256})$", one))])
    error_message = "topic_prefixes is not of the form that its description names."
  }
}

variable "allowed_orgs" {
  type        = list(string)
  description = "Ids of the Genesys orgs whose events may come in; none for all"
  default     = []
  validation {
    condition     = alltrue([for one in var.allowed_orgs : can(regex("^[A-Za-z0-9-]+$", one))])
    error_message = "allowed_orgs is not of the form that its description names."
  }
}

variable "downstream_url" {
  type        = string
  description = "Where each event is posted to; empty if sinks or handlers were added to the zip"
  default     = ""
  validation {
    condition     = can(regex("^(?:(https?://[!-~]+)?)$", var.downstream_url))
    error_message = "downstream_url is not of the form that its description names."
  }
}

variable "handler" {
  type        = string
  description = "What Lambda calls; a function of your own is in a module that was added to the zip"
  default     = "oncebridge.aws.handler"
  validation {
    condition     = can(regex("^(?:[A-Za-z0-9_.]+)$", var.handler))
    error_message = "handler is not of the form that its description names."
  }
}

variable "secret_arns" {
  type        = list(string)
  description = "ARNs of the secrets that an oncebridge.toml in the zip names by secretsmanager, if it does"
  default     = []
  validation {
    condition     = alltrue([for one in var.secret_arns : can(regex("^arn:[a-z-]+:secretsmanager:[A-Za-z0-9:/_+=.@-]+$", one))])
    error_message = "secret_arns is not of the form that its description names."
  }
}

variable "sink_bus_arns" {
  type        = list(string)
  description = "ARNs of the buses that sinks in an oncebridge.toml in the zip put events on, if they do"
  default     = []
  validation {
    condition     = alltrue([for one in var.sink_bus_arns : can(regex("^arn:[a-z-]+:events:[a-z0-9-]+:[0-9]{12}:event-bus/[A-Za-z0-9/._-]+$", one))])
    error_message = "sink_bus_arns is not of the form that its description names."
  }
}

variable "sink_queue_arns" {
  type        = list(string)
  description = "ARNs of the queues that sinks in an oncebridge.toml in the zip send events to, if they do"
  default     = []
  validation {
    condition     = alltrue([for one in var.sink_queue_arns : can(regex("^arn:[a-z-]+:sqs:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]+(\\.fifo)?$", one))])
    error_message = "sink_queue_arns is not of the form that its description names."
  }
}

variable "dead_letter_queue" {
  type        = bool
  description = "Whether dead letters are sent to a queue too; they are in the ledger in any case"
  default     = false
}

variable "dead_letter_bus_arn" {
  type        = string
  description = "ARN of an event bus that dead letters are sent to as well; empty for none"
  default     = ""
  validation {
    condition     = can(regex("^(?:(arn:[a-z-]+:events:[a-z0-9-]+:[0-9]{12}:event-bus/[A-Za-z0-9/._-]+)?)$", var.dead_letter_bus_arn))
    error_message = "dead_letter_bus_arn is not of the form that its description names."
  }
}

variable "ledger" {
  type        = string
  description = "Where claims and outcomes are remembered"
  default     = "DynamoDB"
  validation {
    condition     = contains(["DynamoDB", "Redis", "Postgres"], var.ledger)
    error_message = "ledger: one of DynamoDB, Redis, Postgres."
  }
}

variable "redis_url_secret" {
  type        = string
  description = "ARN of the secret that holds the URL, such as rediss://user:password@host:6379/0 (Redis only)"
  default     = ""
  validation {
    condition     = can(regex("^(?:(arn:[a-z-]+:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[A-Za-z0-9/_+=.@-]+)?)$", var.redis_url_secret))
    error_message = "redis_url_secret is not of the form that its description names."
  }
}

variable "postgres_url_secret" {
  type        = string
  description = "ARN of the secret that holds the URL, such as postgresql://user:password@host/app?sslmode=verify-full (Postgres only); first run oncebridge migrate"
  default     = ""
  validation {
    condition     = can(regex("^(?:(arn:[a-z-]+:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[A-Za-z0-9/_+=.@-]+)?)$", var.postgres_url_secret))
    error_message = "postgres_url_secret is not of the form that its description names."
  }
}

variable "key_secret" {
  type        = string
  description = "ARN of a secret of 16 to 64 characters that keys are made with; without, the ledger makes one, and a Redis may forget it"
  default     = ""
  validation {
    condition     = can(regex("^(?:(arn:[a-z-]+:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[A-Za-z0-9/_+=.@-]+)?)$", var.key_secret))
    error_message = "key_secret is not of the form that its description names."
  }
}

variable "subnet_ids" {
  type        = list(string)
  description = "Subnets of a VPC to run in; they need a way to all that the function calls, see deploy/README.md"
  default     = []
}

variable "security_group_ids" {
  type        = list(string)
  description = "Security groups of the function in these subnets"
  default     = []
}

variable "key_arn" {
  type        = string
  description = "ARN of a KMS key of yours for queues, table, log and topic; first let EventBridge use it, see deploy/README.md"
  default     = ""
  validation {
    condition     = can(regex("^(?:(arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+)?)$", var.key_arn))
    error_message = "key_arn is not of the form that its description names."
  }
}

variable "secret_key_arns" {
  type        = list(string)
  description = "ARNs of KMS keys of yours that secrets are encrypted with, if they are"
  default     = []
  validation {
    condition     = alltrue([for one in var.secret_key_arns : can(regex("^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$", one))])
    error_message = "secret_key_arns is not of the form that its description names."
  }
}

variable "permissions_boundary_arn" {
  type        = string
  description = "ARN of the policy that bounds every role you make, if there is one"
  default     = ""
  validation {
    condition     = can(regex("^(?:(arn:[a-z-]+:iam::([0-9]{12}|aws):policy/[A-Za-z0-9/+=,.@_-]+)?)$", var.permissions_boundary_arn))
    error_message = "permissions_boundary_arn is not of the form that its description names."
  }
}

variable "tracing" {
  type        = bool
  description = "Whether invocations are traced with X-Ray"
  default     = false
}

variable "batch_size" {
  type        = number
  description = "How many messages one invocation gets at most; more than 10 need BatchingSeconds"
  default     = 10
  validation {
    condition     = var.batch_size >= 1 && var.batch_size <= 1000
    error_message = "batch_size: from 1 to 1000."
  }
}

variable "batching_seconds" {
  type        = number
  description = "How long to wait for a batch to fill"
  default     = 0
  validation {
    condition     = var.batching_seconds >= 0 && var.batching_seconds <= 300
    error_message = "batching_seconds: from 0 to 300."
  }
}

variable "handlers_at_once" {
  type        = number
  description = "How many events of a batch are worked on at once"
  default     = 5
  validation {
    condition     = var.handlers_at_once >= 1 && var.handlers_at_once <= 256
    error_message = "handlers_at_once: from 1 to 256."
  }
}

variable "maximum_concurrency" {
  type        = number
  description = "How many invocations run at once, at most; times HandlersAtOnce it is what the receiver has to bear"
  default     = 5
  validation {
    condition     = var.maximum_concurrency >= 2 && var.maximum_concurrency <= 1000
    error_message = "maximum_concurrency: from 2 to 1000."
  }
}

variable "timeout" {
  type        = number
  description = "Seconds that an invocation may take"
  default     = 60
  validation {
    condition     = contains([30, 60, 120, 300, 900], var.timeout)
    error_message = "timeout: one of 30, 60, 120, 300, 900."
  }
}

variable "memory_size" {
  type        = number
  description = "Megabytes; the processor grows with them"
  default     = 512
  validation {
    condition     = var.memory_size >= 128 && var.memory_size <= 10240
    error_message = "memory_size: from 128 to 10240."
  }
}

variable "architecture" {
  type        = string
  description = "The zip holds code for both"
  default     = "arm64"
  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "architecture: one of arm64, x86_64."
  }
}

variable "alarm_topic_arn" {
  type        = string
  description = "ARN of an SNS topic that alarms are sent to; empty to only show them"
  default     = ""
  validation {
    condition     = can(regex("^(?:(arn:[a-z-]+:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_.-]+)?)$", var.alarm_topic_arn))
    error_message = "alarm_topic_arn is not of the form that its description names."
  }
}

variable "alarm_email" {
  type        = string
  description = "Address that alarms are mailed to, by a topic of the stack's own; AWS asks it first whether it agrees"
  default     = ""
  validation {
    condition     = can(regex("^(?:([^@ ]+@[^@ ]+)?)$", var.alarm_email))
    error_message = "alarm_email is not of the form that its description names."
  }
}

variable "oldest_message_seconds" {
  type        = number
  description = "How old the oldest message may get, waiting or tried in vain, before there is an alarm"
  default     = 900
  validation {
    condition     = var.oldest_message_seconds >= 60
    error_message = "oldest_message_seconds: 60 or more."
  }
}

variable "silence_minutes" {
  type        = number
  description = "For how many minutes no event may come before there is an alarm; 0 for never, if you close at night"
  default     = 1440
  validation {
    condition     = var.silence_minutes >= 0 && var.silence_minutes <= 1440
    error_message = "silence_minutes: from 0 to 1440."
  }
}

variable "log_retention_days" {
  type        = number
  description = "How long log lines are kept; they hold keys and topics, no personal data"
  default     = 30
  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 180, 365], var.log_retention_days)
    error_message = "log_retention_days: one of 1, 3, 5, 7, 14, 30, 60, 90, 180, 365."
  }
}
