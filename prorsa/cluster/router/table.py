"""The role table: which workers there are, what each does, and which of them may work together. No I/O.

A controller sets it (:class:`RoleTable`, versioned by ``(lease_epoch, version)``); without one the router fills it from
what the workers say. What a controller of a lower lease epoch sends is refused: it has lost its lease.
"""

import secrets
from collections.abc import Iterator
from typing import Literal, Self

from msgspec import Struct, structs

from prorsa.cluster.sglang.bootstrap import SPELLINGS, spell_host
from prorsa.errors import RefusedError
from prorsa.events import Role

EntryState = Literal["serving", "fenced", "draining", "warming", "quarantined", "dead", "unmet"]
"""``unmet``: known from before a restart of the router, and not seen alive since."""


class Entry(Struct, frozen=True, kw_only=True):
    """One worker in the table.

    Attributes:
        role: what it does, as last verified; ``mixed`` serves both legs alone.
        epoch: counts its role changes; effects of lower epochs are stale.
        life: counts the lives of its KV manager (role switches, restarts).
        state: only ``serving`` takes requests.
        boot: tells one process of the worker from the next; None while unknown.
        peers: the workers it may be paired with; None allows all.
    """

    worker_id: str
    url: str
    role: Role
    bootstrap_host: str
    bootstrap_port: int | None = None
    epoch: int = 0
    life: int = 0
    state: EntryState = "serving"
    weight_version: str | None = None
    kv_capacity: int | None = None
    max_running: int | None = None
    boot: str | None = None
    peers: tuple[str, ...] | None = None
    flippable: bool | None = None
    why_not_flippable: str | None = None

    @property
    def serving(self) -> bool:
        """Whether it takes requests."""
        return self.state == "serving"

    def allows(self, other: str) -> bool:
        """Whether it may be paired with ``other``."""
        return self.peers is None or other in self.peers


class RoleTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a controller puts into a router: newer tables win, tables of a lost lease are refused."""

    lease_epoch: int
    version: int
    workers: tuple["TableRow", ...]


class TableRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A controller's word on one worker; what is None stays as it is."""

    worker_id: str
    role: Role
    epoch: int
    state: EntryState = "serving"
    peers: tuple[str, ...] | None = None


PairKey = tuple[str, int, str, int]
"""``(prefill, its life, decode, its life)``: a pair that a canary has passed; a new life starts unproven."""


class Table(Struct, kw_only=True):
    """The table of one router, with the pairs that are proven.

    ``spelling`` is where its spellings of bootstrap hosts begin: random, because decode workers may remember those that
    an earlier router used.
    """

    entries: dict[str, Entry]
    proven: set[PairKey]
    spelling: int
    lease_epoch: int = 0
    version: int = 0

    @classmethod
    def empty(cls) -> Self:
        """A table without workers."""
        return cls(entries={}, proven=set(), spelling=secrets.randbelow(SPELLINGS))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def get(self, worker_id: str) -> Entry:
        """The entry of a worker.

        Raises:
            RefusedError: if there is none; lists those there are.
        """
        try:
            return self.entries[worker_id]
        except KeyError:
            known = ", ".join(self.entries) or "none"
            raise RefusedError(f"no worker {worker_id!r} here (there are: {known}); register it at /workers") from None

    def bootstrap_name(self, entry: Entry) -> str:
        """The bootstrap host of a worker as decode workers are told it: another spelling in each of its lives."""
        return spell_host(entry.bootstrap_host, self.spelling + entry.life)

    def put(self, entry: Entry) -> None:
        """Add or replace a worker."""
        self.entries[entry.worker_id] = entry

    def update(self, worker_id: str, **fields: object) -> Entry:
        """Change fields of a worker and return its new entry."""
        entry = structs.replace(self.get(worker_id), **fields)
        self.put(entry)
        return entry

    def remove(self, worker_id: str) -> None:
        """Take a worker out, and what was proven of it."""
        del self.entries[worker_id]
        self.proven = {key for key in self.proven if worker_id not in (key[0], key[2])}

    def check_lease(self, lease_epoch: int | None) -> None:
        """Take note of a controller's lease epoch; None is an operator without a lease.

        Raises:
            RefusedError: if a controller with a newer lease has spoken already.
        """
        if lease_epoch is None:
            return
        if lease_epoch < self.lease_epoch:
            raise RefusedError(
                f"lease epoch {lease_epoch} is over, the router follows epoch {self.lease_epoch}: this controller has "
                "lost its lease"
            )
        if lease_epoch > self.lease_epoch:
            self.lease_epoch, self.version = lease_epoch, 0

    def check_epoch(self, worker_id: str, epoch: int) -> Entry:
        """The entry of a worker, if ``epoch`` is not older than its own.

        Raises:
            RefusedError: if it is: the effect belongs to a flip that is over.
        """
        entry = self.get(worker_id)
        if epoch < entry.epoch:
            raise RefusedError(f"worker {worker_id} is at epoch {entry.epoch}, the request is of epoch {epoch}: stale")
        return entry

    def apply(self, table: RoleTable) -> bool:
        """Take a controller's table; False if it is no newer than what is here already.

        Workers that it does not name stay as they are. Rows for unknown workers, and rows older than what the router
        has seen itself, are passed over: the next table will know better.
        """
        self.check_lease(table.lease_epoch)
        if table.version <= self.version:
            return False
        self.version = table.version
        for row in table.workers:
            entry = self.entries.get(row.worker_id)
            if entry is not None and row.epoch >= entry.epoch and entry.state != "dead":
                life = entry.life + (row.role != entry.role)
                self.put(
                    structs.replace(entry, role=row.role, epoch=row.epoch, life=life, state=row.state, peers=row.peers)
                )
        return True

    def prove(self, prefill: Entry, decode: Entry) -> None:
        """Remember that a canary has passed from one to the other in their present lives."""
        self.proven.add(pair_key(prefill, decode))

    def doubt(self, prefill: Entry, decode: Entry) -> None:
        """Forget what was proven of a pair: it has failed a request."""
        self.proven.discard(pair_key(prefill, decode))

    def forget_old_lives(self) -> None:
        """Drop proofs of lives that are over."""
        lives = {entry.worker_id: entry.life for entry in self}
        self.proven = {key for key in self.proven if lives.get(key[0]) == key[1] and lives.get(key[2]) == key[3]}

    def may_pair(self, prefill: Entry, decode: Entry) -> bool:
        """Whether a pair may serve: same weights, allowed, and proven. A mixed worker is a pair of its own."""
        if prefill.worker_id == decode.worker_id:
            return True
        return (
            prefill.weight_version == decode.weight_version
            and prefill.allows(decode.worker_id)
            and decode.allows(prefill.worker_id)
            and pair_key(prefill, decode) in self.proven
        )

    def unproven(self) -> list[tuple[Entry, Entry]]:
        """Pairs of serving workers that could work together but for a canary."""
        serving = [entry for entry in self if entry.serving]
        return [
            (prefill, decode)
            for prefill in serving
            if prefill.role == "prefill"
            for decode in serving
            if decode.role == "decode"
            and prefill.weight_version == decode.weight_version
            and prefill.allows(decode.worker_id)
            and decode.allows(prefill.worker_id)
            and pair_key(prefill, decode) not in self.proven
        ]


def pair_key(prefill: Entry, decode: Entry) -> PairKey:
    """The key of a pair in its present lives."""
    return prefill.worker_id, prefill.life, decode.worker_id, decode.life
