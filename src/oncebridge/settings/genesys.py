"""Settings of the sign-in at Genesys Cloud: the table `[genesys]`."""

import re
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from oncebridge.errors import ConfigurationError
from oncebridge.settings.reading import Text, read_by, read_text
from oncebridge.settings.secrets import Place, Secret, is_reference, read_reference

#: All that a client's role needs.
PERMISSION: Final = "analytics:conversationDetail:view"
#: The domain of each region of Genesys Cloud, by the name that Amazon gives the region.
REGIONS: Final = {
    "us-east-1": "mypurecloud.com",
    "us-east-2": "use2.us-gov-pure.cloud",
    "us-west-2": "usw2.pure.cloud",
    "ca-central-1": "cac1.pure.cloud",
    "mx-central-1": "mxc1.pure.cloud",
    "sa-east-1": "sae1.pure.cloud",
    "eu-west-1": "mypurecloud.ie",
    "eu-west-2": "euw2.pure.cloud",
    "eu-central-1": "mypurecloud.de",
    "eu-central-2": "euc2.pure.cloud",
    "me-central-1": "mec1.pure.cloud",
    "ap-south-1": "aps1.pure.cloud",
    "ap-northeast-1": "mypurecloud.jp",
    "ap-northeast-2": "apne2.pure.cloud",
    "ap-northeast-3": "apne3.pure.cloud",
    "ap-southeast-1": "apse1.pure.cloud",
    "ap-southeast-2": "mypurecloud.com.au",
}
_DOMAIN: Final = re.compile(r"(?=.{4,200}\Z)[a-z0-9-]+(?:\.[a-z0-9-]+)+")


def _read_region(value: Any) -> str:
    """Return the domain of a region; one that is not in the list is named by its domain."""
    name = read_text(value).strip().lower()
    if name in REGIONS:
        return REGIONS[name]
    if not _DOMAIN.fullmatch(name):
        raise ValueError
    return name


Region: TypeAlias = Annotated[
    str, read_by(_read_region, "a region such as eu-central-1, or its domain such as mypurecloud.de")
]


class GenesysSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where Genesys Cloud is, and how to sign in there."""

    region: Annotated[
        Region | None, Meta(description="the region, such as `eu-central-1`, or its domain, such as `mypurecloud.de`")
    ] = None
    client_id: Annotated[
        Text | None,
        Meta(description="the id of an OAuth client of the kind Client Credentials, or where it is (`env:NAME`)"),
    ] = None
    client_secret: Annotated[
        Place | None,
        Meta(description="where its secret is; the client's role needs `analytics:conversationDetail:view` alone"),
    ] = None
    api_url: Annotated[
        Text | None, Meta(description="for a proxy: where the API is instead of `https://api.DOMAIN`")
    ] = None
    login_url: Annotated[
        Text | None, Meta(description="for a proxy: where the sign-in is instead of `https://login.DOMAIN`")
    ] = None

    def __repr__(self) -> str:
        """Show the region alone."""
        return f"<GenesysSettings {self.region}>"

    @property
    def missing(self) -> list[str]:
        """The settings without which nobody can sign in."""
        missing = [name for name in ("client_id", "client_secret") if getattr(self, name) is None]
        if self.region is None and (self.api_url is None or self.login_url is None):
            missing.insert(0, "region")
        return missing

    def client(self) -> tuple[str, Secret]:
        """Return the id and the secret to sign in with, from where they are; refuse settings that are not enough."""
        if missing := self.missing:
            raise ConfigurationError(
                f"[genesys] {', '.join(missing)}: not set; make an OAuth client (Client Credentials) in Genesys Cloud "
                f"with a role that has {PERMISSION}, and name its region, id and secret; or give saved answers: "
                "--details FILE"
            )
        assert self.client_id is not None
        assert self.client_secret is not None
        name = _read("client_id", self.client_id).value if is_reference(self.client_id) else self.client_id
        return name, _read("client_secret", self.client_secret)


def _read(setting: str, place: str) -> Secret:
    try:
        return read_reference(place)
    except ConfigurationError as error:
        raise ConfigurationError(f"[genesys] {setting}: {error}") from None
