"""An emulator of AWS, with DynamoDB, SQS, EventBridge and Lambda, spoken to by real boto3 over HTTP."""

import os
import signal
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
from botocore.config import Config

from servers.certificates import Certificates, issue
from servers.process import ServerProcess, free_port, listens

PYTHON = Path(sys.prefix) / "aws" / "bin" / "python"
REGION = "eu-central-1"


def aws_environment(directory: Path) -> dict[str, str]:
    """Return variables by which boto3 has made-up credentials, and looks for no others."""
    return {
        "AWS_ACCESS_KEY_ID": "made-up",
        "AWS_SECRET_ACCESS_KEY": "made-up",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": str(directory / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(directory / "no-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "BOTO_CONFIG": str(directory / "no-boto"),
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


class Ministack:
    """The emulator; `process` can be stopped, killed and started again."""

    def __init__(self, directory: Path, *, guarded: bool = False) -> None:
        """Choose a port; nothing runs yet. A guarded one speaks TLS alone, and does what policies allow and no more."""
        port = free_port()
        self.url = f"{'https' if guarded else 'http'}://127.0.0.1:{port}"
        self.region = REGION
        self._certificates = issue(directory, "127.0.0.1", "localhost") if guarded else None
        self.environment = aws_environment(directory)
        if self._certificates is not None:
            self.environment["AWS_CA_BUNDLE"] = str(self._certificates.authority)
        own = {
            **(_guarding(self._certificates, self.environment) if self._certificates else {}),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "IOT_MTLS_ENABLED": "0",
            "LOG_LEVEL": "WARNING",
            "STATE_DIR": str(directory / "state"),
            "S3_DATA_DIR": str(directory / "s3"),
            "TMPDIR": str(directory),
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(directory),
        }
        self.process = ServerProcess(
            [str(PYTHON), "-m", "ministack"],
            log=directory / "ministack.log",
            ready=lambda: listens(port) and self._answers(),
            environment=own,
            # Over TLS it would wait for every connection that is kept alive.
            stop_signal=signal.SIGKILL if guarded else signal.SIGTERM,
        )

    def _answers(self) -> bool:
        trust = ssl.create_default_context(cafile=self._certificates.authority) if self._certificates else None
        with urllib.request.urlopen(f"{self.url}/_ministack/health", timeout=5, context=trust) as answer:
            return bool(answer.status == 200)

    def client(self, service: str, **config: Any) -> Any:
        """Make a client of boto3's own kind, more patient than most."""
        settings = {"retries": {"total_max_attempts": 10, "mode": "standard"}, "max_pool_connections": 64, **config}
        return boto3.session.Session(region_name=self.region).client(
            service, endpoint_url=self.url, config=Config(**settings)
        )

    def reset(self) -> None:
        """Forget everything."""
        request = urllib.request.Request(f"{self.url}/_ministack/reset", method="POST")
        with urllib.request.urlopen(request, timeout=30):
            pass


def _guarding(certificates: Certificates, environment: dict[str, str]) -> dict[str, str]:
    """Return the settings of a guarded emulator: who has these credentials may do everything, others must be let."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    server = str(certificates.bundle)
    tls = {"USE_SSL": "1", "MINISTACK_SSL_CERT": server, "MINISTACK_SSL_KEY": server}
    return {"AUTH": "true", **tls, **{name: environment[name] for name in names}}


@contextmanager
def running_ministack(directory: Path, *, guarded: bool = False) -> Iterator[Ministack]:
    """Run the emulator, with everything it writes below this directory, and let boto3 know only its credentials."""
    if not PYTHON.exists():
        raise RuntimeError(f"{PYTHON} is missing: the AWS emulator has an environment of its own; run `make test`")
    server = Ministack(directory, guarded=guarded)
    server.process.start()
    # Without whatever could send boto3 to somebody's real account.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    try:
        with mock.patch.dict(os.environ, {**kept, **server.environment}, clear=True):
            yield server
    finally:
        server.process.stop()
