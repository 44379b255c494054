"""A process without file handles: what cannot be reached then is not what is wrong, and the error says so."""

import resource
from contextlib import closing, contextmanager, suppress

import pytest
from botocore.exceptions import EndpointConnectionError

from oncebridge import Bridge, LedgerUnavailable, handles
from oncebridge.amazon import Meaning, meaning_of

URLS = {
    "sqlite": "sqlite:///{folder}/once.db",
    "redis": "redis://127.0.0.1:1",
    "postgres": "postgresql://nobody@127.0.0.1:1/none",
}


@contextmanager
def no_handles():
    """Let this process open nothing."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_knows_whether_it_has_handles_left():
    """It tries."""
    assert handles.are_left()
    with no_handles():
        assert not handles.are_left()
    assert handles.are_left()


@pytest.mark.parametrize("kind", URLS)
def test_a_ledger_out_of_reach_for_want_of_handles_says_so(kind, tmp_path):
    """Neither its address nor its server is to be looked at."""
    url = URLS[kind].format(folder=tmp_path)
    with suppress(LedgerUnavailable), closing(Bridge(url)) as bridge:
        bridge.open()  # everything is imported, which needs handles, too
    with closing(Bridge(url)) as bridge, no_handles(), pytest.raises(LedgerUnavailable, match="no file handles left"):
        bridge.open()


def test_a_client_of_dynamodb_that_cannot_be_made_for_want_of_handles_is_made_later():
    """It is nothing that settings could mend, so the worker goes on."""
    url = "dynamodb://none?region=eu-central-1&endpoint_url=http://127.0.0.1:1"
    with closing(Bridge(url)) as bridge, no_handles(), pytest.raises(LedgerUnavailable, match="no file handles left"):
        bridge.open()


def test_so_does_amazon():
    """Where boto3 says only that it could not connect."""
    error = EndpointConnectionError(endpoint_url="http://127.0.0.1:1")
    assert meaning_of(error) is Meaning.UNREACHABLE
    with no_handles():
        assert meaning_of(error) is Meaning.NO_HANDLES
    assert Meaning.NO_HANDLES.passes
