"""What happens to a delivery: read, claim, decide, run, complete."""
