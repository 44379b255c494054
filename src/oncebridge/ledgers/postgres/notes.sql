-- Notes for people, beside the ledger's own tables: counts by page and name, and texts in the order of their names.

CREATE TABLE {schema}.count (
    page     text COLLATE "C" NOT NULL,
    name     text COLLATE "C" NOT NULL,
    number   bigint           NOT NULL,
    until_us bigint           NOT NULL,                  -- kept until then
    PRIMARY KEY (page, name)
);

CREATE TABLE {schema}.note (
    page     text COLLATE "C" NOT NULL,
    name     text COLLATE "C" NOT NULL,
    value    bytea            NOT NULL,
    until_us bigint           NOT NULL,
    PRIMARY KEY (page, name)
);
