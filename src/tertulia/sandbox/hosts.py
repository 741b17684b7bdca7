"""Which hosts a command may reach, and which addresses are public."""

import ipaddress
import re
from collections.abc import Iterable

from ..records.errors import SandboxError

PORTS = (80, 443)
"""What an entry without a port means."""

LONGEST = 253 + 1  # a dot at its end
"""Characters of a name. Only what is short is looked at: all that stands below a host is compared."""

NAME = re.compile(r"(?:\*|(?:\*\.)?(?!-)[a-z0-9_-]{1,63}(?:\.(?!-)[a-z0-9_-]{1,63})*)")
ENTRY = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]+)(?::(?P<port>[0-9]{1,5}))?")
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # an IPv4 address in an IPv6 one
HANDED_OUT = ipaddress.ip_network("2000::/3")  # all other IPv6 is local, reserved or a way to something else
SPECIAL = (ipaddress.ip_network("2001::/32"), ipaddress.ip_network("3fff::/20"))  # Teredo; documentation


class Hosts:
    """`example.org` is that host at the ports 80 and 443, `*.example.org` every one below it, `example.org:8080` that
    port only, `*` every public host. An address that is not public is reached only where it is listed itself, by name
    or by number: what a name is resolved to is not in the hands of who wrote the list.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._names: set[tuple[str, int]] = set()
        self._addresses: set[tuple[str, int]] = set()
        self.listed = tuple(entries)
        for entry in self.listed:
            self._add(entry)

    def allows(self, host: str, port: int) -> bool:
        """Whether this host, as the command names it, is on the list."""
        address = _address(host)
        if address is not None:
            return (address, port) in self._addresses
        name = normal(host)
        if name is None:
            return False
        above = ("*." + name[at + 1 :] for at, letter in enumerate(name) if letter == ".")
        return any((each, port) in self._names for each in (name, "*", *above))

    def reaches(self, address: str, port: int) -> bool:
        """Whether what a name was resolved to may be connected to."""
        return is_public(address) or (str(ipaddress.ip_address(address)), port) in self._addresses

    def _add(self, entry: object) -> None:
        found = ENTRY.fullmatch(entry) if isinstance(entry, str) else None
        port = int(found["port"]) if found is not None and found["port"] else None
        if found is None or port == 0 or (port or 0) > 65535:
            raise _wrong(entry)
        address, name = _address(found["host"].strip("[]")), normal(found["host"])
        if address is None and (name is None or not NAME.fullmatch(name)):
            raise _wrong(entry)
        for each in PORTS if port is None else (port,):
            if address is not None:
                self._addresses.add((address, each))
            elif name is not None:
                self._names.add((name, each))


def normal(host: str) -> str | None:
    """A name as it is compared: small letters, ASCII, no dot at its end; None when it is no name."""
    if len(host) > LONGEST:
        return None
    try:
        name = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        return None
    return name.lower().removesuffix(".") or None


def is_public(address: str) -> bool:
    """Whether it lies in the open internet, also when it is an IPv4 address that an IPv6 one holds."""
    known = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(known, ipaddress.IPv4Address):
        return known.is_global and not known.is_multicast
    if known.ipv4_mapped is not None:
        return is_public(str(known.ipv4_mapped))
    if known in TRANSLATED:
        return is_public(str(ipaddress.IPv4Address(int(known) & 0xFFFFFFFF)))
    if known.sixtofour is not None and not is_public(str(known.sixtofour)):
        return False
    return known in HANDED_OUT and known.is_global and not any(known in each for each in SPECIAL)


def _address(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _wrong(entry: object) -> SandboxError:
    return SandboxError(
        f"{entry!r} names no host",
        hint="network=('example.org', '*.example.org', 'example.org:8080', '10.0.0.5')",
    )
