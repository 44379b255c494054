"""A worker that knows nothing of the library: asks for claims over HTTP, has its effect, and reports the end."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from prove.stream import number_in
from prove.worker import Conditions, FailedOnPurpose, Notes, Strikes, fails_at_first

ANSWER_SECONDS: Final = 20.0
#: How often a request whose answer was lost is sent again, under its key.
TRIES: Final = 3
AGAIN_SECONDS: Final = 0.05


class Unanswered(Exception):
    """The service does not answer, or not now."""


class Claimant:
    """Follows the rules of docs/http.md: work only with a claim, and acknowledge only what was settled."""

    def __init__(self, conditions: Conditions, strikes: Strikes, notes: Notes) -> None:
        """Take where claims are lent out."""
        self._address = urlsplit(conditions.service).netloc
        self._conditions, self._strikes, self._notes = conditions, strikes, notes

    def process(self, raws: list[bytes]) -> dict[str, Any]:
        """Process deliveries one by one; say of each whether it may be acknowledged."""
        return {"acknowledged": [self._is_acknowledged(raw) for raw in raws], "columns": []}

    def _is_acknowledged(self, raw: bytes) -> bool:
        try:
            return self.one(json.loads(raw))
        except Unanswered:
            return False

    def one(self, event: dict[str, Any]) -> bool:
        """Process one; return whether it may be acknowledged."""
        self._strikes.at("before claim")
        asked = {"event": event, "handler": "plain", "lease_seconds": self._conditions.lease_seconds}
        claimed = self.send("/claims", asked)
        self._strikes.at("after claim")
        if not claimed.get("claim"):
            return bool(claimed["acknowledge"])
        outcome = "done"
        try:
            self._have_effect(event, claimed)
        except FailedOnPurpose:
            outcome = "retry"
        return self.settle(event, claimed, outcome) and outcome == "done"

    def _have_effect(self, event: dict[str, Any], claimed: Mapping[str, Any]) -> None:
        number = number_in(event["detail"]["eventBody"])
        fails_at_first(self._conditions, claimed["attempt"], number)
        self._strikes.at("before effect")
        self._notes.write("effect", number, claimed["key"], claimed["token"])
        self._strikes.at("after effect")

    def settle(self, event: dict[str, Any], claimed: Mapping[str, Any], outcome: str) -> bool:
        """Report the end; return whether it was accepted."""
        self._strikes.at("before settle")
        settled = self.send("/claims/settle", {"claim": claimed["claim"], "outcome": outcome, "event": event})
        if settled["ok"] and outcome == "done":
            self._notes.write("settled", f"{claimed['key']}/plain", claimed["token"])
        self._strikes.at("after settle")
        return bool(settled["ok"])

    def send(self, path: str, fields: dict[str, Any]) -> Any:
        """Send a request, again and under the same key where its answer was lost."""
        headers = {"Idempotency-Key": secrets.token_hex(16), "Content-Type": "application/json"}
        for _ in range(TRIES):
            connection = http.client.HTTPConnection(self._address, timeout=ANSWER_SECONDS)
            try:
                connection.request("POST", path, json.dumps(fields), headers)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException):
                time.sleep(AGAIN_SECONDS)
                continue
            finally:
                connection.close()
            if answer.status == HTTPStatus.OK:
                return json.loads(body)
            if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise RuntimeError(f"{path} was answered with {answer.status}: {body[:300]!r}")
        raise Unanswered(path)
