"""Keys and certificates for TLS on this machine, made by each run: none is kept in the repository."""

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificates:
    """Where a server's key and certificate are, in one file, and the certificate of the authority that signed it.

    `bundle` has all three: the emulator tells its functions to trust the file that it was given.
    """

    server: Path
    authority: Path
    bundle: Path


def issue(directory: Path, *names: str) -> Certificates:
    """Make an authority and a certificate for these names and addresses, in a directory."""
    authority = trustme.CA()
    issued = Certificates(directory / "server.pem", directory / "authority.pem", directory / "bundle.pem")
    server = authority.issue_cert(*names).private_key_and_cert_chain_pem
    authority.cert_pem.write_to_path(issued.authority)
    for path in (issued.server, issued.bundle):
        server.write_to_path(path)
    authority.cert_pem.write_to_path(issued.bundle, append=True)
    return issued
