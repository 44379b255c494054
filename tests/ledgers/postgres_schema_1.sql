-- The tables and functions of schema 1, as its migration made them.

-- The Postgres ledger, in a schema of its own. Times ending in _us are microseconds since 1970 by this server's
-- clock, _ms milliseconds. In clear are topics, event times and envelope ids; everything else of a payload is a
-- keyed digest, but for what dead letters hold.

CREATE TABLE {schema}.meta (name text PRIMARY KEY, value bytea NOT NULL);

-- One row per event and handler. Every delivery of an event has the same day, so it is always looked for where it
-- is kept; a day's partition is dropped whole once all that was settled in it is old enough.
CREATE TABLE {schema}.event (
    day            integer NOT NULL,           -- of the event's time, since 1970; -1 where it has no time of its own
    key            bytea   NOT NULL,           -- digest of the identity
    handler        text    NOT NULL,           -- stable name; '' for the one that needs none
    status         text    NOT NULL,           -- claimed retry release | done echo stale dead discard
    token          bigint  NOT NULL,           -- fences the claim; a state's is its entity's
    nonce          bytea   NOT NULL,           -- of the claim call, to know its repeat
    lease_until_us bigint  NOT NULL,           -- of a fact; 0 for a state
    alone          boolean NOT NULL,           -- claimed with nothing else, so a run-out is its own
    attempts       integer NOT NULL,           -- failures, and run-outs alone
    content        bytea,                      -- digest, under an explicit id
    envelope       text,                       -- envelope id of the delivery that did the work
    changed_us     bigint  NOT NULL,
    again_us       bigint  NOT NULL,           -- of a retry: not before, as advice
    letter         boolean NOT NULL,           -- while a dead letter is kept
    topic          text    NOT NULL,
    time_ms        bigint,
    conversation   bytea,                      -- digests, for find
    "user"         bytea,
    entity         bytea,
    PRIMARY KEY (key, handler, day)
) PARTITION BY LIST (day);

-- No index on what a settle changes, and room for it on the same page: then it writes no index at all.
CREATE INDEX event_conversation ON {schema}.event (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX event_user ON {schema}.event ("user") WHERE "user" IS NOT NULL;

CREATE TABLE {schema}.event_undated PARTITION OF {schema}.event FOR VALUES IN (-1) WITH (fillfactor = 50);
-- Days that have no partition: long ago, far ahead, or dropped already.
CREATE TABLE {schema}.event_other PARTITION OF {schema}.event DEFAULT WITH (fillfactor = 50);

-- One row per entity of a state topic: who holds it, and its newest done event.
CREATE TABLE {schema}.entity (
    key            bytea    PRIMARY KEY,
    token          bigint   NOT NULL DEFAULT 0,
    lease_until_us bigint   NOT NULL DEFAULT 0,          -- 0: not held
    state          bytea,                                -- digest of the newest state
    times          bigint[] NOT NULL DEFAULT '{}',       -- moment of the newest done event, in nanoseconds
    version        bigint,
    echoes         boolean  NOT NULL DEFAULT true,
    newest         bytea,                                -- key of the newest done event, and its day
    newest_day     integer,
    line_times     bigint[] NOT NULL DEFAULT '{}',       -- by which stale is judged
    line_version   bigint,
    unsure         boolean  NOT NULL DEFAULT false,      -- a claim since ended otherwise than done
    changed_us     bigint   NOT NULL
) WITH (fillfactor = 70);

-- What dead letters hold: the only place for whole payloads.
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

-- Claims. The rules are those of claim.py, and a test compares the two on random histories.
--
-- An ask comes as one place in each array; an array of nulls may be left empty. What only needs to be read
-- (duplicates, conflicts, what is busy) is answered without a lock, so nobody waits to learn that. What is to be
-- written is written only if it is still as it was judged; entities are locked before, and everything in the order
-- of its keys, so two calls never wait for each other.

-- The server's time in microseconds.
CREATE OR REPLACE FUNCTION {schema}.now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Whether a status is for good.
CREATE OR REPLACE FUNCTION {schema}.is_settled(status text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT status IN ('done', 'echo', 'stale', 'dead', 'discard')
$$;

-- The next four take the short way where both moments have one time, as nearly all have.

-- Whether one moment is strictly older: no time later, and at least one earlier.
CREATE OR REPLACE FUNCTION {schema}.is_older(one bigint[], one_version bigint, other bigint[], other_version bigint)
RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF one_version IS NOT NULL AND other_version IS NOT NULL THEN
        RETURN other_version - one_version BETWEEN 1 AND 1000;
    END IF;
    IF cardinality(one) = 1 AND cardinality(other) = 1 THEN
        RETURN coalesce(one[1] < other[1], false);
    END IF;
    RETURN (
        SELECT coalesce(bool_or(a < b), false) AND NOT coalesce(bool_or(a > b), false)
        FROM unnest(one, other) AS time(a, b));
END
$$;

-- Whether all times of two moments lie within the echo window.
CREATE OR REPLACE FUNCTION {schema}.is_within(one bigint[], other bigint[], window_ns bigint)
RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF cardinality(one) = 0 OR cardinality(one) <> cardinality(other) THEN
        RETURN false;
    END IF;
    IF cardinality(one) = 1 THEN
        RETURN one[1] IS NOT DISTINCT FROM other[1] OR coalesce(abs(one[1] - other[1]) <= window_ns, false);
    END IF;
    RETURN (
        SELECT bool_and(a IS NOT DISTINCT FROM b OR coalesce(abs(a - b) <= window_ns, false))
        FROM unnest(one, other) AS time(a, b));
END
$$;

-- Whether a moment may become an entity's newest: one from the future would block it for ever.
CREATE OR REPLACE FUNCTION {schema}.is_believable(times bigint[], version bigint, now_us bigint)
RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF version IS NOT NULL THEN
        RETURN true;
    END IF;
    IF cardinality(times) = 1 THEN
        RETURN coalesce(times[1] / 1000 <= now_us + 600000000, false);
    END IF;
    RETURN coalesce((SELECT max(time) / 1000 <= now_us + 600000000 FROM unnest(times) AS time), false);
END
$$;

-- A moment's times, and the line's where it has none: an event without its own time sets back no other's.
CREATE OR REPLACE FUNCTION {schema}.filled(times bigint[], line bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF cardinality(times) = 1 AND cardinality(line) <= 1 THEN
        RETURN ARRAY[coalesce(times[1], line[1])];
    END IF;
    RETURN (
        SELECT coalesce(array_agg(coalesce(a, b) ORDER BY place), '{}')
        FROM unnest(times, line) WITH ORDINALITY AS time(a, b, place));
END
$$;

-- Begin a call: refuse every isolation but READ COMMITTED, since the statements here rely on seeing what was committed
-- before them, and keep partitions from being made meanwhile, which moves events.
CREATE OR REPLACE FUNCTION {schema}.begin_call() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the ledger works in READ COMMITTED, and this is %', current_setting('transaction_isolation')
            USING ERRCODE = 'OB003';
    END IF;
    LOCK TABLE ONLY {schema}.event IN ROW EXCLUSIVE MODE;
END
$$;

-- Lock the entities of those asks that may become claims, echoes or stale; return which asks these are.
CREATE OR REPLACE FUNCTION {schema}.hold_entities(
    days integer[], keys bytea[], handlers text[], entities bytea[], redrives boolean[]
) RETURNS boolean[] LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET lock_timeout = '2s' AS $$
#variable_conflict use_column
<<call>>
DECLARE
    held boolean[];
    now_us bigint := {schema}.now_us();
BEGIN
    SELECT array_agg(
        ask.entity IS NOT NULL
        AND coalesce(entity.lease_until_us, 0) <= call.now_us
        AND CASE WHEN ask.redrive
            THEN coalesce(event.letter AND (event.status = 'dead' OR NOT {schema}.is_settled(event.status)), false)
            ELSE NOT coalesce({schema}.is_settled(event.status), false) END
        ORDER BY ask.place)
    INTO held
    FROM unnest(days, keys, handlers, entities, redrives) WITH ORDINALITY AS
        ask(day, key, handler, entity, redrive, place)
    LEFT JOIN LATERAL (
        SELECT lease_until_us FROM {schema}.entity WHERE entity.key = ask.entity OFFSET 0
    ) AS entity ON true
    LEFT JOIN LATERAL (
        SELECT status, letter FROM {schema}.event WHERE event.day = ANY (days)
            AND event.day = ask.day AND event.key = ask.key AND event.handler = ask.handler OFFSET 0
    ) AS event ON true;
    -- One pass locks what is there and makes what is not.
    INSERT INTO {schema}.entity (key, changed_us)
    SELECT ask.entity, now_us FROM unnest(entities, held) AS ask(entity, held) WHERE ask.held ORDER BY ask.entity
    ON CONFLICT (key) DO UPDATE SET token = entity.token WHERE false;
    RETURN held;
END
$$;

-- Ask for events: each is answered in its place. A move says how it was decided: claimed, echo and stale are written;
-- own and told answer a call that is repeated; alone is fresh, but must be asked for alone.
CREATE OR REPLACE FUNCTION {schema}.claim(
    days integer[], keys bytea[], handlers text[], envelopes text[], contents bytea[],
    entities bytea[], states bytea[], times text[], versions bigint[], echoes boolean[], windows_ns bigint[],
    stales boolean[], topics text[], times_ms bigint[], conversations bytea[], users bytea[],
    alones boolean[], redrives boolean[], forces boolean[], nonce bytea, lease_us bigint,
    OUT verdicts text[], OUT tokens bigint[], OUT attempts integer[], OUT originals text[], OUT statuses text[],
    OUT busies_us bigint[]
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET lock_timeout = '2s' AS $$
#variable_conflict use_column
<<call>>
DECLARE
    now_us bigint;
    held boolean[];
    moves text[];
    -- What the record was, so that it is changed only if it still is, and what it becomes.
    old_statuses text[];
    old_tokens bigint[];
    old_leases_us bigint[];
    new_attempts integer[];
    new_contents bytea[];
    new_letters boolean[];
    drops_letters boolean;
    fresh integer;
    known integer;
    written integer;
    unchanged integer[];
    missing integer := 0;
    place integer;
    own_token bigint;
    own_attempts integer;
BEGIN
    PERFORM {schema}.begin_call();
    IF cardinality(entities) > 0 THEN
        held := {schema}.hold_entities(days, keys, handlers, entities, redrives);
    END IF;
    now_us := {schema}.now_us();
    SELECT array_agg(move ORDER BY place),
        array_agg(CASE
            WHEN move IN ('claimed', 'own', 'alone') THEN 'fresh'
            WHEN move = 'told' THEN status
            WHEN move = 'duplicate' AND same_envelope THEN 'redelivery'
            WHEN move IN ('duplicate', 'unknown') THEN 'republish'
            ELSE move END ORDER BY place),
        array_agg(CASE move WHEN 'claimed' THEN greatest(last_token + 1, call.now_us) WHEN 'own' THEN token ELSE 0 END
            ORDER BY place),
        array_agg(CASE move WHEN 'claimed' THEN attempts_now + 1 WHEN 'own' THEN attempts + 1 ELSE 1 END
            ORDER BY place),
        array_agg(CASE WHEN move IN ('conflict', 'duplicate') THEN envelope END ORDER BY place),
        array_agg(CASE WHEN move = 'duplicate' THEN status END ORDER BY place),
        array_agg(CASE WHEN move = 'busy' THEN greatest(until_us - call.now_us, 1000) ELSE 0 END ORDER BY place),
        array_agg(status ORDER BY place),
        array_agg(token ORDER BY place),
        array_agg(lease_until_us ORDER BY place),
        array_agg(CASE WHEN move = 'claimed' THEN attempts_now ELSE coalesce(attempts, 0) END ORDER BY place),
        array_agg(CASE WHEN move = 'claimed' THEN coalesce(content_now, content) ELSE content_now END ORDER BY place),
        array_agg(move = 'claimed' AND coalesce(letter, false) ORDER BY place),
        bool_or(move IN ('echo', 'stale') AND letter),
        count(*) FILTER (WHERE move IN ('claimed', 'echo', 'stale') AND status IS NULL),
        count(*) FILTER (WHERE move IN ('claimed', 'echo', 'stale') AND status IS NOT NULL)
    INTO moves, verdicts, tokens, attempts, originals, statuses, busies_us, old_statuses, old_tokens, old_leases_us,
        new_attempts, new_contents, new_letters, drops_letters, fresh, known
    FROM (
        SELECT ask.place, event.status, event.token, event.lease_until_us, event.attempts, event.content,
            event.envelope, event.letter, ask.content AS content_now, ask.envelope = event.envelope AS same_envelope,
            CASE WHEN ask.entity IS NULL THEN event.token ELSE entity.token END AS last_token,
            CASE WHEN ask.entity IS NULL THEN event.lease_until_us ELSE entity.lease_until_us END AS until_us,
            CASE WHEN event.status = 'dead' THEN 0  -- redriven: a new start
                ELSE coalesce(event.attempts + (event.status = 'claimed' AND event.alone)::integer, 0)
                END AS attempts_now,
            CASE
                WHEN ask.content <> event.content THEN 'conflict'
                WHEN event.nonce = claim.nonce AND event.status = 'claimed'
                    AND (ask.entity IS NULL OR entity.token = event.token) THEN 'own'
                WHEN event.nonce = claim.nonce AND event.status IN ('echo', 'stale') THEN 'told'
                WHEN {schema}.is_settled(event.status) AND NOT (ask.redrive AND event.status = 'dead')
                    THEN 'duplicate'
                WHEN ask.redrive AND NOT coalesce(event.letter, false) THEN 'unknown'
                WHEN ask.entity IS NULL AND event.status = 'claimed' AND event.lease_until_us > call.now_us THEN 'busy'
                -- An entity that was not to be had when they were locked is in somebody else's hands.
                WHEN ask.entity IS NOT NULL AND (entity.lease_until_us > call.now_us OR NOT ask.held) THEN 'busy'
                WHEN ask.entity IS NOT NULL AND NOT ask.force AND NOT entity.unsure AND entity.lease_until_us = 0
                    AND ask.state = entity.state AND ask.echoes AND entity.echoes
                    AND {schema}.is_within(ask.times, entity.times, ask.window_ns) THEN 'echo'
                WHEN ask.entity IS NOT NULL AND NOT ask.force AND ask.stale
                    AND {schema}.is_older(ask.times, ask.version, entity.line_times, entity.line_version)
                    THEN 'stale'
                WHEN event.status = 'claimed' AND NOT ask.alone THEN 'alone'
                ELSE 'claimed'
            END AS move
        FROM (
            SELECT place, day, key, handler, envelope, content, entity, state, times::bigint[] AS times, version,
                window_ns, coalesce(held, false) AS held, coalesce(echoes, true) AS echoes,
                coalesce(stale, true) AS stale, coalesce(alone, false) AS alone,
                coalesce(redrive, false) AS redrive, coalesce(force, false) AS force
            FROM unnest(days, keys, handlers, envelopes, contents, entities, states, claim.times, versions, claim.echoes,
                    windows_ns, stales, alones, redrives, forces, call.held) WITH ORDINALITY AS
                ask(day, key, handler, envelope, content, entity, state, times, version, echoes, window_ns, stale,
                    alone, redrive, force, held, place)
        ) AS ask
        LEFT JOIN LATERAL (SELECT * FROM {schema}.entity WHERE entity.key = ask.entity OFFSET 0) AS entity ON true
        LEFT JOIN LATERAL (
            SELECT * FROM {schema}.event WHERE event.day = ANY (days)
                AND event.day = ask.day AND event.key = ask.key AND event.handler = ask.handler OFFSET 0
        ) AS event ON true
        OFFSET 0
    ) AS judged;

    IF fresh > 0 THEN
        INSERT INTO {schema}.event (
            day, key, handler, status, token, nonce, lease_until_us, alone, attempts, content, envelope, changed_us,
            again_us, letter, topic, time_ms, conversation, "user", entity)
        SELECT ask.day, ask.key, ask.handler, ask.move, ask.token, claim.nonce,
            CASE WHEN ask.move = 'claimed' AND ask.entity IS NULL THEN call.now_us + claim.lease_us ELSE 0 END,
            ask.move = 'claimed' AND coalesce(ask.alone, false),
            0, ask.content, ask.envelope, call.now_us, 0, false, ask.topic, ask.time_ms, ask.conversation, ask."user",
            ask.entity
        FROM unnest(days, keys, handlers, moves, old_statuses, tokens, entities, alones, contents, envelopes, topics,
                times_ms, conversations, users) AS
            ask(day, key, handler, move, old_status, token, entity, alone, content, envelope, topic, time_ms,
                conversation, "user")
        WHERE ask.move IN ('claimed', 'echo', 'stale') AND ask.old_status IS NULL
        ORDER BY ask.key, ask.handler
        ON CONFLICT (key, handler, day) DO NOTHING;
        GET DIAGNOSTICS written = ROW_COUNT;
        missing := fresh - written;
    END IF;
    IF known > 0 THEN
        -- Only what is still as it was judged.
        SELECT array_agg(ask.place) INTO unchanged
        FROM unnest(days, keys, handlers, moves, old_statuses, old_tokens, old_leases_us) WITH ORDINALITY AS
            ask(day, key, handler, move, old_status, old_token, old_lease_us, place)
        CROSS JOIN LATERAL (
            SELECT FROM {schema}.event WHERE event.day = ANY (days)
                AND event.day = ask.day AND event.key = ask.key AND event.handler = ask.handler
                AND event.status = ask.old_status AND event.token = ask.old_token
                AND event.lease_until_us = ask.old_lease_us
            FOR UPDATE
        ) AS event
        WHERE ask.move IN ('claimed', 'echo', 'stale');
        INSERT INTO {schema}.event (
            day, key, handler, status, token, nonce, lease_until_us, alone, attempts, content, envelope, changed_us,
            again_us, letter, topic)
        SELECT ask.day, ask.key, ask.handler, ask.move,
            CASE WHEN ask.move = 'claimed' THEN ask.token ELSE ask.old_token END, claim.nonce,
            CASE WHEN ask.move = 'claimed' AND ask.entity IS NULL THEN call.now_us + claim.lease_us ELSE 0 END,
            ask.move = 'claimed' AND coalesce(ask.alone, false),
            ask.attempts, ask.content, ask.envelope, call.now_us, 0, ask.letter, ask.topic
        FROM unnest(days, keys, handlers, moves, tokens, old_tokens, entities, alones, new_attempts, new_contents,
                envelopes, new_letters, topics) WITH ORDINALITY AS
            ask(day, key, handler, move, token, old_token, entity, alone, attempts, content, envelope, letter, topic,
                place)
        WHERE ask.place = ANY (unchanged)
        -- They are there, and ours: of all ways to change a few rows of a partition this one never looks elsewhere.
        ON CONFLICT (key, handler, day) DO UPDATE SET
            status = excluded.status, token = excluded.token, nonce = excluded.nonce,
            lease_until_us = excluded.lease_until_us, alone = excluded.alone, attempts = excluded.attempts,
            content = excluded.content, envelope = excluded.envelope, changed_us = excluded.changed_us,
            again_us = excluded.again_us, letter = excluded.letter;
        missing := missing + known - coalesce(cardinality(unchanged), 0);
    END IF;
    IF missing > 0 THEN
        -- Somebody was faster, so it is busy; unless that was this very call, sent twice.
        FOR place, own_token, own_attempts IN
            SELECT ask.place, event.token, event.attempts
            FROM unnest(days, keys, handlers, moves) WITH ORDINALITY AS ask(day, key, handler, move, place)
            LEFT JOIN LATERAL (
                SELECT token, attempts FROM {schema}.event WHERE event.day = ANY (days)
                    AND event.day = ask.day AND event.key = ask.key AND event.handler = ask.handler
                    AND event.nonce = claim.nonce AND event.status = ask.move OFFSET 0
            ) AS event ON true
            WHERE ask.move IN ('claimed', 'echo', 'stale')
        LOOP
            IF own_token IS NULL THEN
                moves[place] := 'busy';
                verdicts[place] := 'busy';
                tokens[place] := 0;
                attempts[place] := 1;
                busies_us[place] := 1000;
            ELSIF moves[place] = 'claimed' THEN
                tokens[place] := own_token;
                attempts[place] := own_attempts + 1;
            END IF;
        END LOOP;
    END IF;

    IF cardinality(entities) > 0 THEN
        INSERT INTO {schema}.entity (key, token, lease_until_us, changed_us)
        SELECT ask.entity, ask.token, call.now_us + claim.lease_us, call.now_us
        FROM unnest(entities, moves, tokens) AS ask(entity, move, token)
        WHERE ask.move = 'claimed' AND ask.entity IS NOT NULL
        ON CONFLICT (key) DO UPDATE
        SET token = excluded.token, lease_until_us = excluded.lease_until_us, changed_us = excluded.changed_us;
    END IF;
    IF 'echo' = ANY (moves) THEN
        -- The line moves forward only; the newest done event stays.
        INSERT INTO {schema}.entity (key, line_times, line_version, changed_us)
        SELECT ask.entity, ask.times::bigint[], ask.version, call.now_us
        FROM unnest(entities, moves, claim.times, versions) AS ask(entity, move, times, version)
        WHERE ask.move = 'echo'
        ON CONFLICT (key) DO UPDATE SET (line_times, line_version, changed_us) = (
            SELECT CASE WHEN forward THEN {schema}.filled(excluded.line_times, entity.line_times)
                    ELSE entity.line_times END,
                CASE WHEN forward THEN coalesce(excluded.line_version, entity.line_version)
                    ELSE entity.line_version END,
                excluded.changed_us
            FROM (SELECT
                {schema}.is_older(entity.line_times, entity.line_version, excluded.line_times, excluded.line_version)
                AND {schema}.is_believable(excluded.line_times, excluded.line_version, excluded.changed_us) AS forward
            ) AS move);
    END IF;
    IF drops_letters THEN
        DELETE FROM {schema}.letter USING unnest(keys, handlers, moves) AS ask(key, handler, move)
        WHERE ask.move IN ('echo', 'stale') AND letter.key = ask.key AND letter.handler = ask.handler;
    END IF;
END
$$;

-- The ends of claims. As in claim.sql: entities are locked first, and everything in the order of its keys.

-- Let claims in force run longer; false where a claim is not in force. Rare, so facts may be written one by one.
CREATE OR REPLACE FUNCTION {schema}.extend(
    days integer[], keys bytea[], handlers text[], entities bytea[], tokens bigint[], lease_us bigint, OUT kept boolean[]
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    until_us bigint;
    ours integer[];
    place integer;
BEGIN
    PERFORM {schema}.begin_call();
    IF cardinality(entities) > 0 THEN
        PERFORM FROM {schema}.entity WHERE key = ANY (entities) ORDER BY key FOR UPDATE;
    END IF;
    SELECT array_agg(claim.place) INTO ours
    FROM unnest(days, keys, handlers, entities, tokens) WITH ORDINALITY AS
        claim(day, key, handler, entity, token, place)
    CROSS JOIN LATERAL (
        SELECT FROM {schema}.event WHERE event.day = ANY (days)
            AND event.day = claim.day AND event.key = claim.key AND event.handler = claim.handler
            AND event.token = claim.token AND event.status = 'claimed'
        FOR UPDATE
    ) AS event
    LEFT JOIN LATERAL (SELECT token FROM {schema}.entity WHERE entity.key = claim.entity OFFSET 0) AS entity ON true
    WHERE claim.entity IS NULL OR entity.token = claim.token;
    kept := ARRAY(SELECT coalesce(one = ANY (ours), false) FROM generate_series(1, cardinality(keys)) AS one);
    until_us := {schema}.now_us() + lease_us;
    FOREACH place IN ARRAY coalesce(ours, '{}') LOOP
        IF entities[place] IS NULL THEN
            EXECUTE format(
                'UPDATE {schema}.event SET lease_until_us = $1 WHERE day = %s AND key = $2 AND handler = $3', days[place])
            USING until_us, keys[place], handlers[place];
        ELSE
            UPDATE {schema}.entity SET lease_until_us = until_us WHERE key = entities[place];
        END IF;
    END LOOP;
END
$$;

-- End claims in force. A repeat that finds its own outcome is fine; whoever comes late changes nothing.
CREATE OR REPLACE FUNCTION {schema}.settle(
    days integer[], keys bytea[], handlers text[], entities bytea[], tokens bigint[], outcomes text[], agains_us bigint[],
    states bytea[], times text[], versions bigint[], echoes boolean[],
    raws bytea[], reasons text[], details text[], OUT kept boolean[], OUT repeated integer[]
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET lock_timeout = '2s' AS $$
#variable_conflict use_column
<<call>>
DECLARE
    now_us bigint;
    ended integer[];
BEGIN
    PERFORM {schema}.begin_call();
    IF cardinality(entities) > 0 THEN
        PERFORM FROM {schema}.entity WHERE key = ANY (entities) ORDER BY key FOR UPDATE;
    END IF;
    now_us := {schema}.now_us();
    -- An insert that always meets its row: of all ways to change a few rows of a partition this one never looks
    -- elsewhere, and it locks them in order.
    WITH done AS (
        INSERT INTO {schema}.event AS record (
            day, key, handler, status, token, nonce, lease_until_us, alone, attempts, content, envelope, changed_us,
            again_us, letter, topic, time_ms, conversation, "user", entity)
        SELECT event.day, event.key, event.handler, claim.outcome, event.token, '', 0, event.alone,
            event.attempts + (claim.outcome IN ('retry', 'dead'))::integer, event.content, event.envelope, call.now_us,
            CASE WHEN claim.outcome = 'retry' THEN call.now_us + coalesce(claim.again_us, 0) ELSE 0 END,
            claim.outcome = 'dead' OR (event.letter AND claim.outcome IN ('retry', 'release')),
            event.topic, event.time_ms, event.conversation, event."user", event.entity
        FROM unnest(days, keys, handlers, entities, tokens, outcomes, agains_us) AS
            claim(day, key, handler, entity, token, outcome, again_us)
        CROSS JOIN LATERAL (
            SELECT * FROM {schema}.event WHERE event.day = ANY (days)
                AND event.day = claim.day AND event.key = claim.key AND event.handler = claim.handler
                AND event.token = claim.token AND event.status = 'claimed' OFFSET 0
        ) AS event
        LEFT JOIN LATERAL (SELECT token FROM {schema}.entity WHERE entity.key = claim.entity OFFSET 0) AS entity ON true
        WHERE claim.entity IS NULL OR entity.token = claim.token
        ORDER BY event.key, event.handler
        ON CONFLICT (key, handler, day) DO UPDATE SET
            status = excluded.status, nonce = '', lease_until_us = 0, attempts = excluded.attempts,
            changed_us = excluded.changed_us, again_us = excluded.again_us, letter = excluded.letter
        WHERE record.token = excluded.token AND record.status = 'claimed'
        RETURNING record.key, record.handler
    )
    SELECT array_agg(claim.place) INTO ended
    FROM unnest(keys, handlers) WITH ORDINALITY AS claim(key, handler, place)
    JOIN done ON done.key = claim.key AND done.handler = claim.handler;
    IF coalesce(cardinality(ended), 0) < cardinality(keys) THEN
        SELECT array_agg(claim.place) INTO repeated
        FROM unnest(days, keys, handlers, tokens, outcomes) WITH ORDINALITY AS
            claim(day, key, handler, token, outcome, place)
        CROSS JOIN LATERAL (
            SELECT FROM {schema}.event WHERE event.day = ANY (days)
                AND event.day = claim.day AND event.key = claim.key AND event.handler = claim.handler
                AND event.token = claim.token AND event.status = claim.outcome OFFSET 0
        ) AS event
        WHERE NOT coalesce(claim.place = ANY (ended), false);
    END IF;
    kept := ARRAY(
        SELECT coalesce(place = ANY (ended), false) OR coalesce(place = ANY (repeated), false)
        FROM generate_series(1, cardinality(keys)) AS place);
    IF ended IS NULL THEN
        RETURN;
    END IF;

    IF cardinality(entities) > 0 THEN
        -- A done event becomes the newest unless it is older or not believable; an equal time wins too. After any
        -- other end nobody knows for sure which state the sink shows.
        INSERT INTO {schema}.entity (
            key, token, lease_until_us, changed_us, state, times, version, echoes, newest, newest_day, line_times,
            line_version, unsure)
        SELECT entity.key, entity.token, 0, call.now_us,
            CASE WHEN judged.newest THEN claim.state ELSE entity.state END,
            CASE WHEN judged.newest THEN claim.times ELSE entity.times END,
            CASE WHEN judged.newest THEN claim.version ELSE entity.version END,
            CASE WHEN judged.newest THEN claim.echoes ELSE entity.echoes END,
            CASE WHEN judged.newest THEN claim.key ELSE entity.newest END,
            CASE WHEN judged.newest THEN claim.day ELSE entity.newest_day END,
            CASE WHEN judged.newest THEN {schema}.filled(claim.times, entity.line_times) ELSE entity.line_times END,
            CASE WHEN judged.newest THEN coalesce(claim.version, entity.line_version) ELSE entity.line_version END,
            NOT judged.newest
        FROM (
            SELECT claim.day, claim.key, claim.entity, claim.outcome, claim.state, claim.times::bigint[] AS times,
                claim.version, coalesce(claim.echoes, true) AS echoes
            FROM unnest(settle.days, settle.keys, settle.entities, settle.outcomes, settle.states, settle.times,
                    settle.versions, settle.echoes) WITH ORDINALITY AS
                claim(day, key, entity, outcome, state, times, version, echoes, place)
            WHERE claim.place = ANY (ended)
        ) AS claim
        CROSS JOIN LATERAL (SELECT * FROM {schema}.entity WHERE entity.key = claim.entity OFFSET 0) AS entity
        CROSS JOIN LATERAL (
            SELECT claim.outcome = 'done'
                AND NOT {schema}.is_older(claim.times, claim.version, entity.line_times, entity.line_version)
                AND {schema}.is_believable(claim.times, claim.version, call.now_us) AS newest
            OFFSET 0
        ) AS judged
        ON CONFLICT (key) DO UPDATE SET
            lease_until_us = excluded.lease_until_us, changed_us = excluded.changed_us, state = excluded.state,
            times = excluded.times, version = excluded.version, echoes = excluded.echoes, newest = excluded.newest,
            newest_day = excluded.newest_day, line_times = excluded.line_times, line_version = excluded.line_version,
            unsure = excluded.unsure;
    END IF;
    IF cardinality(raws) > 0 THEN
        INSERT INTO {schema}.letter AS letter (key, handler, day, raw, reason, detail)
        SELECT claim.key, claim.handler, claim.day, claim.raw, claim.reason, claim.detail
        FROM unnest(keys, handlers, days, raws, reasons, details) WITH ORDINALITY AS
            claim(key, handler, day, raw, reason, detail, place)
        WHERE claim.raw IS NOT NULL AND claim.place = ANY (ended)
        ON CONFLICT (key, handler) DO UPDATE SET raw = excluded.raw, reason = excluded.reason, detail = excluded.detail;
    END IF;
    IF EXISTS (SELECT FROM {schema}.letter) THEN
        DELETE FROM {schema}.letter USING unnest(keys, handlers, outcomes) WITH ORDINALITY AS
            claim(key, handler, outcome, place)
        WHERE letter.key = ANY (settle.keys) AND letter.key = claim.key AND letter.handler = claim.handler
            AND claim.place = ANY (ended) AND claim.outcome IN ('done', 'discard');
    END IF;
END
$$;

-- Begin a handler's transaction: from here on it can only be committed once its claim is settled.
CREATE OR REPLACE FUNCTION {schema}.pledge() RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO {schema}.pledge DEFAULT VALUES
$$;

-- Refuse the commit of a transaction whose claim is not settled: its handler must not end it.
CREATE OR REPLACE FUNCTION {schema}.keep_pledge() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.pledge WHERE transaction = NEW.transaction) THEN
        RAISE EXCEPTION 'a handler must not end the transaction it was given' USING ERRCODE = 'OB001';
    END IF;
    RETURN NULL;
END
$$;

DROP TRIGGER IF EXISTS keep_pledge ON {schema}.pledge;
CREATE CONSTRAINT TRIGGER keep_pledge AFTER INSERT ON {schema}.pledge DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION {schema}.keep_pledge();

-- Settle `done` as the last statement of a handler's transaction, or let nothing of it be committed.
CREATE OR REPLACE FUNCTION {schema}.settle_pledged(
    days integer[], keys bytea[], handlers text[], entities bytea[], tokens bigint[], outcomes text[], agains_us bigint[],
    states bytea[], times text[], versions bigint[], echoes boolean[], raws bytea[], reasons text[], details text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.pledge WHERE transaction = pg_current_xact_id();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a handler has ended the transaction it was given' USING ERRCODE = 'OB001';
    END IF;
    -- A repeat would carry a second effect.
    IF EXISTS (
        SELECT FROM {schema}.settle(days, keys, handlers, entities, tokens, outcomes, agains_us, states, times, versions,
            echoes, raws, reasons, details)
        WHERE NOT kept[1] OR repeated IS NOT NULL)
    THEN
        RAISE EXCEPTION 'the claim was taken over or settled already' USING ERRCODE = 'OB002';
    END IF;
END
$$;

-- Partitions: one for each day of event times, made ahead by whoever comes first, dropped by purge.
-- Workers need not own the tables, so these run with the rights of whoever migrated.

-- The number of today's day, as event.day counts.
CREATE OR REPLACE FUNCTION {schema}.today() RETURNS integer LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT ({schema}.now_us() / 86400000000)::integer
$$;

CREATE OR REPLACE FUNCTION {schema}.place_name(day integer) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT 'event_' || to_char('epoch'::date + day, 'YYYYMMDD')
$$;

-- Make the partitions of these days: those on which events may still come for the first time.
CREATE OR REPLACE FUNCTION {schema}.make_places() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '200ms' AS $$
DECLARE
    day integer;
    name text;
    made integer := 0;
BEGIN
    FOR day IN SELECT generate_series({schema}.today() - 4, {schema}.today() + 2) LOOP
        name := {schema}.place_name(day);
        CONTINUE WHEN to_regclass(format('{schema}.%I', name)) IS NOT NULL;
        -- One at a time; whoever comes second finds it made, or leaves it to the first.
        EXIT WHEN NOT pg_try_advisory_xact_lock(1868722284, hashtext('{schema}'));
        CONTINUE WHEN to_regclass(format('{schema}.%I', name)) IS NOT NULL;
        -- Attached, not created in place: that would lock the whole table. What came early moves in first.
        EXECUTE format(
            'CREATE TABLE {schema}.%I (LIKE {schema}.event INCLUDING ALL, CHECK (day = %s)) WITH (fillfactor = 50)',
            name, day);
        LOCK TABLE ONLY {schema}.event IN SHARE ROW EXCLUSIVE MODE;
        EXECUTE format(
            'WITH early AS (DELETE FROM {schema}.event_other WHERE day = %s RETURNING *)'
            ' INSERT INTO {schema}.%I SELECT * FROM early', day, name);
        EXECUTE format('ALTER TABLE {schema}.event ATTACH PARTITION {schema}.%I FOR VALUES IN (%s)', name, day);
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;

-- What each partition is for: its day, or null for those that stay.
CREATE OR REPLACE FUNCTION {schema}.places(OUT name text, OUT day integer) RETURNS SETOF record
LANGUAGE sql STABLE AS $$
    SELECT child.relname::text,
        CASE WHEN child.relname ~ '^event_[0-9]{8}$'
            THEN to_date(substr(child.relname, 7), 'YYYYMMDD') - 'epoch'::date END
    FROM pg_catalog.pg_inherits JOIN pg_catalog.pg_class AS child ON child.oid = inhrelid
    WHERE inhparent = '{schema}.event'::regclass ORDER BY child.relname
$$;

-- Whether something in a partition was settled since: then all of it is still needed.
CREATE OR REPLACE FUNCTION {schema}.is_young(name text, before_us bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    found boolean;
BEGIN
    EXECUTE format(
        'SELECT EXISTS (SELECT FROM {schema}.%I WHERE changed_us >= $1 AND {schema}.is_settled(status))', name)
    INTO found USING before_us;
    RETURN found;
END
$$;

-- Drop a day's partition if all in it was settled before then; return how many events that were, else null.
CREATE OR REPLACE FUNCTION {schema}.drop_place(place_day integer, before_us bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '200ms' AS $$
DECLARE
    name text := {schema}.place_name(place_day);
    needed bigint;
    number bigint;
BEGIN
    IF place_day >= {schema}.today() - 4 THEN
        RETURN NULL;
    END IF;
    -- While it is looked through only those wait who would write into it; then the drop locks all, for a moment.
    EXECUTE format('LOCK TABLE {schema}.%I IN SHARE ROW EXCLUSIVE MODE', name);
    EXECUTE format(
        'SELECT count(*), count(*) FILTER (WHERE letter OR NOT {schema}.is_settled(status) OR changed_us >= $1)'
        ' FROM {schema}.%I', name)
    INTO number, needed USING before_us;
    IF needed > 0 THEN
        RETURN NULL;
    END IF;
    EXECUTE format('DROP TABLE {schema}.%I', name);
    RETURN number;
END
$$;

-- Forget what was settled before then in some pages of one partition; return how many events. Never waits.
CREATE OR REPLACE FUNCTION {schema}.forget_events(name text, before_us bigint, first_page bigint, pages bigint)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET lock_timeout = '2s' AS $$
DECLARE
    number bigint;
BEGIN
    EXECUTE format(
        'DELETE FROM {schema}.%1$I WHERE ctid = ANY (ARRAY('
        ' SELECT ctid FROM {schema}.%1$I WHERE ctid >= %2$L AND ctid < %3$L'
        ' AND changed_us < $1 AND NOT letter AND {schema}.is_settled(status) FOR UPDATE SKIP LOCKED))',
        name, format('(%s,0)', first_page), format('(%s,0)', first_page + pages))
    USING before_us;
    GET DIAGNOSTICS number = ROW_COUNT;
    RETURN number;
END
$$;

-- Forget entities that nobody holds and that rest since then, in some pages; return how many. Never waits.
CREATE OR REPLACE FUNCTION {schema}.forget_entities(before_us bigint, first_page bigint, pages bigint)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET lock_timeout = '2s' AS $$
DECLARE
    number bigint;
BEGIN
    EXECUTE format(
        'DELETE FROM {schema}.entity WHERE ctid = ANY (ARRAY('
        ' SELECT ctid FROM {schema}.entity WHERE ctid >= %L AND ctid < %L'
        ' AND changed_us < $1 AND lease_until_us = 0 FOR UPDATE SKIP LOCKED))',
        format('(%s,0)', first_page), format('(%s,0)', first_page + pages))
    USING before_us;
    GET DIAGNOSTICS number = ROW_COUNT;
    RETURN number;
END
$$;

-- How many pages a table has.
CREATE OR REPLACE FUNCTION {schema}.pages(name text) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT pg_relation_size(format('{schema}.%I', name)) / current_setting('block_size')::bigint
$$;

INSERT INTO {schema}.meta VALUES ('schema', '1');
