"""What workers do, added up in the ledger's notes: for pages and commands that show all workers, and survive restarts.

Nothing here is part of the promise. What cannot be written in time is dropped, and no delivery ever waits for it.
"""
