"""Genesys Cloud's own interface, as far as the question what never came needs it."""
