-- Dead letters in order and by group, for people: a narrow table beside the one with their content. Triggers keep it, so
-- that workers need not know of it, and with the rights of the user who migrated.

CREATE TABLE {schema}.letter_head (
    key     bytea            NOT NULL,
    handler text COLLATE "C" NOT NULL,
    day     integer          NOT NULL,
    died_us bigint           NOT NULL,
    reason  text             NOT NULL,
    topic   text             NOT NULL,
    PRIMARY KEY (key, handler)
);

CREATE INDEX letter_head_died ON {schema}.letter_head (died_us, key, handler);

CREATE FUNCTION {schema}.list_letter() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog {settings} AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM {schema}.letter_head AS head WHERE head.key = OLD.key AND head.handler = OLD.handler;
        RETURN NULL;
    END IF;
    INSERT INTO {schema}.letter_head (key, handler, day, died_us, reason, topic)
    SELECT NEW.key, NEW.handler, NEW.day, event.changed_us, NEW.reason, event.topic FROM {schema}.event
    WHERE event.day = NEW.day AND event.key = NEW.key AND event.handler = NEW.handler
    ON CONFLICT (key, handler) DO UPDATE SET
        day = excluded.day, died_us = excluded.died_us, reason = excluded.reason, topic = excluded.topic;
    RETURN NULL;
END
$$;

CREATE TRIGGER list_letter AFTER INSERT OR UPDATE OR DELETE ON {schema}.letter
    FOR EACH ROW EXECUTE FUNCTION {schema}.list_letter();
