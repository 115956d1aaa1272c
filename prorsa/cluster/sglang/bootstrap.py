"""Spellings of a prefill worker's bootstrap host: one a life of its KV manager.

A decode worker keeps the address of a prefill rank under the *text* ``bootstrap_host:port``. A prefill worker that has
been to decode and back, or was restarted, listens on another port, but its bootstrap server answers under the old text,
so a decode worker that knew it sends into the void until its waiting time-out. Another spelling of the same host is
another key: the decode worker asks anew and finds the right port.
"""

from ipaddress import AddressValueError, IPv4Address

LONGEST_SPELLING = 200
"""Characters; names in DNS may have 253."""


def spell_host(host: str, life: int) -> str:
    """The ``life``-th spelling of ``host``; all of them resolve to the same address.

    IPv4 addresses get their last part in hexadecimal with more and more leading zeros, which every ``inet_aton``
    reads; names get other letters in upper case. What has no other spelling (IPv6) stays as it is: there the canary
    of each pair and the plugin's own hook guard against stale addresses.
    """
    if life <= 0:
        return host
    try:
        parts = str(IPv4Address(host)).split(".")
    except AddressValueError:
        return _name(host, life)
    zeros = "0" * ((life - 1) % LONGEST_SPELLING)
    return ".".join([*parts[:3], f"0x{zeros}{int(parts[3]):x}"])


def _name(host: str, life: int) -> str:
    if ":" in host:
        return host
    letters = [index for index, char in enumerate(host) if char.isalpha()]
    raised = {index for bit, index in enumerate(letters) if life >> bit & 1}
    return "".join(char.upper() if index in raised else char.lower() for index, char in enumerate(host))
