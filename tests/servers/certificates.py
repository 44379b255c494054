"""Keys and certificates for TLS on this machine, made by each run: none is kept in the repository."""

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificates:
    """Where a server's key and certificates are, in one file, and the certificate of the authority that signed them."""

    server: Path
    authority: Path


def issue(directory: Path, *names: str) -> Certificates:
    """Make an authority and a certificate for these names and addresses, in a directory."""
    authority = trustme.CA()
    issued = Certificates(server=directory / "server.pem", authority=directory / "authority.pem")
    authority.cert_pem.write_to_path(issued.authority)
    authority.issue_cert(*names).private_key_and_cert_chain_pem.write_to_path(issued.server)
    # The emulator tells its functions to trust the file that it was given, so the authority is in it too.
    authority.cert_pem.write_to_path(issued.server, append=True)
    return issued
