-- Partitions: one for each day of event times, made ahead by the first worker of a day, dropped by purge.
-- Workers need not own the tables, so these run with the rights of the user who migrated.

-- The number of today's day, as event.day counts.
CREATE OR REPLACE FUNCTION {schema}.today() RETURNS integer LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT ({schema}.now_us() / 86400000000)::integer
$$;

CREATE OR REPLACE FUNCTION {schema}.place_name(day integer) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT 'event_' || to_char('epoch'::date + day, 'YYYYMMDD')
$$;

-- Make the partitions of these days: those on which events may still arrive for the first time.
CREATE OR REPLACE FUNCTION {schema}.make_places() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '{brief_lock_timeout}' AS $$
DECLARE
    day integer;
    name text;
    made integer := 0;
BEGIN
    FOR day IN SELECT generate_series({schema}.today() - {days_behind}, {schema}.today() + {days_ahead}) LOOP
        name := {schema}.place_name(day);
        CONTINUE WHEN to_regclass(format('{schema}.%I', name)) IS NOT NULL;
        -- One at a time: a second worker finds it made, or leaves it to the first.
        EXIT WHEN NOT pg_try_advisory_xact_lock({places_lock}, hashtext('{schema}'));
        CONTINUE WHEN to_regclass(format('{schema}.%I', name)) IS NOT NULL;
        -- Attached, not created in place: that would lock the whole table. Events that came early move in first.
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

-- The day of each partition, or null for those that stay.
CREATE OR REPLACE FUNCTION {schema}.places(OUT name text, OUT day integer) RETURNS SETOF record
LANGUAGE sql STABLE AS $$
    SELECT child.relname::text,
        CASE WHEN child.relname ~ '^event_[0-9]{8}$'
            THEN to_date(substr(child.relname, 7), 'YYYYMMDD') - 'epoch'::date END
    FROM pg_catalog.pg_inherits JOIN pg_catalog.pg_class AS child ON child.oid = inhrelid
    WHERE inhparent = '{schema}.event'::regclass ORDER BY child.relname
$$;

-- Whether an event in a partition was settled since: then all of it is still needed.
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

-- Drop a day's partition if all in it was settled before then; return the number of its events, else null.
CREATE OR REPLACE FUNCTION {schema}.drop_place(place_day integer, before_us bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '{brief_lock_timeout}' AS $$
DECLARE
    name text := {schema}.place_name(place_day);
    needed bigint;
    number bigint;
BEGIN
    IF place_day >= {schema}.today() - {days_behind} THEN
        RETURN NULL;
    END IF;
    -- While it is scanned only writers to it wait; then the drop locks everyone out, for a moment.
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

-- Forget events settled before then in some pages of one partition; return how many. Never waits.
CREATE OR REPLACE FUNCTION {schema}.forget_events(name text, before_us bigint, first_page bigint, pages bigint)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog {settings} AS $$
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

-- Forget entities that nobody holds and that are unused since then, in some pages; return how many. Never waits.
CREATE OR REPLACE FUNCTION {schema}.forget_entities(before_us bigint, first_page bigint, pages bigint)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog {settings} AS $$
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
