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
        RETURN other_version - one_version BETWEEN 1 AND {versions_behind_max};
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
        RETURN coalesce(times[1] / 1000 <= now_us + {ahead_us_max}, false);
    END IF;
    RETURN coalesce((SELECT max(time) / 1000 <= now_us + {ahead_us_max} FROM unnest(times) AS time), false);
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
) RETURNS boolean[] LANGUAGE plpgsql {settings} AS $$
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
) LANGUAGE plpgsql {settings} AS $$
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
        array_agg(CASE WHEN move = 'busy' THEN greatest(until_us - call.now_us, {moment_us}) ELSE 0 END ORDER BY place),
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
            retry_at_us, letter, topic, time_ms, conversation, "user", entity)
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
            retry_at_us, letter, topic)
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
            retry_at_us = excluded.retry_at_us, letter = excluded.letter;
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
                busies_us[place] := {moment_us};
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
