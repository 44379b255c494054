"""The HTTP application: events in, claims for other languages, health, metrics."""
