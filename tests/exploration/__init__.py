"""Enumerates what two workers and a few faults can do to each other; `make prove` runs it, and the tests do."""
