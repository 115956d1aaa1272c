"""Spellings of a prefill worker's bootstrap host: one for each life of its KV manager.

A decode worker keeps the address of a prefill rank under the *text* ``bootstrap_host:port``. A prefill worker that has
been to decode and back, or was restarted, listens on another port, but its bootstrap server answers under the old text,
so a decode worker that knew it sends into the void until its waiting time-out. Another spelling of the same host is
another key: the decode worker asks anew and finds the right port.
"""

from ipaddress import AddressValueError, IPv4Address
from typing import Final

_ZEROS: Final = 16
"""Leading zeros that a part of an address is written with at most."""
SPELLINGS: Final = (1 + 2 * _ZEROS) ** 4
"""Spellings of an IPv4 address."""


def spell_host(host: str, number: int) -> str:
    """The spelling of ``host`` with a number; all of them resolve to the same address, number 0 is the host itself.

    Each part of an IPv4 address is written in decimal, or in octal or hexadecimal with more or fewer leading zeros,
    all of which ``inet_aton`` reads; there are :data:`SPELLINGS`, then they repeat. Names get other letters in upper
    case: a name of n letters has 2^n spellings. What has no other spelling (IPv6) stays as it is: there the canary of
    each pair and the plugin's own hook guard against stale addresses.
    """
    try:
        parts = [int(part) for part in str(IPv4Address(host)).split(".")]
    except AddressValueError:
        return _name(host, number)
    spelled = []
    for part in reversed(parts):
        number, style = divmod(number, 1 + 2 * _ZEROS)
        spelled.append(_part(part, style))
    return ".".join(reversed(spelled))


def _part(value: int, style: int) -> str:
    if style == 0:
        return str(value)
    zeros, is_hex = divmod(style - 1, 2)
    return f"0x{'0' * zeros}{value:x}" if is_hex else f"0{'0' * zeros}{value:o}"


def _name(host: str, number: int) -> str:
    if ":" in host:
        return host
    letters = [index for index, char in enumerate(host) if char.isalpha()]
    raised = {index for bit, index in enumerate(letters) if number >> bit & 1}
    return "".join(char.upper() if index in raised else char for index, char in enumerate(host.lower()))
