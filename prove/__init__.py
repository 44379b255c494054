"""Proofs from outside: workers are killed, stopped and cut off, and what took effect is counted where they cannot reach."""
