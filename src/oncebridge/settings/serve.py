"""Settings of the HTTP service: the table `[serve]`."""

from typing import Annotated

import msgspec
from msgspec import Meta


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the service listens, and how much it takes."""

    host: Annotated[
        str,
        Meta(min_length=1, description="where the HTTP service listens; without `api_keys` on loopback only"),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="its port; 0 takes a free one")] = 8080
    workers: Annotated[int, Meta(ge=1, le=256, description="its processes")] = 1
    body_bytes_max: Annotated[int, Meta(ge=1, le=1_073_741_824, description="how large a request may be")] = 16_777_216
    connections: Annotated[int, Meta(ge=1, le=100_000, description="how many connections there may be at a time")] = (
        1024
    )
    connections_per_peer: Annotated[
        int,
        Meta(ge=1, le=100_000, description="how many of them one address may have; raise it behind a proxy"),
    ] = 256
    read_within_seconds: Annotated[
        float,
        Meta(ge=0.1, le=60, description="how long a client may take to send a request, and to read the answer"),
    ] = 3.0
    answer_within_seconds: Annotated[
        float,
        Meta(ge=0.1, le=900, description="how long a request takes at most; EventBridge waits for 5 seconds"),
    ] = 4.5
