"""Waits for what another thread or process is about to do."""

import threading

GIVE_UP_SECONDS = 30.0
LOOK_SECONDS = 0.005


def until(is_so, what="it"):
    """Look again and again until something is so, and return it."""
    never = threading.Event()
    for _ in range(int(GIVE_UP_SECONDS / LOOK_SECONDS)):
        if found := is_so():
            return found
        never.wait(LOOK_SECONDS)
    raise AssertionError(f"{what} did not happen within {GIVE_UP_SECONDS} s")
