"""Where a sink may send to: what is said of an address, whatever it is written like, and of a URL."""

import socket
import threading

import pytest

from oncebridge import ConfigurationError
from oncebridge.sinks.addresses import (
    AddressForbidden,
    AddressKind,
    Endpoint,
    ResolvedAddress,
    check_addresses,
    judge,
    read_endpoint,
    resolve,
)

PUBLIC = [
    "8.8.8.8",
    "1.0.0.1",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2001:4860:4860::8888",
    "2606:2800:220:1:248:1893:25c8:1946",
    "2a00:1450:4001:80b::200e",
    "::ffff:8.8.8.8",
    "::8.8.8.8",
    "::ffff:0:808:808",
    "64:ff9b::808:808",
    "2002:808:808::1",
    "2001:0:808:808:0:0:f7f7:f7f7",
    "2606:2800:220:1:0:5efe:808:808",
]
PRIVATE = [
    "127.0.0.1",
    "127.255.255.254",
    "10.0.0.0",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "192.168.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "::1",
    "fc00::1",
    "fd12:3456:789a::1",
    "fec0::1",
    "100::1",
    "200::1",
    "4000::1",
    "2001:db8::1",
    "2001:10::1",
    "3fff::1",
    "::ffff:127.0.0.1",
    "::ffff:a00:1",
    "::10.0.0.1",
    "::ffff:0:c0a8:1",
    "64:ff9b::a00:1",
    "2002:7f00:1::1",
    "2002:c0a8:101::",
    "2001:0:808:808:0:0:80ff:fffe",  # a Teredo client at 127.0.0.1
    "2001:0:a00:1:0:0:f7f7:f7f7",  # a Teredo server at 10.0.0.1
    "2606:2800:220:1:0:5efe:a00:1",
    "2606:2800:220:1:200:5efe:7f00:1",
]
NEVER = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "169.254.0.0",
    "169.254.255.255",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "0.0.0.0",
    "0.0.0.1",
    "0.255.255.255",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::2",
    "fe80::1",
    "fe80::1%1",
    "febf::1",
    "fe80::a9fe:a9fe",
    "fe80::5efe:808:808",
    "ff02::1",
    "ff0e::1",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "fd00:42::42",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "::169.254.169.254",
    "::ffff:0:a9fe:a9fe",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:808:8:800::",
    "2002:a9fe:a9fe::1",
    "2001:0:808:808:0:0:5601:5601",  # a Teredo client at 169.254.169.254
    "2001:0:a9fe:a9fe:0:0:f7f7:f7f7",
    "2606:2800:220:1:0:5efe:a9fe:a9fe",
    "fd12:3456:789a::5efe:a9fe:a9fe",
    "::ffff:0.0.0.0",
    "64:ff9b::6464:64c8",
]

#: Spellings that name servers are never asked about -> what they are.
SPELLINGS = {
    "2852039166": "169.254.169.254",
    "0xa9fea9fe": "169.254.169.254",
    "0xA9.0xFE.0xA9.0xFE": "169.254.169.254",
    "0251.0376.0251.0376": "169.254.169.254",
    "0251.254.0xa9.254": "169.254.169.254",
    "169.254.43518": "169.254.169.254",
    "169.16689662": "169.254.169.254",
    "2130706433": "127.0.0.1",
    "0x7f000001": "127.0.0.1",
    "0177.0.0.1": "127.0.0.1",
    "127.1": "127.0.0.1",
    "0": "0.0.0.0",
    "10.1": "10.0.0.1",
    "3232235521": "192.168.0.1",
}


@pytest.mark.parametrize(
    ("kind", "text"),
    [(kind, text) for kind, texts in zip(AddressKind, (PUBLIC, PRIVATE, NEVER), strict=True) for text in texts],
)
def test_addresses_are_what_they_lead_to(kind, text):
    """Public is what the internet routes; an address that wraps another is what is inside."""
    assert judge(text) is kind


def test_one_bad_address_condemns_a_host():
    """A host is refused if any of its addresses is: which one is taken would be chance."""

    def check(*texts, private):
        check_addresses("crm.example", [ResolvedAddress(0, (text, 443)) for text in texts], private=private)

    check("8.8.8.8", "2001:4860:4860::8888", private=False)
    check("8.8.8.8", "10.0.0.1", "::1", private=True)
    with pytest.raises(AddressForbidden, match=r"crm\.example leads to 10\.0\.0\.1.*private_addresses = true"):
        check("8.8.8.8", "10.0.0.1", private=False)
    with pytest.raises(AddressForbidden, match="nothing is ever sent"):
        check("8.8.8.8", "10.0.0.1", "169.254.169.254", private=True)


# --- URLs -------------------------------------------------------------------------------------------------------

URLS = {
    "https://crm.example": ("https", "crm.example", 443, "/"),
    "https://crm.example/events?team=desk": ("https", "crm.example", 443, "/events?team=desk"),
    "https://CRM.example.:8443/a//b/../c": ("https", "crm.example.", 8443, "/a//b/../c"),
    "HTTPS://crm.example?x": ("https", "crm.example", 443, "/?x"),
    "http://crm_1.internal:8080/": ("http", "crm_1.internal", 8080, "/"),
    "http://[::1]:8080/hook": ("http", "::1", 8080, "/hook"),
    "http://127.0.0.1/": ("http", "127.0.0.1", 80, "/"),
    "https://[2001:4860:4860::8888]/": ("https", "2001:4860:4860::8888", 443, "/"),
}


@pytest.mark.parametrize("url", URLS)
def test_urls_are_read(url):
    """Scheme, host and port are read, and the rest is sent as it stands."""
    assert read_endpoint(url, "url", private=True) == Endpoint(*URLS[url])


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://user@crm.example/", "user or a password"),
        ("https://user:hidden@crm.example/", "user or a password"),
        ("https://crm.example@169.254.169.254/", "user or a password"),
        ("https://@crm.example/", "user or a password"),
        ("https://crm.example/#hidden", "fragment"),
        ("https://crm.example/\r\nhidden: 1", "printable ASCII"),
        ("https://crm.example/ hidden", "printable ASCII"),
        ("https://crm.example\\@hidden/", "printable ASCII"),
        ("https://crm.exämple/hidden", "printable ASCII"),
        ("https://①②⑦.⓪.⓪.①/hidden", "printable ASCII"),
        ("https://", "expected a host"),
        ("https:///hidden", "expected a host"),
        ("https:/hidden", "expected a host"),
        ("https://crm..example/hidden", "expected a host"),
        (f"https://{'a' * 64}.example/hidden", "expected a host"),
        (f"https://{'a.' * 127}example/hidden", "expected a host"),
        ("https://crm%2eexample/hidden", "expected a host"),
        ("https://crm.example:0/hidden", "expected a host"),
        ("https://[fe80::1%25eth0]/hidden", "expected a host"),
        ("https://crm.example:70000/hidden", "port as a number"),
        ("https://crm.example:port/hidden", "port as a number"),
        ("https://[::1/hidden", "brackets"),
        ("https://[crm.example]/hidden", "brackets|expected a host"),
        ("ftp://crm.example/hidden", "https://"),
        ("file:///etc/hidden", "https://"),
        ("crm.example/hidden", "https://"),
    ],
)
def test_other_urls_are_refused(url, words):
    """What is not plainly a host and a path is refused, and nothing of the URL is shown that may be secret."""
    with pytest.raises(ConfigurationError, match=words) as refused:
        read_endpoint(url, "sink crm: url", private=True)
    assert str(refused.value).startswith("sink crm: url: ")
    assert "hidden" not in str(refused.value)


def test_plain_http_is_for_private_networks():
    """Without TLS events are sent nowhere, unless the settings speak of a network of one's own."""
    with pytest.raises(ConfigurationError, match=r"crm\.example:80 .*https://.*private_addresses = true"):
        read_endpoint("http://crm.example/", "url", private=False)
    assert read_endpoint("http://crm.example/", "url", private=True).port == 80


@pytest.mark.parametrize(
    "host", [*SPELLINGS, *(f"[{text}]" if ":" in text else text for text in NEVER if "%" not in text)]
)
def test_literal_addresses_are_seen_at_once(host):
    """An address in the URL itself is refused before anything runs, in every spelling that leads there."""
    with pytest.raises(ConfigurationError, match="leads to"):
        read_endpoint(f"https://{host}/", "url", private=False)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_lead_to_what_they_are(spelling):
    """However an address is spelled, what is judged is where it leads."""
    (address,) = {address.at[0] for address in resolve(spelling, 443, 60)}
    assert address == SPELLINGS[spelling]


# --- name servers -----------------------------------------------------------------------------------------------


def test_names_are_looked_up_once(monkeypatch):
    """A name is asked for once, and every answer is handed on in its order."""
    asked = []

    def answer(host, port, *, flags, **_):
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, port)) for text in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    assert [address.at for address in resolve("crm.example", 443, 60)] == [("8.8.8.8", 443), ("10.0.0.1", 443)]
    assert asked == ["crm.example"]


def test_a_name_that_nobody_knows(monkeypatch):
    """What the name server says goes to whoever asked."""
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def answer(*_, **__):
        raise unknown

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with pytest.raises(socket.gaierror) as raised:
        resolve("crm.example", 443, 60)
    assert raised.value is unknown


def test_name_servers_are_not_waited_for_without_end(monkeypatch):
    """A name server that does not answer costs no more than the time that is left."""
    released = threading.Event()

    def answer(host, port, *, flags, **_):
        if not flags & socket.AI_NUMERICHOST:
            released.wait(15)  # seconds that only those wait who would wait without end
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    try:
        with pytest.raises(TimeoutError):
            resolve("crm.example", 443, 0.05)
    finally:
        released.set()
        for thread in threading.enumerate():
            if thread.name == "oncebridge-resolve":
                thread.join()
