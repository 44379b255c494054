-- Attendance: which marks came of each conversation. A settle with marks has functions of its own, so that one without
-- costs what it always has, and workers that know of none go on as before.

CREATE TABLE {schema}.attendance (
    conversation bytea  PRIMARY KEY,           -- digest
    marks        bytea  NOT NULL,              -- 4 bytes each, all different; opaque to SQL
    first_us     bigint NOT NULL,
    last_us      bigint NOT NULL
) WITH (fillfactor = 70);

-- Marks, each once.
CREATE FUNCTION {schema}.united(marks bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT pg_catalog.string_agg(DISTINCT pg_catalog.substr(marks, place, {mark_bytes}), '')
    FROM pg_catalog.generate_series(1, pg_catalog.octet_length(marks), {mark_bytes}) AS place
$$;

-- Add the marks at some places, in the order of their conversations, so that two calls never deadlock. A conversation
-- that is full takes no others.
CREATE FUNCTION {schema}.add_marks(conversations bytea[], marks bytea[], added boolean[]) RETURNS void
LANGUAGE plpgsql {settings} AS $$
#variable_conflict use_column
DECLARE
    now_us bigint := {schema}.now_us();
BEGIN
    INSERT INTO {schema}.attendance AS before (conversation, marks, first_us, last_us)
    SELECT came.conversation, string_agg(DISTINCT came.mark, ''), now_us, now_us
    FROM unnest(conversations, marks, added) AS came(conversation, mark, added)
    WHERE came.mark IS NOT NULL AND came.added
    GROUP BY came.conversation ORDER BY came.conversation
    ON CONFLICT (conversation) DO UPDATE SET
        marks = CASE
            WHEN octet_length(before.marks) >= {marks_max} * {mark_bytes} THEN before.marks
            -- The usual case, a tenth of the time: its bytes are nowhere, not even across two marks.
            WHEN octet_length(excluded.marks) = {mark_bytes} AND position(excluded.marks IN before.marks) = 0
                THEN before.marks || excluded.marks
            ELSE {schema}.united(before.marks || excluded.marks) END,
        last_us = greatest(before.last_us, excluded.last_us);
END
$$;

-- As settle_batch, and those in force leave their marks. A repeat has left its own already.
CREATE FUNCTION {schema}.settle_marked(
    days integer[], keys bytea[], handlers text[], tokens bigint[], outcomes text[], retries_in_us bigint[],
    chains integer[], arrivals integer[], datas bytea[], stays boolean[], entities bytea[], tops bigint[],
    raws bytea[], reasons text[], details text[], conversations bytea[], marks bytea[],
    OUT kept boolean[], OUT repeated integer[]
) LANGUAGE plpgsql {settings} AS $$
#variable_conflict use_column
DECLARE
    added boolean[];
    place integer;
BEGIN
    SELECT ended.kept, ended.repeated INTO kept, repeated
    FROM {schema}.settle_batch(days, keys, handlers, tokens, outcomes, retries_in_us, chains, arrivals, datas, stays,
        entities, tops, raws, reasons, details) AS ended;
    added := kept;
    FOREACH place IN ARRAY coalesce(repeated, '{}') LOOP
        added[place] := false;
    END LOOP;
    PERFORM {schema}.add_marks(conversations, marks, added);
END
$$;

-- As settle_last, which returns only if the claim is in force.
CREATE FUNCTION {schema}.settle_last_marked(
    days integer[], keys bytea[], handlers text[], tokens bigint[], outcomes text[], retries_in_us bigint[],
    chains integer[], arrivals integer[], datas bytea[], stays boolean[], entities bytea[], tops bigint[],
    raws bytea[], reasons text[], details text[], conversations bytea[], marks bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.settle_last(days, keys, handlers, tokens, outcomes, retries_in_us, chains, arrivals, datas, stays,
        entities, tops, raws, reasons, details);
    PERFORM {schema}.add_marks(conversations, marks, ARRAY[true]);
END
$$;

-- Forget conversations of which nothing came since then, in some pages; return how many. Never waits.
CREATE FUNCTION {schema}.forget_attendance(before_us bigint, first_page bigint, pages bigint)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog {settings} AS $$
DECLARE
    number bigint;
BEGIN
    EXECUTE format(
        'DELETE FROM {schema}.attendance WHERE ctid = ANY (ARRAY('
        ' SELECT ctid FROM {schema}.attendance WHERE ctid >= %L AND ctid < %L'
        ' AND last_us < $1 FOR UPDATE SKIP LOCKED))',
        format('(%s,0)', first_page), format('(%s,0)', first_page + pages))
    USING before_us;
    GET DIAGNOSTICS number = ROW_COUNT;
    RETURN number;
END
$$;
