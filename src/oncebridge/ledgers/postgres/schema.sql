-- The Postgres ledger, in a schema of its own. Times ending in _us are microseconds since 1970 by this server's
-- clock, _ms milliseconds. In clear are topics, event times and envelope ids; everything else of a payload is a
-- keyed digest, except the content of dead letters.

CREATE TABLE {schema}.meta (name text PRIMARY KEY, value bytea NOT NULL);

-- One row per event and handler. Every delivery of an event has the same day, so an event is always looked up where it
-- is kept; a day's partition is dropped whole once everything settled in it is old enough.
CREATE TABLE {schema}.event (
    day            integer NOT NULL,           -- of the event's time, since 1970; -1 where it has no time of its own
    key            bytea   NOT NULL,           -- digest of the identity
    handler        text    NOT NULL,           -- stable name; '' for the one that needs none
    status         text    NOT NULL,           -- claimed retry release | done echo stale dead discard
    token          bigint  NOT NULL,           -- fences the claim
    nonce          bytea   NOT NULL,           -- of the claim call, to recognise its repeat
    lease_until_us bigint  NOT NULL,           -- of a fact; 0 for a state
    alone          boolean NOT NULL,           -- claimed with nothing else, so a run-out is its own
    attempts       integer NOT NULL,           -- failures, and run-outs alone
    content        bytea,                      -- digest, under an explicit id
    envelope       text,                       -- envelope id of the delivery that did the work
    changed_us     bigint  NOT NULL,
    retry_at_us    bigint  NOT NULL,           -- of a retry: not before, as advice
    letter         boolean NOT NULL,           -- while a dead letter is kept
    topic          text    NOT NULL,
    time_ms        bigint,
    conversation   bytea,                      -- digests, for find
    "user"         bytea,
    entity         bytea,
    PRIMARY KEY (key, handler, day)
) PARTITION BY LIST (day);

-- No index on columns that a settle changes, and room on the same page: then it writes no index at all.
CREATE INDEX event_conversation ON {schema}.event (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX event_user ON {schema}.event ("user") WHERE "user" IS NOT NULL;

CREATE TABLE {schema}.event_undated PARTITION OF {schema}.event FOR VALUES IN (-1) WITH (fillfactor = 50);
-- Days without a partition: long ago, far ahead, or already dropped.
CREATE TABLE {schema}.event_other PARTITION OF {schema}.event DEFAULT WITH (fillfactor = 50);

-- One row per entity of a state topic: who holds it, and the data that its workers keep there.
CREATE TABLE {schema}.entity (
    key            bytea   PRIMARY KEY,
    token          bigint  NOT NULL,                     -- the top one of the chain that holds it, or held it last
    nonce          bytea   NOT NULL,                     -- of the claim call, while it is held
    lease_until_us bigint  NOT NULL,                     -- 0: not held
    ran_out        boolean NOT NULL,                     -- its holder found that the previous lease ran out
    data           bytea   NOT NULL,                     -- as the last settle left it; opaque to SQL
    changed_us     bigint  NOT NULL
) WITH (fillfactor = 70);

-- The content of dead letters: the only place for whole payloads.
CREATE TABLE {schema}.letter (
    key     bytea   NOT NULL,
    handler text    NOT NULL,
    day     integer NOT NULL,
    raw     bytea   NOT NULL,
    reason  text    NOT NULL,                            -- free of personal data
    detail  text    NOT NULL,
    PRIMARY KEY (key, handler)
);

-- A handler's transaction pledges to settle: a row that must be gone when it commits. See settle.sql.
CREATE UNLOGGED TABLE {schema}.pledge (transaction xid8 PRIMARY KEY DEFAULT pg_current_xact_id());
