"""Answers to why: one event explained."""
