"""Rules for the ports that servers get: two runs side by side, and every client on the machine, leave them alone."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from servers import process
from servers.process import BUS_ABOVE, free_port


def elsewhere(code):
    """Run a line in another process, and return what it said."""
    command = [sys.executable, "-c", f"from servers import process; {code}"]
    ran = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


@pytest.fixture
def only_port(monkeypatch):
    """Leave one port to choose from; the process that had it is gone."""
    port = int(elsewhere("print(process.free_port())"))
    monkeypatch.setattr(process, "PORTS", range(port, port + 1))
    return port


def test_a_port_is_given_away_once(only_port):
    """Neither this process nor another one gets a port that is given away, though nobody listens there yet."""
    assert free_port() == only_port
    with pytest.raises(RuntimeError, match="is free"):
        free_port()
    assert "is free" in elsewhere(f"process.PORTS = range({only_port}, {only_port + 1}); process.free_port()")


@pytest.mark.parametrize("above", [0, BUS_ABOVE])
def test_a_port_that_is_used_is_left_alone(above, only_port):
    """Somebody may listen on the port itself, or where a cluster would have its bus."""
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", only_port + above))
        with pytest.raises(RuntimeError, match="is free"):
            free_port()
    assert free_port() == only_port
