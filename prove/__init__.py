"""Proofs from outside: workers are killed, stopped and cut off, and effects are counted where they cannot reach."""
