"""The sink that writes events into a table, exactly once: in the ledger's own database, or in any Postgres."""
