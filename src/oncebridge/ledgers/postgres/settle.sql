-- The ends of claims. As in claim.sql: entities are locked first, and everything in the order of its keys.

-- Let claims in force run longer; false where a claim is not in force. Rare, so facts may be written one by one.
CREATE OR REPLACE FUNCTION {schema}.extend(
    days integer[], keys bytea[], handlers text[], entities bytea[], tokens bigint[], lease_us bigint, OUT kept boolean[]
) LANGUAGE plpgsql {settings} AS $$
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
    days integer[], keys bytea[], handlers text[], entities bytea[], tokens bigint[], outcomes text[], retries_in_us bigint[],
    states bytea[], times text[], versions bigint[], echoes boolean[],
    raws bytea[], reasons text[], details text[], OUT kept boolean[], OUT repeated integer[]
) LANGUAGE plpgsql {settings} AS $$
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
            retry_at_us, letter, topic, time_ms, conversation, "user", entity)
        SELECT event.day, event.key, event.handler, claim.outcome, event.token, '', 0, event.alone,
            event.attempts + (claim.outcome IN ('retry', 'dead'))::integer, event.content, event.envelope, call.now_us,
            CASE WHEN claim.outcome = 'retry' THEN call.now_us + coalesce(claim.retry_at_us, 0) ELSE 0 END,
            claim.outcome = 'dead' OR (event.letter AND claim.outcome IN ('retry', 'release')),
            event.topic, event.time_ms, event.conversation, event."user", event.entity
        FROM unnest(days, keys, handlers, entities, tokens, outcomes, retries_in_us) AS
            claim(day, key, handler, entity, token, outcome, retry_at_us)
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
            changed_us = excluded.changed_us, retry_at_us = excluded.retry_at_us, letter = excluded.letter
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
    days integer[], keys bytea[], handlers text[], entities bytea[], tokens bigint[], outcomes text[], retries_in_us bigint[],
    states bytea[], times text[], versions bigint[], echoes boolean[], raws bytea[], reasons text[], details text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.pledge WHERE transaction = pg_current_xact_id();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a handler has ended the transaction it was given' USING ERRCODE = 'OB001';
    END IF;
    -- A repeat would carry a second effect.
    IF EXISTS (
        SELECT FROM {schema}.settle(days, keys, handlers, entities, tokens, outcomes, retries_in_us, states, times, versions,
            echoes, raws, reasons, details)
        WHERE NOT kept[1] OR repeated IS NOT NULL)
    THEN
        RAISE EXCEPTION 'the claim was taken over or settled already' USING ERRCODE = 'OB002';
    END IF;
END
$$;
