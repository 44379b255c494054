-- Claims. The rules are those of ledgers/grants.py, and a test compares the two on random histories.
--
-- An ask is one place in each array, in the order of the keys; an array of nulls may be left empty. The states of one
-- entity are a chain: each names the place of its entity, and its own place in the order of arrival. Asks that are only
-- read (duplicates, conflicts, busy ones) are answered without a lock. Everything else is written only if it has not
-- changed since it was read: first entities, then events, each in the order of their keys, so two calls never deadlock.

-- The server's time in microseconds.
CREATE OR REPLACE FUNCTION {schema}.now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Whether a status is final.
CREATE OR REPLACE FUNCTION {schema}.is_settled(status text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT status IN ('done', 'echo', 'stale', 'dead', 'discard')
$$;

-- Begin a call: refuse every isolation but READ COMMITTED, since the statements here rely on seeing earlier commits,
-- and keep partitions from being made meanwhile, which moves events.
CREATE OR REPLACE FUNCTION {schema}.begin_batch() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the ledger works in READ COMMITTED, and this is %', current_setting('transaction_isolation')
            USING ERRCODE = 'OB003';
    END IF;
    LOCK TABLE ONLY {schema}.event IN ROW EXCLUSIVE MODE;
END
$$;

-- Read the records of each ask, and decide. A move is a verdict, or one of
--   claimed: can be granted, under the token beside it; own: already granted to the call that this one repeats;
--   alone: fresh, but must be claimed alone; waits: busy with one before it in its own chain;
--   unknown: a redrive of an event that is no dead letter.
-- Of each entity it returns the token, whether its lease ran out, its data, and the values that a grant compares.
CREATE OR REPLACE FUNCTION {schema}.look_at(
    days integer[], keys bytea[], handlers text[], envelopes text[], contents bytea[], chains integer[],
    arrivals integer[], alones boolean[], redrives boolean[], entities bytea[], nonce bytea, now_us bigint,
    OUT moves text[], OUT tokens bigint[], OUT attempts integer[], OUT originals text[], OUT statuses text[],
    OUT busies_us bigint[], OUT old_tokens bigint[], OUT old_leases_us bigint[], OUT fresh integer, OUT known integer,
    OUT tops bigint[], OUT run_outs boolean[], OUT datas bytea[], OUT held_until_us bigint[], OUT changes_us bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    owned boolean[];
    -- So that the plan excludes all other partitions before it begins; it cannot do so by an array.
    first_day integer;
    last_day integer;
    undated integer;
BEGIN
    SELECT min(day) FILTER (WHERE day >= 0), max(day), min(day) FILTER (WHERE day < 0)
    INTO first_day, last_day, undated FROM unnest(days) AS day;
    -- Entities before events: an event that changes in between leaves its trace on the entity.
    IF cardinality(entities) > 0 THEN
        SELECT array_agg(coalesce(entity.token, 0) ORDER BY asked.place),
            array_agg(coalesce(entity.ran_out OR (entity.lease_until_us <> 0 AND entity.nonce <> look_at.nonce), false)
                ORDER BY asked.place),
            array_agg(coalesce(entity.data, '') ORDER BY asked.place),
            array_agg(coalesce(entity.lease_until_us, 0) ORDER BY asked.place),
            array_agg(coalesce(entity.changed_us, 0) ORDER BY asked.place),
            array_agg(coalesce(entity.lease_until_us <> 0 AND entity.nonce = look_at.nonce, false)
                ORDER BY asked.place)
        INTO tops, run_outs, datas, held_until_us, changes_us, owned
        FROM unnest(entities) WITH ORDINALITY AS asked(key, place)
        LEFT JOIN LATERAL (SELECT * FROM {schema}.entity WHERE entity.key = asked.key OFFSET 0) AS entity ON true;
    END IF;
    SELECT array_agg(move ORDER BY place),
        array_agg(CASE
            WHEN move = 'own' THEN token
            WHEN move <> 'claimed' THEN 0
            WHEN chain IS NULL THEN greatest(coalesce(token, 0) + 1, look_at.now_us)
            ELSE greatest(tops[chain] + 1, look_at.now_us) + before END ORDER BY place),
        array_agg(CASE
            WHEN attempts IS NULL OR move NOT IN ('claimed', 'own') THEN 1
            WHEN move = 'own' THEN attempts + 1
            WHEN status = 'dead' THEN 1  -- redriven: a new start
            ELSE attempts + (status = 'claimed' AND alone)::integer + 1 END ORDER BY place),
        array_agg(CASE WHEN move IN ('conflict', 'redelivery', 'republish') THEN envelope END ORDER BY place),
        array_agg(status ORDER BY place),
        array_agg(CASE
            WHEN move <> 'busy' THEN 0
            WHEN chain IS NULL THEN lease_until_us - look_at.now_us
            ELSE held_until_us[chain] - look_at.now_us END ORDER BY place),
        array_agg(token ORDER BY place),
        array_agg(lease_until_us ORDER BY place),
        count(*) FILTER (WHERE move = 'claimed' AND status IS NULL),
        count(*) FILTER (WHERE move = 'claimed' AND status IS NOT NULL)
    INTO moves, tokens, attempts, originals, statuses, busies_us, old_tokens, old_leases_us, fresh, known
    FROM (
        -- A state whose last claim ran out cuts its chain: those before it go first, and those behind it wait.
        SELECT place, chain, status, token, lease_until_us, attempts, alone, envelope, before,
            CASE
                WHEN chain IS NULL OR open NOT IN ('claimed', 'alone') THEN open
                -- This very call had some of what stays behind: its repeat could not tell those from the others.
                WHEN leaves_own THEN CASE WHEN number = 1 THEN 'alone' ELSE 'waits' END
                WHEN cuts = 0 THEN open
                WHEN open = 'alone' AND cuts = 1 AND before = 0 THEN 'alone'
                ELSE 'waits'
            END AS move
        FROM (
            SELECT *,
                count(*) FILTER (WHERE open = 'alone') OVER up_to AS cuts,
                count(*) FILTER (WHERE open IN ('claimed', 'alone')) OVER up_to AS number,
                bool_or(open = 'alone' AND own) OVER (PARTITION BY chain) AS leaves_own,
                count(*) FILTER (WHERE open = 'claimed') OVER up_to - (open = 'claimed')::integer AS before
            FROM (
                SELECT ask.place, ask.chain, ask.arrival, event.status, event.token, event.lease_until_us,
                    event.attempts, event.alone, event.envelope,
                    coalesce(event.nonce = look_at.nonce, false) AS own,
                    CASE
                        WHEN ask.content <> event.content THEN 'conflict'
                        WHEN {schema}.is_settled(event.status) AND NOT (ask.redrive AND event.status = 'dead')
                            THEN CASE WHEN ask.envelope = event.envelope THEN 'redelivery' ELSE 'republish' END
                        WHEN ask.redrive AND NOT coalesce(event.letter, false) THEN 'unknown'
                        WHEN ask.chain IS NULL THEN CASE
                            WHEN event.status IS DISTINCT FROM 'claimed' THEN 'claimed'
                            WHEN event.nonce = look_at.nonce THEN 'own'
                            WHEN event.lease_until_us > look_at.now_us THEN 'busy'
                            WHEN ask.alone THEN 'claimed'
                            ELSE 'alone' END
                        WHEN owned[ask.chain] THEN CASE WHEN event.nonce = look_at.nonce THEN 'own' ELSE 'waits' END
                        WHEN held_until_us[ask.chain] > look_at.now_us THEN 'busy'
                        WHEN event.status = 'claimed' AND NOT ask.alone THEN 'alone'
                        ELSE 'claimed'
                    END AS open
                FROM (
                    SELECT place, day, key, handler, envelope, content, chain, arrival,
                        coalesce(alone, false) AS alone, coalesce(redrive, false) AS redrive
                    FROM unnest(days, keys, handlers, envelopes, contents, chains, arrivals, alones, redrives)
                        WITH ORDINALITY AS
                        ask(day, key, handler, envelope, content, chain, arrival, alone, redrive, place)
                ) AS ask
                LEFT JOIN LATERAL (
                    SELECT * FROM {schema}.event
                    WHERE (event.day BETWEEN first_day AND last_day OR event.day = undated)
                        AND event.day = ask.day AND event.key = ask.key AND event.handler = ask.handler OFFSET 0
                ) AS event ON true
                OFFSET 0
            ) AS seen
            WINDOW up_to AS (PARTITION BY chain ORDER BY arrival ROWS UNBOUNDED PRECEDING)
        ) AS counted
        OFFSET 0
    ) AS judged;
END
$$;

-- Claim events: each is answered in its place by a move as above, and each entity in its own place.
CREATE OR REPLACE FUNCTION {schema}.claim_batch(
    days integer[], keys bytea[], handlers text[], envelopes text[], contents bytea[], chains integer[],
    arrivals integer[], alones boolean[], redrives boolean[], entities bytea[], topics text[], times_ms bigint[],
    conversations bytea[], users bytea[], nonce bytea, lease_us bigint,
    OUT moves text[], OUT tokens bigint[], OUT attempts integer[], OUT originals text[], OUT statuses text[],
    OUT busies_us bigint[], OUT tops bigint[], OUT run_outs boolean[], OUT datas bytea[], OUT now_us bigint
) LANGUAGE plpgsql {settings} AS $$
#variable_conflict use_column
DECLARE
    old_tokens bigint[];
    old_leases_us bigint[];
    held_until_us bigint[];
    changes_us bigint[];
    fresh integer;
    known integer;
    written integer;
    granted boolean[];
    unchanged integer[];
    missing boolean := false;
    again integer[];
    look record;
    number bigint;
    top bigint;
    place integer;
BEGIN
    PERFORM {schema}.begin_batch();
    now_us := {schema}.now_us();
    SELECT found.moves, found.tokens, found.attempts, found.originals, found.statuses, found.busies_us,
        found.old_tokens, found.old_leases_us, found.fresh, found.known, found.tops, found.run_outs, found.datas,
        found.held_until_us, found.changes_us
    INTO moves, tokens, attempts, originals, statuses, busies_us, old_tokens, old_leases_us, fresh, known, tops,
        run_outs, datas, held_until_us, changes_us
    FROM {schema}.look_at(days, keys, handlers, envelopes, contents, chains, arrivals, alones, redrives, entities,
        nonce, claim_batch.now_us) AS found;

    IF cardinality(entities) > 0 AND fresh + known > 0 THEN
        granted := array_fill(false, ARRAY[cardinality(entities)]);
        -- The time of the change has the chain's number added, in microseconds, so that the row identifies its chain.
        FOR number, top IN
            INSERT INTO {schema}.entity AS held (key, token, nonce, lease_until_us, ran_out, data, changed_us)
            SELECT entities[chain], max(token), claim_batch.nonce, claim_batch.now_us + claim_batch.lease_us, false, '',
                claim_batch.now_us + chain
            FROM unnest(chains, moves, tokens) AS ask(chain, move, token)
            WHERE move = 'claimed' AND chain IS NOT NULL GROUP BY chain ORDER BY chain
            ON CONFLICT (key) DO UPDATE SET
                token = excluded.token, nonce = excluded.nonce, lease_until_us = excluded.lease_until_us,
                ran_out = held.ran_out OR held.lease_until_us <> 0, changed_us = excluded.changed_us
            WHERE held.token = tops[excluded.changed_us - claim_batch.now_us]
                AND held.lease_until_us = held_until_us[excluded.changed_us - claim_batch.now_us]
                AND held.changed_us = changes_us[excluded.changed_us - claim_batch.now_us]
            RETURNING changed_us - claim_batch.now_us, token
        LOOP
            granted[number] := true;
            tops[number] := top;
        END LOOP;
        -- An entity that has changed since it was read belongs to another worker.
        FOR place IN 1..cardinality(keys) LOOP
            IF moves[place] = 'claimed' AND NOT granted[chains[place]] THEN
                moves[place] := 'again';
                missing := true;
            END IF;
        END LOOP;
    END IF;
    IF fresh > 0 THEN
        INSERT INTO {schema}.event (
            day, key, handler, status, token, nonce, lease_until_us, alone, attempts, content, envelope, changed_us,
            retry_at_us, letter, topic, time_ms, conversation, "user", entity)
        SELECT ask.day, ask.key, ask.handler, 'claimed', ask.token, claim_batch.nonce,
            CASE WHEN ask.chain IS NULL THEN claim_batch.now_us + claim_batch.lease_us ELSE 0 END,
            coalesce(ask.alone, false), 0, ask.content, ask.envelope, claim_batch.now_us, 0, false, ask.topic, ask.time_ms,
            ask.conversation, ask."user", entities[ask.chain]
        FROM unnest(days, keys, handlers, moves, statuses, tokens, chains, alones, contents, envelopes, topics,
                times_ms, conversations, users) AS
            ask(day, key, handler, move, status, token, chain, alone, content, envelope, topic, time_ms,
                conversation, "user")
        WHERE ask.move = 'claimed' AND ask.status IS NULL
        ORDER BY ask.key, ask.handler
        ON CONFLICT (key, handler, day) DO NOTHING;
        GET DIAGNOSTICS written = ROW_COUNT;
        missing := missing OR written < fresh;
    END IF;
    IF known > 0 THEN
        -- Only if it has not changed since it was read.
        SELECT array_agg(ask.place) INTO unchanged
        FROM unnest(days, keys, handlers, moves, statuses, old_tokens, old_leases_us) WITH ORDINALITY AS
            ask(day, key, handler, move, status, token, lease_until_us, place)
        CROSS JOIN LATERAL (
            SELECT FROM {schema}.event WHERE event.day = ask.day AND event.key = ask.key AND event.handler = ask.handler
                AND event.status = ask.status AND event.token = ask.token AND event.lease_until_us = ask.lease_until_us
            FOR UPDATE
        ) AS event
        WHERE ask.move = 'claimed' AND ask.status IS NOT NULL;
        INSERT INTO {schema}.event AS record (
            day, key, handler, status, token, nonce, lease_until_us, alone, attempts, content, envelope, changed_us,
            retry_at_us, letter, topic)
        SELECT ask.day, ask.key, ask.handler, 'claimed', ask.token, claim_batch.nonce,
            CASE WHEN ask.chain IS NULL THEN claim_batch.now_us + claim_batch.lease_us ELSE 0 END,
            coalesce(ask.alone, false), ask.attempt - 1, ask.content, ask.envelope, claim_batch.now_us, 0, false, ask.topic
        FROM unnest(days, keys, handlers, tokens, chains, alones, attempts, contents, envelopes, topics)
            WITH ORDINALITY AS
            ask(day, key, handler, token, chain, alone, attempt, content, envelope, topic, place)
        WHERE ask.place = ANY (unchanged)
        -- They exist, and are ours: of all ways to change a few rows of a partition this one never scans elsewhere.
        ON CONFLICT (key, handler, day) DO UPDATE SET
            status = excluded.status, token = excluded.token, nonce = excluded.nonce,
            lease_until_us = excluded.lease_until_us, alone = excluded.alone, attempts = excluded.attempts,
            content = coalesce(excluded.content, record.content), envelope = excluded.envelope,
            changed_us = excluded.changed_us, retry_at_us = excluded.retry_at_us;
        missing := missing OR coalesce(cardinality(unchanged), 0) < known;
    END IF;
    IF NOT missing THEN
        RETURN;
    END IF;

    -- Others were faster. Granting now would lock out of order, so these are only read once more: they are busy,
    -- unless it was this very call, sent twice.
    SELECT array_agg(ask.place ORDER BY ask.place) INTO again
    FROM unnest(days, keys, handlers, moves, tokens, chains) WITH ORDINALITY AS
        ask(day, key, handler, move, token, chain, place)
    LEFT JOIN LATERAL (
        SELECT true AS ours FROM {schema}.event
        WHERE event.day = ask.day AND event.key = ask.key AND event.handler = ask.handler
            AND event.nonce = claim_batch.nonce AND event.token = ask.token OFFSET 0
    ) AS event ON true
    WHERE ask.move = 'again' OR (ask.move = 'claimed' AND event.ours IS NULL);
    IF EXISTS (SELECT FROM unnest(again) AS lost(place) WHERE moves[lost.place] = 'claimed' AND chains[lost.place] > 0)
    THEN
        -- An entity was granted, but its event belongs to another worker, which took it as a fact.
        RAISE EXCEPTION 'an event has changed while its entity was claimed' USING ERRCODE = 'serialization_failure';
    END IF;
    SELECT * INTO look FROM {schema}.look_at(
        ARRAY(SELECT days[n] FROM unnest(again) AS n), ARRAY(SELECT keys[n] FROM unnest(again) AS n),
        ARRAY(SELECT handlers[n] FROM unnest(again) AS n), ARRAY(SELECT envelopes[n] FROM unnest(again) AS n),
        ARRAY(SELECT contents[n] FROM unnest(again) AS n), ARRAY(SELECT chains[n] FROM unnest(again) AS n),
        ARRAY(SELECT arrivals[n] FROM unnest(again) AS n), ARRAY(SELECT alones[n] FROM unnest(again) AS n),
        ARRAY(SELECT redrives[n] FROM unnest(again) AS n), entities, nonce, claim_batch.now_us);
    FOR number IN 1..coalesce(cardinality(again), 0) LOOP
        place := again[number];
        statuses[place] := look.statuses[number];
        originals[place] := look.originals[number];
        tokens[place] := look.tokens[number];
        attempts[place] := look.attempts[number];
        busies_us[place] := look.busies_us[number];
        moves[place] := look.moves[number];
        IF moves[place] = 'claimed' THEN
            moves[place] := 'busy';
            tokens[place] := 0;
            attempts[place] := 1;
            busies_us[place] := {moment_us};
        ELSIF moves[place] = 'own' AND chains[place] > 0 THEN
            tops[chains[place]] := look.tops[chains[place]];
            run_outs[chains[place]] := look.run_outs[chains[place]];
            datas[chains[place]] := look.datas[chains[place]];
        END IF;
    END LOOP;
END
$$;
