"""Settings of the HTTP service: the table `[serve]`."""

from __future__ import annotations

from typing import Final

import msgspec

from oncebridge.settings.checks import TEXT, number, whole


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the service listens, and how much it takes."""

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    #: How large a request may be.
    body_bytes_max: int = 16 * 1_048_576
    #: How many connections there may be at a time, and how many from one address.
    connections: int = 1024
    connections_per_peer: int = 256
    #: How long a client may take to send its request, and to take the answer.
    read_within_seconds: float = 3.0
    #: How long a request takes at most; EventBridge's API destinations wait for 5 s.
    answer_within_seconds: float = 4.5


SERVE: Final = {
    "host": TEXT,
    "port": whole(0, 65_535),
    "workers": whole(1, 256),
    "body_bytes_max": whole(1, 1_073_741_824),
    "connections": whole(1, 100_000),
    "connections_per_peer": whole(1, 100_000),
    "read_within_seconds": number(0.1, 60),
    "answer_within_seconds": number(0.1, 900),
}
