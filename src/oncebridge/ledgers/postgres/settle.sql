-- The ends of claims. As in claim.sql: entities are locked first, and everything in the order of its keys.

-- Extend claims in force: those of facts, and the chains of entities, each by its top token. False where a claim is not
-- in force. Rare, so they may be written one by one.
CREATE OR REPLACE FUNCTION {schema}.extend_batch(
    days integer[], keys bytea[], handlers text[], tokens bigint[], entities bytea[], tops bigint[], lease_us bigint,
    OUT kept boolean[], OUT held boolean[]
) LANGUAGE plpgsql {settings} AS $$
#variable_conflict use_column
DECLARE
    until_us bigint;
    changed integer;
BEGIN
    PERFORM {schema}.begin_batch();
    until_us := {schema}.now_us() + lease_us;
    FOR place IN 1..coalesce(cardinality(entities), 0) LOOP
        UPDATE {schema}.entity SET lease_until_us = until_us
        WHERE key = entities[place] AND token = tops[place] AND lease_until_us <> 0;
        held[place] := FOUND;
    END LOOP;
    FOR place IN 1..coalesce(cardinality(keys), 0) LOOP
        EXECUTE format(
            'UPDATE {schema}.event SET lease_until_us = $1'
            ' WHERE day = %s AND key = $2 AND handler = $3 AND token = $4 AND status = ''claimed''', days[place])
        USING until_us, keys[place], handlers[place], tokens[place];
        GET DIAGNOSTICS changed = ROW_COUNT;
        kept[place] := changed > 0;
    END LOOP;
END
$$;

-- End claims in force. A repeat that finds its own outcome is fine; a late worker changes nothing. A state names the
-- place of its entity, with its chain's top token, and its own place in the order of the chain.
CREATE OR REPLACE FUNCTION {schema}.settle_batch(
    days integer[], keys bytea[], handlers text[], tokens bigint[], outcomes text[], retries_in_us bigint[],
    chains integer[], arrivals integer[], datas bytea[], stays boolean[], entities bytea[], tops bigint[],
    raws bytea[], reasons text[], details text[], OUT kept boolean[], OUT repeated integer[]
) LANGUAGE plpgsql {settings} AS $$
#variable_conflict use_column
<<call>>
DECLARE
    now_us bigint;
    held boolean[];
    ended boolean[];
    number integer := 0;
    place bigint;
    attempts integer;
BEGIN
    PERFORM {schema}.begin_batch();
    IF cardinality(entities) > 0 THEN
        SELECT array_agg(coalesce(entity.token = claimed.top, false) ORDER BY claimed.place) INTO held
        FROM unnest(entities, tops) WITH ORDINALITY AS claimed(key, top, place)
        LEFT JOIN LATERAL (SELECT token FROM {schema}.entity WHERE entity.key = claimed.key FOR UPDATE) AS entity ON true;
    END IF;
    now_us := {schema}.now_us();
    ended := array_fill(false, ARRAY[cardinality(keys)]);
    -- An insert that conflicts with its row: of all ways to change a few rows of a partition this one never scans
    -- elsewhere, and it locks them in order. The time of the change has the claim's number added, in microseconds, so
    -- that the row identifies its claim; attempts below 0 mean that there was no row.
    FOR place, attempts IN
        INSERT INTO {schema}.event AS record (
            day, key, handler, status, token, nonce, lease_until_us, alone, attempts, changed_us, retry_at_us, letter, topic)
        SELECT claim.day, claim.key, claim.handler, claim.outcome, claim.token, '', 0, false, -1,
            call.now_us + claim.place,
            CASE WHEN claim.outcome = 'retry' THEN call.now_us + claim.place + coalesce(claim.retry_in_us, 0) ELSE 0 END,
            claim.outcome = 'dead', ''
        FROM unnest(days, keys, handlers, tokens, outcomes, retries_in_us, chains) WITH ORDINALITY AS
            claim(day, key, handler, token, outcome, retry_in_us, chain, place)
        WHERE claim.chain IS NULL OR held[claim.chain]
        ORDER BY claim.key, claim.handler
        ON CONFLICT (key, handler, day) DO UPDATE SET
            status = excluded.status, nonce = '', lease_until_us = 0,
            attempts = record.attempts + (excluded.status IN ('retry', 'dead'))::integer,
            changed_us = excluded.changed_us, retry_at_us = excluded.retry_at_us,
            letter = excluded.letter OR (record.letter AND excluded.status IN ('retry', 'release'))
        WHERE record.token = excluded.token AND record.status = 'claimed'
        RETURNING record.changed_us - call.now_us, record.attempts
    LOOP
        IF attempts < 0 THEN
            DELETE FROM {schema}.event
            WHERE event.day = days[place] AND event.key = keys[place] AND event.handler = handlers[place];
        ELSE
            ended[place] := true;
            number := number + 1;
        END IF;
    END LOOP;
    kept := ended;
    IF number < cardinality(keys) THEN
        SELECT array_agg(claim.place) INTO repeated
        FROM unnest(days, keys, handlers, tokens, outcomes, ended) WITH ORDINALITY AS
            claim(day, key, handler, token, outcome, ended, place)
        CROSS JOIN LATERAL (
            SELECT FROM {schema}.event WHERE event.day = claim.day AND event.key = claim.key AND event.handler = claim.handler
                AND event.token = claim.token AND event.status = claim.outcome OFFSET 0
        ) AS event
        WHERE NOT claim.ended;
        FOREACH place IN ARRAY coalesce(repeated, '{}') LOOP
            kept[place] := true;
        END LOOP;
    END IF;
    IF number = 0 THEN
        RETURN;
    END IF;

    IF cardinality(entities) > 0 THEN
        -- Each entity gets the data that the last of its states left, and is free once its chain's last has ended.
        INSERT INTO {schema}.entity (key, token, nonce, lease_until_us, ran_out, data, changed_us)
        SELECT entity.key, entity.token, CASE WHEN last.stays THEN entity.nonce ELSE '' END,
            CASE WHEN last.stays THEN entity.lease_until_us ELSE 0 END, false, last.data, call.now_us
        FROM (
            SELECT claim.chain, (array_agg(claim.data ORDER BY claim.arrival DESC))[1] AS data,
                bool_and(coalesce(claim.stays, false)) AS stays
            FROM unnest(chains, arrivals, datas, stays, ended) AS claim(chain, arrival, data, stays, ended)
            WHERE claim.ended AND claim.chain IS NOT NULL GROUP BY claim.chain ORDER BY claim.chain OFFSET 0
        ) AS last
        CROSS JOIN LATERAL (SELECT * FROM {schema}.entity WHERE entity.key = entities[last.chain] OFFSET 0) AS entity
        ON CONFLICT (key) DO UPDATE SET
            nonce = excluded.nonce, lease_until_us = excluded.lease_until_us, ran_out = false, data = excluded.data,
            changed_us = excluded.changed_us;
    END IF;
    IF cardinality(raws) > 0 THEN
        INSERT INTO {schema}.letter AS letter (key, handler, day, raw, reason, detail)
        SELECT claim.key, claim.handler, claim.day, claim.raw, claim.reason, claim.detail
        FROM unnest(keys, handlers, days, raws, reasons, details, ended) AS
            claim(key, handler, day, raw, reason, detail, ended)
        WHERE claim.raw IS NOT NULL AND claim.ended
        ON CONFLICT (key, handler) DO UPDATE SET raw = excluded.raw, reason = excluded.reason, detail = excluded.detail;
    END IF;
    IF EXISTS (SELECT FROM {schema}.letter) THEN
        DELETE FROM {schema}.letter USING unnest(keys, handlers, outcomes, ended) AS
            claim(key, handler, outcome, ended)
        WHERE letter.key = ANY (settle_batch.keys) AND letter.key = claim.key AND letter.handler = claim.handler
            AND claim.ended AND claim.outcome IN ('done', 'echo', 'stale', 'discard');
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

-- Settle as the last statement of a handler's transaction, or have nothing of it committed.
CREATE OR REPLACE FUNCTION {schema}.settle_last(
    days integer[], keys bytea[], handlers text[], tokens bigint[], outcomes text[], retries_in_us bigint[],
    chains integer[], arrivals integer[], datas bytea[], stays boolean[], entities bytea[], tops bigint[],
    raws bytea[], reasons text[], details text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.pledge WHERE transaction = pg_current_xact_id();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a handler has ended the transaction it was given' USING ERRCODE = 'OB001';
    END IF;
    -- A repeat would carry a second effect.
    IF EXISTS (
        SELECT FROM {schema}.settle_batch(days, keys, handlers, tokens, outcomes, retries_in_us, chains, arrivals,
            datas, stays, entities, tops, raws, reasons, details)
        WHERE NOT kept[1] OR repeated IS NOT NULL)
    THEN
        RAISE EXCEPTION 'the claim was taken over or settled already' USING ERRCODE = 'OB002';
    END IF;
END
$$;
