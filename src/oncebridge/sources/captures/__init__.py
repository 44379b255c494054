"""Captures, as people get them out of their accounts: files, directories and standard input into deliveries."""
