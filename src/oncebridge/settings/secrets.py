"""Secrets: named in settings by where they are, and never shown."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from oncebridge.amazon import Meaning, code_of, make_client, meaning_of, require_boto3
from oncebridge.errors import ConfigurationError
from oncebridge.settings.reading import read_by, read_text, read_texts

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 64  # as much as the hash takes
LENGTH_MIN: Final = 3  # a text without a shorter one would be unreadable

_SECRET_NAME: Final = re.compile("pass|secret|token|key|sig|auth|code", re.IGNORECASE)


class Secret(msgspec.Struct, frozen=True):
    """A secret, and where it came from; only the latter is ever shown."""

    reference: str
    value: str

    def __repr__(self) -> str:
        """Show where it is, not what it is."""
        return f"<Secret {self.reference}>"


def read_reference(reference: Any) -> Secret:
    """Fetch a secret from where its reference says: `env:NAME`, `file:PATH` or `secretsmanager:ID`."""
    if not isinstance(reference, str):
        raise ValueError  # noqa: TRY004 - the caller says what was expected
    kind, colon, place = reference.partition(":")
    fetch = _PLACES.get(kind)
    if fetch is None or not colon or not place:
        raise ConfigurationError(_NO_REFERENCE)  # not shown: it may be the secret itself
    value = fetch(place).strip()
    if not value or not value.isascii() or not value.isprintable():
        raise ConfigurationError(f"{reference}: is empty, or not one line of printable ASCII")
    return Secret(reference, value)


_NO_REFERENCE: Final = (
    "a secret is named by where it is: env:NAME, file:PATH or secretsmanager:ID; the secret itself does not belong "
    "into the settings"
)


def _read_place(reference: Any) -> str:
    """Check a reference that is followed when its secret is needed: most workers never need it."""
    if not is_reference(reference) or not reference.partition(":")[2]:
        raise ConfigurationError(_NO_REFERENCE)
    kind, _, place = reference.partition(":")
    if kind == "env":
        VARIABLES_NAMED.add(place)
    return str(reference)


def is_reference(value: object) -> bool:
    """Return whether a text names a secret rather than being the value itself."""
    return isinstance(value, str) and value.partition(":")[0] in _PLACES and ":" in value


def _read_ledger(value: Any) -> str:
    """Read a ledger's URL, or fetch it from where a reference says."""
    return read_reference(value).value if is_reference(value) else read_text(value)


#: The variables that references of this process have named: of settings, and of bridges that a program makes itself.
VARIABLES_NAMED: Final[set[str]] = set()


def _from_environment(name: str) -> str:
    VARIABLES_NAMED.add(name)
    if name not in os.environ:
        raise ConfigurationError(f"env:{name}: this environment variable is not set")
    return os.environ[name]


def _from_file(path: str) -> str:
    try:
        return _content(path).decode()
    except ConfigurationError as error:
        raise ConfigurationError(f"file:{path}: {error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"file:{path}: is not text") from None


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{error.strerror}") from None
    except ValueError:  # it has a null character
        raise ConfigurationError("no file has such a name") from None


def _from_secrets_manager(place: str) -> str:
    require_boto3("secretsmanager")
    try:
        # Sooner than elsewhere: a function has ten seconds to start, and is ended without a word then.
        client = make_client("secretsmanager", connect_seconds=2, read_seconds=2)
        answer = client.get_secret_value(SecretId=place)
    except Exception as error:  # noqa: BLE001 - any error of boto3 becomes ours
        words = meaning_of(error).words("Secrets Manager", _OWN_WORDS)
        raise ConfigurationError(f"secretsmanager:{place}: {words} ({code_of(error)})") from None
    return str(answer.get("SecretString", ""))


_OWN_WORDS: Final = {
    Meaning.DENIED: "may not be read by this worker; allow it secretsmanager:GetSecretValue on this secret",
    Meaning.KEY: "cannot be decrypted by this worker; allow it kms:Decrypt with the secret's key",
    Meaning.UNREACHABLE: (
        "Secrets Manager is out of reach; check the region, and the way to it: in a VPC it is an interface endpoint "
        "or a NAT gateway"
    ),
}
_PLACES: Final = {"env": _from_environment, "file": _from_file, "secretsmanager": _from_secrets_manager}

EXPECTED: Final = "env:NAME, file:PATH or secretsmanager:ID"


def _read_references(value: Any) -> tuple[Secret, ...]:
    return tuple(read_reference(reference) for reference in read_texts(value))


Reference: TypeAlias = Annotated[Secret, read_by(read_reference, EXPECTED, shown=False)]
#: One that is followed later, by `read_reference`.
Place: TypeAlias = Annotated[str, read_by(_read_place, EXPECTED, shown=False)]
References: TypeAlias = Annotated[tuple[Secret, ...], read_by(_read_references, f"a list of {EXPECTED}", shown=False)]
LedgerURL: TypeAlias = Annotated[
    str, read_by(_read_ledger, f"a ledger's URL such as sqlite:///once.db, or where one is: {EXPECTED}", shown=False)
]


def read_key_secret(secret: bytes) -> bytes:
    """Check the secret that keys are made with."""
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        # Its length may be shown, its content never.
        raise ConfigurationError(
            f"a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, this one has {len(secret)}; "
            "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return secret


def _read_key_secret(value: Any) -> bytes:
    """Read the secret itself, as a variable or a program gives it, or fetch it from where a reference says."""
    if isinstance(value, bytes):
        return read_key_secret(value)
    return read_key_secret((read_reference(value).value if is_reference(value) else read_text(value)).encode())


KeySecret: TypeAlias = Annotated[bytes, read_by(_read_key_secret, EXPECTED, shown=False)]


def with_secret_file(values: dict[str, Any]) -> dict[str, Any]:
    """Put the secret that keys are made with in the place of the file that holds it, unless it is there itself."""
    path = values.pop("secret_file", None)
    if path is not None and "secret" not in values:
        try:
            values["secret"] = read_key_secret(_content(path).strip())
        except ConfigurationError as error:
            raise ConfigurationError(f"secret_file {path}: {error}") from None
    return values


# --- secrets in a text -------------------------------------------------------------------------------


def secrets_of(settings: msgspec.Struct) -> tuple[str, ...]:
    """Return the secrets that settings hold, those in URLs included, the longest first: none of them may be shown."""
    found = {secret for secret in _secrets_in(settings) if len(secret) >= LENGTH_MIN}
    return tuple(sorted(found, key=len, reverse=True))


def _secrets_in(value: object) -> Iterator[str]:
    match value:
        case Secret():
            yield value.value
            yield from _secrets_in(value.value)
        case bytes():
            yield value.decode(errors="backslashreplace")
        case str() if "://" in value:
            yield from _secrets_in_url(value)
        case tuple():
            for one in value:
                yield from _secrets_in(one)
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield from _secrets_in(getattr(value, name))
        case _:
            pass


def _secrets_in_url(url: str) -> Iterator[str]:
    """Yield what may be secret in a URL: its password, parameters, and over HTTP parts of its path."""
    try:
        parts = urlsplit(url)
        password = parts.password or ""
    except ValueError:
        yield url
        return
    path = parts.path.split("/") if parts.scheme in ("http", "https") else []
    query = [value for name, value in parse_qsl(parts.query) if _SECRET_NAME.search(name)]
    for secret in (password, *query, *(part for part in path if len(part) >= SECRET_BYTES_MIN)):
        yield from (secret, unquote(secret), quote(secret, safe=""))
