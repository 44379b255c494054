-- The SQLite ledger. Times ending in _us are microseconds since 1970 by this machine's clock, _ms milliseconds.
-- In clear are topics, event times and envelope ids; everything else of a payload is a keyed digest, except the
-- content of dead letters. Handlers may keep tables of their own in this file, so ours have a prefix.

CREATE TABLE IF NOT EXISTS oncebridge_meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;

-- One row per event and handler. With a rowid: rows of one batch are adjacent, and settling them writes few pages.
CREATE TABLE IF NOT EXISTS oncebridge_event (
    key            BLOB    NOT NULL,           -- digest of the identity
    handler        TEXT    NOT NULL,           -- stable name; '' for the one that needs none
    status         TEXT    NOT NULL,           -- claimed retry release | done echo stale dead discard
    token          INTEGER NOT NULL,           -- fences the claim; those of a chain are consecutive
    nonce          BLOB    NOT NULL,           -- of the claim call, to recognise its repeat
    lease_until_us INTEGER NOT NULL,           -- of a fact; 0 for a state
    alone          INTEGER NOT NULL,           -- claimed with nothing else, so a run-out is its own
    attempts       INTEGER NOT NULL,           -- failures, and run-outs alone
    content        BLOB,                       -- digest, under an explicit id
    envelope       TEXT,                       -- envelope id of the delivery that did the work
    changed_us     INTEGER NOT NULL,
    retry_at_us    INTEGER NOT NULL,           -- of a retry: not before, as advice
    letter         INTEGER NOT NULL,           -- 1 while a dead letter is kept
    topic          TEXT    NOT NULL,
    time_ms        INTEGER,
    conversation   BLOB,                       -- digests, for find
    user           BLOB,
    entity         BLOB,
    PRIMARY KEY (key, handler)
);

-- Conversations and users have no index: each would cost every event a page of the log, and `find` can read the table.
-- Only letters are in this one, so that nothing else pays for it.
CREATE INDEX IF NOT EXISTS oncebridge_event_letter ON oncebridge_event (changed_us) WHERE letter = 1;

-- One row per entity of a state topic: who holds it, and the data that its workers leave to each other.
CREATE TABLE IF NOT EXISTS oncebridge_entity (
    key            BLOB PRIMARY KEY,
    token          INTEGER NOT NULL,           -- the top one of the chain that holds it, or held it last
    nonce          BLOB    NOT NULL,           -- of the call that claimed it, while it is held
    lease_until_us INTEGER NOT NULL,           -- 0: not held
    ran_out        INTEGER NOT NULL,           -- 1: its holder found that the previous lease ran out
    data           BLOB    NOT NULL,           -- as its last settle left it
    changed_us     INTEGER NOT NULL
) WITHOUT ROWID;

-- The content of dead letters: the only place for whole payloads.
CREATE TABLE IF NOT EXISTS oncebridge_letter (
    key     BLOB NOT NULL,
    handler TEXT NOT NULL,
    raw     BLOB NOT NULL,
    reason  TEXT NOT NULL,                     -- free of personal data
    detail  TEXT NOT NULL,
    PRIMARY KEY (key, handler)
);
