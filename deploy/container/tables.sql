-- What the sinks in oncebridge.toml write into; run by the container of Postgres when it starts for the first time.
CREATE TABLE events (
    key text PRIMARY KEY,
    topic text NOT NULL,
    happened timestamptz,
    envelope jsonb NOT NULL
);

CREATE TABLE agent_presence (
    agent text PRIMARY KEY,
    presence text,
    changed timestamptz
);
