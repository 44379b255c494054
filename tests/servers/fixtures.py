"""Servers as fixtures: started when the first test asks for them, one set for each process of the run.

Clients are imported with the first server: few tests need them all.
"""

import pytest


@pytest.fixture(scope="session")
def valkey(tmp_path_factory):
    """Return a running Valkey, with every write on disk before it is answered."""
    from servers.valkey import running_valkey

    with running_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """Return a running Postgres."""
    from servers.postgres import running_postgres

    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def ministack(tmp_path_factory):
    """Return a running emulator of AWS."""
    from servers.aws import running_ministack

    with running_ministack(tmp_path_factory.mktemp("aws")) as server:
        yield server


@pytest.fixture(scope="module")
def chromium():
    """Return a running browser; not for the whole session, since no other event loop can run beside it."""
    from servers.chromium import running_chromium

    with running_chromium() as browser:
        yield browser
