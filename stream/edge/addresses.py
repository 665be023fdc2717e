"""Keeps webhooks out of private networks: the check on the address that is connected to.

A URL's host name says nothing about where it leads, and DNS may answer differently a second
time; so the rule sits where the socket is made, on the very address of that connection.
"""

import errno
import socket

from aiohttp import AddrInfoType

from stream.receivers import is_public, parse_address


class AddressRefused(OSError):
    """The receiver's address is not on the public internet and that was not allowed.

    The text is always the same: aiohttp keeps the type only when all addresses of a name fail
    alike.
    """

    def __init__(self) -> None:
        super().__init__(errno.EACCES, "the address is not on the public internet")


def public_socket(addr_info: AddrInfoType) -> socket.socket:
    """A socket for one resolved address (``socket_factory`` of aiohttp's connector).

    Raises:
        AddressRefused: unless the address is public.
    """
    family, kind, protocol, _, sockaddr = addr_info
    address = parse_address(str(sockaddr[0]))
    if address is None or not is_public(address):
        raise AddressRefused
    return socket.socket(family=family, type=kind, proto=protocol)
