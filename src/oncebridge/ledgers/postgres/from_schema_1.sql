-- From schema 1, which kept the rules of order in SQL, to 2. Between the two parts an entity's columns become its data.

-- Running calls end first; those that wait meanwhile are refused.
LOCK TABLE {schema}.event, {schema}.entity IN ACCESS EXCLUSIVE MODE;

-- A worker of schema 1 that still runs begins each of its calls with this: it gets an error and changes nothing. So the
-- functions that it calls still exist. Its claims run out.
CREATE OR REPLACE FUNCTION {schema}.begin_call() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the tables were made by a newer Oncebridge (schema 2, this one knows 1); update this one'
        USING ERRCODE = 'OB003';
END
$$;

DROP FUNCTION
    {schema}.hold_entities(integer[], bytea[], text[], bytea[], boolean[]),
    {schema}.is_older(bigint[], bigint, bigint[], bigint),
    {schema}.is_within(bigint[], bigint[], bigint),
    {schema}.is_believable(bigint[], bigint, bigint),
    {schema}.filled(bigint[], bigint[]);

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{schema}.event'::regclass AND attname = 'again_us') THEN
        ALTER TABLE {schema}.event RENAME COLUMN again_us TO retry_at_us;
    END IF;
END
$$;

ALTER TABLE {schema}.entity
    ADD COLUMN nonce bytea NOT NULL DEFAULT '',
    ADD COLUMN ran_out boolean NOT NULL DEFAULT false,
    ADD COLUMN data bytea NOT NULL DEFAULT '';

-- then, once all data is written:

ALTER TABLE {schema}.entity
    ALTER COLUMN token DROP DEFAULT, ALTER COLUMN lease_until_us DROP DEFAULT,
    ALTER COLUMN nonce DROP DEFAULT, ALTER COLUMN ran_out DROP DEFAULT, ALTER COLUMN data DROP DEFAULT,
    DROP COLUMN state, DROP COLUMN times, DROP COLUMN version, DROP COLUMN echoes, DROP COLUMN newest,
    DROP COLUMN newest_day, DROP COLUMN line_times, DROP COLUMN line_version, DROP COLUMN unsure;
