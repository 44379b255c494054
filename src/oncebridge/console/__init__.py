"""The console: pages that show what came, what became of it and why, and that act on it.

Everything is read from the ledger and from the journal that workers keep there, so it shows all workers and survives
restarts. Pages are written by the server; the script only keeps them up to date.
"""
