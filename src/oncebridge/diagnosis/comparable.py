"""Findings about what `reconcile` needs: attendance that the ledger keeps, and the sign-in at Genesys Cloud."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from oncebridge.engine.attending import read_kept
from oncebridge.errors import ConfigurationError, LedgerRefused, MissingExtra
from oncebridge.ledgers import DAY_US
from oncebridge.ledgers.findings import Finding, good, warning, wrong
from oncebridge.ledgers.notes import KeepsNotes
from oncebridge.ledgers.protocol import KeepsAttendance
from oncebridge.retry import RetryPolicy
from oncebridge.settings.genesys import PERMISSION, GenesysSettings

if TYPE_CHECKING:
    from oncebridge.clock import Clock
    from oncebridge.engine.attending import Kept
    from oncebridge.ledgers.protocol import Ledger

ONCE: Final = RetryPolicy(attempts=1)
TIMEOUT_SECONDS: Final = 5.0
#: Families are noted once a day, so workers that keep attendance now have noted some since then.
LATELY_US: Final = 2 * DAY_US
MINUTE_MS: Final = 60_000

_ATTENDANCE: Final = "attendance"
_SIGN_IN: Final = "sign-in at Genesys"
_SWITCH_ON: Final = "set attendance = true for the workers; if nobody is to ask what never came, drop [genesys]"


def is_set(settings: GenesysSettings) -> bool:
    """Return whether anything is said of Genesys Cloud."""
    return settings != GenesysSettings()


# --- attendance --------------------------------------------------------------------------------------


def attendance(ledger: Ledger, *, wanted: bool, is_asked_for: bool, now_us: int) -> list[Finding]:
    """Look at the attendance of a ledger that is open; nothing is found where nobody keeps or asks for any."""
    if not wanted and not is_asked_for:
        return []
    if not isinstance(ledger, KeepsAttendance) or not isinstance(ledger, KeepsNotes):
        return [wrong(_ATTENDANCE, "this ledger cannot keep it", "take one that does, such as sqlite:///once.db")]
    try:
        ledger.attendance([])  # its tables may be from before there was attendance
        kept = read_kept(ledger.notes)
    except LedgerRefused as error:
        return [wrong(_ATTENDANCE, str(error), "")]
    return [judged(kept, wanted=wanted, now_us=now_us)]


def judged(kept: Kept | None, *, wanted: bool, now_us: int) -> Finding:
    """Judge what is noted of attendance by whether these settings want it."""
    if kept is None:
        if wanted:
            return good(_ATTENDANCE, "is kept from the first event of a conversation on; none has come yet")
        return warning(_ATTENDANCE, "is not kept, so reconcile has nothing to compare with", _SWITCH_ON)
    since, last_us = _day(kept.since_ms * 1000), max(kept.families.values(), default=kept.began_us)
    if wanted:
        return good(_ATTENDANCE, f"is kept since {since}")
    if now_us - last_us < LATELY_US:
        return good(_ATTENDANCE, f"is kept since {since}, by workers that have other settings than these")
    return warning(_ATTENDANCE, f"is kept no longer: the last of it is from {_day(last_us)}", _SWITCH_ON)


def _day(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).date().isoformat()


# --- the sign-in -------------------------------------------------------------------------------------


def sign_in(settings: GenesysSettings, clock: Clock, *, attendance: bool) -> list[Finding]:
    """Sign in once, and ask for as little as there is; what `reconcile` alone needs is wrong only if it is refused."""
    if not is_set(settings):
        found = "is not set, so reconcile works with saved answers alone (--details)"
        return [good(_SIGN_IN, found)] if attendance else []
    if settings.missing:
        return [wrong(_SIGN_IN, f"[genesys] lacks {', '.join(settings.missing)}", "set all of it, or drop the table")]
    try:
        settings.client()
    except ConfigurationError as error:
        fix = "reconcile needs it where it runs; workers need neither the secret nor Genesys"
        return [warning(_SIGN_IN, f"cannot be tried here: {error}", fix)]
    try:
        return [_tried(settings, clock)]
    except MissingExtra as error:
        return [warning(_SIGN_IN, f"cannot be tried here: {error}", "reconcile needs it where it runs")]


def _tried(settings: GenesysSettings, clock: Clock) -> Finding:
    # Whoever keeps no attendance starts without HTTP.
    from oncebridge.genesys.api import GenesysAPI, GenesysUnavailable, NotThere
    from oncebridge.genesys.conversations import iso
    from oncebridge.genesys.details import by_query, watermark_ms

    try:
        api = GenesysAPI(settings, clock, retries=ONCE, timeout_seconds=TIMEOUT_SECONDS)
        try:
            complete_ms = watermark_ms(api)
            next(by_query(api, complete_ms - MINUTE_MS, complete_ms), None)
        finally:
            api.close()
    except ConfigurationError as error:
        return wrong(_SIGN_IN, str(error), f"an OAuth client (Client Credentials) with {PERMISSION} alone is enough")
    except NotThere as error:
        return wrong(_SIGN_IN, str(error), "look at [genesys] region and api_url")
    except GenesysUnavailable as error:
        return warning(_SIGN_IN, str(error), "look again; from here the API and the sign-in must be reachable")
    return good(_SIGN_IN, f"works, and may ask for conversations; Genesys' data is complete up to {iso(complete_ms)}")
