"""A client that speaks to an application as a server does, without ports, and as many requests at once as wanted."""

import asyncio
import json
import threading
from typing import Any, NamedTuple


class Answered(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


class Client:
    """Sends requests to one application; from any thread, each waits for its own answer."""

    def __init__(self, application) -> None:
        """Start the loop that the application runs in."""
        self._application = application
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asgi client")
        self._thread.start()

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def post(self, path: str, tree: Any = None, *, raw: bytes | None = None, **headers: str) -> Answered:
        """Post JSON, or the very bytes."""
        body = json.dumps(tree).encode() if raw is None else raw
        return self.send("POST", path, body, **headers)

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answered:
        """Send a request; headers by their names, with `_` for each hyphen."""
        return self.start(method, path, body, **headers).result()

    def start(self, method: str, path: str, body: bytes = b"", **headers: str):
        """Send a request, and return the future of its answer."""
        return asyncio.run_coroutine_threadsafe(self._send(method, path, body, headers), self._loop)

    async def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answered:
        messages: list[dict[str, Any]] = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if not waiting:
                await asyncio.Event().wait()
            return waiting.pop()

        async def send(message):
            messages.append(message)

        named = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [*named, (b"content-length", str(len(body)).encode())],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8080),
        }
        await self._application(scope, receive, send)
        start, *rest = messages
        got = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answered(start["status"], got, b"".join(message.get("body", b"") for message in rest))
