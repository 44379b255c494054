"""Every error of Oncebridge, grouped by what the person who reads it must do."""

from __future__ import annotations


class OncebridgeError(Exception):
    """Something went wrong in Oncebridge."""

    def __init__(self, message: str | None = None) -> None:
        """Take the class docstring as the message where none is given."""
        super().__init__(message or (type(self).__doc__ or "").strip())


# --- Change your settings or your code, then start again ---------------------------------------------


class ConfigurationError(OncebridgeError):
    """A setting, a profile or a handler registration is wrong; the message names it and the fix."""


class NothingFound(ConfigurationError):
    """Nothing is known under a key; the message says where keys are listed."""


class MissingExtra(ConfigurationError):
    """A part of Oncebridge needs a package that is not installed; the message names the line that installs it."""


class LedgerRefused(ConfigurationError):
    """The ledger answers, but must not be used like this: another secret, or a newer or foreign schema."""


class LedgerWarning(UserWarning):
    """The ledger may be used like this, but remembers less surely than it could; the message says why."""


# --- Wait: nothing was acknowledged, and the same deliveries are redelivered -------------------------------


class LedgerUnavailable(OncebridgeError):
    """The ledger is out of reach; nothing was acknowledged, so try again once it is back."""


class NotAcknowledged(OncebridgeError):
    """Some deliveries must be redelivered; raised where an error is how their sender learns of it."""


class BatchOfParent(OncebridgeError):
    """This batch is the parent's: its handler has forked, and the child returned. End such a child with os._exit."""


# --- Look at the delivery: it is kept as a dead letter -----------------------------------------------


class Unreadable(OncebridgeError):
    """A delivery could not be read as an event; the message names the fault."""

    #: Its envelope id, where at least that could be read.
    envelope_id: str | None = None


# --- Raised by handlers, to say how they failed ------------------------------------------------------


class PermanentError(OncebridgeError):
    """Trying this event again cannot help: keep it as a dead letter now."""


class RetryLater(OncebridgeError):
    """This event should be tried again, not before `after_seconds` from now."""

    def __init__(self, message: str | None = None, *, after_seconds: float) -> None:
        """Remember how long the other side asked us to stay away."""
        super().__init__(message)
        self.after_seconds = after_seconds


class SaysWhy(OncebridgeError):
    """Raised by sinks: its words hold no personal data and no secret, so they are shown as the reason."""


class HandlerWriteRefused(OncebridgeError):
    """The ledger refused a write that a handler added to its transaction, so nothing of it was written."""


# --- Raised inside the bridge only -------------------------------------------------------------------


class ClaimLost(OncebridgeError):
    """The claim was taken over while its handler ran, so this worker's outcome was not accepted."""
