"""The hub: puts the events of a run into one order, journals them, acknowledges them, and fans them out.

One turn of its loop takes what has come in, journals it in one transaction, and only then acknowledges and sends it.
A hub that dies at any moment loses nothing that it has acknowledged; the next one on the same directory goes on with
``hub_seq``, run time, snapshot, commands and lease from the journal.
"""

import argparse
import signal
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import zmq

from prorsa.bus import wire
from prorsa.bus.desk import ReadDesk, failure
from prorsa.bus.fanout import Fanout
from prorsa.bus.gate import Gate
from prorsa.bus.journal import JournalReader, JournalWriter
from prorsa.bus.keys import HubKeys
from prorsa.bus.layout import MANIFEST_FILE, Row
from prorsa.bus.order import Orderer, Rejected
from prorsa.bus.receiver import Receiver
from prorsa.bus.recovery import recover
from prorsa.bus.sockets import bind, configure
from prorsa.bus.wire import Endpoints
from prorsa.clock import RunClock, nanoseconds
from prorsa.errors import EventError, ProrsaError, RefusedError, UnavailableError
from prorsa.events import Alert, AnyEvent, Batch, Command, encode

BEAT_S: Final = 0.1
"""Wall seconds between heartbeats."""
DRAIN_EVENTS: Final = 4096
"""Events that one transaction takes at most (and the rest of the batch that passes this number)."""
CONTROL_BURST: Final = 16
"""Control requests served in one turn."""
CONTROL_HWM: Final = 1000
"""Requests and answers queued for each client."""
NAG_S: Final = 0.25
"""A source that has a hole is asked for it no more often than this."""
JOURNAL_DIR: Final = "journal"
"""The journal's folder in a run directory."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HubConfig:
    """What a hub needs to know.

    Attributes:
        journal: directory of the journal; created if it does not exist, continued if it does.
        endpoints: where to bind.
        run_id: the run; None takes that of an existing journal, or makes one up.
        speed: run seconds per wall second.
        meta: kept in the manifest of a new journal.
        beat_s: wall seconds between heartbeats.
        keys: who may connect; None lets everyone in, and binds to no address that the network can reach.
    """

    journal: Path
    endpoints: Endpoints
    run_id: str | None = None
    speed: float = 1.0
    meta: Mapping[str, Any] = field(default_factory=dict)
    beat_s: float = BEAT_S
    keys: HubKeys | None = None


@dataclass(slots=True)
class _Burst:
    """What one turn journals, and whom it answers after that."""

    rows: list[Row] = field(default_factory=list)
    events: list[AnyEvent] = field(default_factory=list)
    publishers: dict[tuple[bytes, str], int] = field(default_factory=dict)
    clients: list[tuple[bytes, list[bytes]]] = field(default_factory=list)


class Hub:
    """One run's hub. It owns the journal from construction until :meth:`run` returns.

    Raises:
        RefusedError: if another hub has the journal, or the journal holds another run.
        JournalError: if the journal cannot be continued.
        ConfigError: if an endpoint cannot be bound, or could be reached from the network and there are no keys.
    """

    def __init__(self, config: HubConfig) -> None:
        self._config = config
        self.boot = uuid.uuid4().hex[:8]
        """Differs with each start."""
        self._announced: set[tuple[str, str]] = set()
        self._nagged: dict[str, tuple[int, float]] = {}
        self._writer = JournalWriter(config.journal, run_id=_run_id(config), meta=config.meta)
        try:
            self._take_over()
            self._open_sockets()
        except BaseException:
            self._writer.close()
            raise

    def _take_over(self) -> None:
        """Go on from what the journal says."""
        config = self._config
        self._reader = JournalReader(config.journal)
        self._clock = RunClock(config.speed, _run_time_now(self._writer, config.speed))
        self._orderer = Orderer(
            f"hub#{self.boot}",
            self._writer.run_id,
            self._writer.last_seq,
            self._writer.last_t_ns,
            self._writer.source_seqs,
        )
        self._values, self._commands, self._lease = recover(self._reader, time.monotonic())
        self._desk = ReadDesk(self._reader, self._values, self.status)

    def _open_sockets(self) -> None:
        endpoints, keys = self._config.endpoints, self._config.keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = Gate(self._context, keys)
        try:
            self._fanout = Fanout(self._context, endpoints.fanout, self._writer.type_counts, self._gate.door("fanout"))
            self._control = self._context.socket(zmq.ROUTER)
            configure(self._control, CONTROL_HWM, self._gate.door("control"))
            control = bind(self._control, endpoints.control)
            self._receiver = Receiver(self._context, endpoints.ingest, self._gate.door("ingest"))
        except ProrsaError:
            self._gate.close()
            self._context.destroy()
            raise
        public = None if keys is None else keys.public
        self.endpoints = Endpoints(self._receiver.endpoint, self._fanout.endpoint, control, public)
        """Where this hub is, with wildcards filled in."""

    @property
    def run_id(self) -> str:
        """The run that this hub serves."""
        return self._writer.run_id

    def status(self) -> wire.HubStatus:
        """The heartbeat of this moment."""
        return wire.HubStatus(
            self.run_id,
            self.boot,
            max(self._clock.now_ns(), self._orderer.last_t_ns),
            self._clock.speed,
            self._writer.last_seq,
            self._fanout.heads,
            self._orderer.counters,
            self._lease.holder,
            self._lease.epoch,
        )

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set; then close the journal.

        Raises:
            JournalError: if the journal cannot be written any more. Nothing unwritten has been acknowledged.
        """
        poller = zmq.Poller()
        poller.register(self._receiver.queue, zmq.POLLIN)
        poller.register(self._control, zmq.POLLIN)
        _log.info("hub_serves", run_id=self.run_id, boot=self.boot, head_seq=self._writer.last_seq)
        beat_at_s = 0.0
        try:
            while not stop.is_set():
                now_s = time.monotonic()
                if now_s >= beat_at_s:
                    self._fanout.beat(self.status())
                    beat_at_s = now_s + self._config.beat_s
                poller.poll(round(max(0.0, beat_at_s - now_s) * 1e3))
                self._turn()
        finally:
            self._close()

    def _close(self) -> None:
        self._receiver.close()
        self._control.close()
        self._fanout.close()
        self._gate.close()
        self._context.term()
        self._reader.close()
        self._writer.close()
        _log.info("hub_stopped", run_id=self.run_id, head_seq=self._writer.last_seq)

    # --- one turn ---------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        burst = _Burst()
        self._take_batches(burst)
        reads = self._take_requests(burst)
        for lease in self._lease.expire(time.monotonic(), self._clock.now_ns()):
            self._emit(burst, lease)
        # Durable first: only then does anyone hear of it.
        self._writer.append(burst.rows, {source: seq for (_, source), seq in burst.publishers.items()})
        self._answer(burst)
        for (row, event), stamped in zip(
            zip(burst.rows, burst.events, strict=True), self._fanout.send(burst.rows), strict=True
        ):
            self._values.apply(row, event, stamped)
        for client, frame in reads:
            self._reply(client, self._desk.answer(frame))

    def _take_batches(self, burst: _Burst) -> None:
        t_ns = self._clock.now_ns()
        while len(burst.rows) < DRAIN_EVENTS and (parts := self._receiver.take()) is not None:
            key, publisher, *frames = parts
            try:
                frame = wire.unpack(frames)
            except EventError as error:
                self._reject_message(burst, error)
                continue
            try:
                batch = wire.decode(Batch, frame.payload)
            except EventError as error:
                self._reject_message(burst, error)
                # It will not get better by being sent again: its publisher is to drop it and go on.
                refusal = wire.pack(wire.REJECTED_TOPIC, frame.sequence, wire.encode(str(error)))
                self._receiver.reply([publisher, *refusal])
                continue
            self._take_batch(burst, key, publisher, frame.sequence, batch, t_ns)

    def _reject_message(self, burst: _Burst, error: EventError) -> None:
        self._orderer.reject_message()
        self._announce(burst, Rejected("unknown source", "batch", str(error)))

    def _take_batch(self, burst: _Burst, key: bytes, publisher: bytes, first_seq: int, batch: Batch, t_ns: int) -> None:
        refused = self._gate.refused_types(key.decode())
        taken = self._orderer.take(batch.source, batch.run_id, first_seq, batch.items, t_ns, refused)
        for row, event in zip(taken.rows, taken.events, strict=True):
            self._note(burst, row, event)
        for rejected in taken.rejected:
            self._announce(burst, rejected)
        if taken.ack_seq is not None:
            burst.publishers[publisher, batch.source] = taken.ack_seq
        if taken.resend_seq is not None:
            self._nag(publisher, batch.source, taken.resend_seq)

    def _take_requests(self, burst: _Burst) -> list[tuple[bytes, wire.Frame]]:
        """Serve what changes the run; returns what only reads it, to be served after the journal."""
        reads = []
        for _ in range(CONTROL_BURST):
            try:
                frames = self._control.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            client, *parts = (frame.bytes for frame in frames)
            try:
                frame = wire.unpack(parts)
            except EventError as error:
                _log.warning("bad_request", error=str(error))
                continue
            if self._desk.serves(frame.topic):
                reads.append((client, frame))
            else:
                key = str(frames[-1].get("User-Id")) if self._gate.keyed else ""
                self._take_request(burst, key, client, frame)
        return reads

    def _take_request(self, burst: _Burst, key: str, client: bytes, frame: wire.Frame) -> None:
        try:
            self._gate.check_request(key, frame.topic, frame.payload)
            if frame.topic == wire.COMMAND:
                reply = self._command(burst, client, frame)
            elif frame.topic == wire.LEASE:
                reply = self._lease_request(burst, frame)
            else:
                reply = failure(frame, EventError(f"no such request: {frame.topic!r}; docs/bus.md has the list"))
        except (EventError, RefusedError) as error:
            reply = failure(frame, error)
        burst.clients.append((client, reply))

    def _command(self, burst: _Burst, client: bytes, frame: wire.Frame) -> list[bytes]:
        command = wire.decode(Command, frame.payload)
        answer = self._commands.answer(command)
        if answer is not None:
            return wire.pack(wire.COMMAND, frame.sequence, answer)
        if self._commands.is_new(command):
            self._emit(burst, command)
        self._commands.wait(command, (client, frame.sequence))
        return wire.pack(wire.RECEIVED, frame.sequence, wire.encode(self._orderer.last_seq))

    def _lease_request(self, burst: _Burst, frame: wire.Frame) -> list[bytes]:
        request = wire.decode(wire.LeaseRequest, frame.payload)
        now_ns = self._clock.now_ns()
        expires_ns = now_ns + nanoseconds(wire.LEASE_S * self._clock.speed)
        change = self._lease.request(request, time.monotonic(), now_ns, expires_ns)
        for event in change.events:
            self._emit(burst, event)
        return wire.pack(wire.LEASE, frame.sequence, wire.encode(change.reply))

    def _emit(self, burst: _Burst, event: AnyEvent) -> None:
        self._note(burst, self._orderer.own(event, self._clock.now_ns(), time.time_ns()), event)

    def _note(self, burst: _Burst, row: Row, event: AnyEvent) -> None:
        burst.rows.append(row)
        burst.events.append(event)
        if isinstance(event, Command):
            for client, sequence in self._commands.apply(event, row.event):
                burst.clients.append((client, wire.pack(wire.COMMAND, sequence, row.event)))

    def _announce(self, burst: _Burst, rejected: Rejected) -> None:
        if (rejected.source, rejected.kind) in self._announced:
            return
        self._announced.add((rejected.source, rejected.kind))
        text = f"{rejected.source}: {rejected.text}"
        _log.warning("event_rejected", source=rejected.source, kind=rejected.kind, error=rejected.text)
        self._emit(burst, Alert(code="bus.rejected", severity="warning", text=text))

    def _nag(self, publisher: bytes, source: str, seq: int) -> None:
        now_s = time.monotonic()
        last_seq, last_s = self._nagged.get(source, (0, 0.0))
        if seq == last_seq and now_s - last_s < NAG_S:
            return
        self._nagged[source] = (seq, now_s)
        self._receiver.reply([publisher, *wire.pack(wire.RESEND_TOPIC, seq, encode(source))])

    def _answer(self, burst: _Burst) -> None:
        for (publisher, source), seq in burst.publishers.items():
            self._receiver.reply([publisher, *wire.pack(wire.ACK_TOPIC, seq, encode(source))])
        for client, frames in burst.clients:
            self._reply(client, frames)

    def _reply(self, client: bytes, frames: list[bytes]) -> None:
        try:
            self._control.send_multipart([client, *frames], zmq.NOBLOCK)
        except zmq.Again:
            _log.warning("client_does_not_read", client=client.hex())


def run_hub(
    run_dir: Path,
    *,
    run_id: str | None = None,
    speed: float = 1.0,
    meta: Mapping[str, Any] | None = None,
    endpoints: Endpoints | None = None,
    keys: HubKeys | None = None,
) -> None:
    """Serve a run directory until SIGTERM or SIGINT; the entry point of the hub's process.

    The journal is ``<run_dir>/journal``. Endpoints are those of ``<run_dir>/endpoints.json``, so that a hub that comes
    back is found where the last one was; without that file those given, or Unix sockets in the run directory. The file
    gets the hub's public key, and no secret one.
    """
    if not structlog.is_configured():
        # Whatever starts this process may use its standard output for data.
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        endpoints = Endpoints.load(run_dir)
    except UnavailableError:
        endpoints = endpoints or Endpoints.ipc(run_dir)
    hub = Hub(HubConfig(run_dir / JOURNAL_DIR, endpoints, run_id, speed, meta or {}, keys=keys))
    hub.endpoints.save(run_dir)
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    hub.run(stop)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m prorsa.bus.hub``: serve a run directory; returns the exit code."""
    parser = argparse.ArgumentParser(prog="prorsa.bus.hub", description="Serve the bus of one run.")
    parser.add_argument("--run-dir", type=Path, required=True, help="where journal and sockets are")
    parser.add_argument("--run-id", help="the run; default: that of the journal, or a new one")
    parser.add_argument("--speed", type=float, default=1.0, help="run seconds per wall second")
    parser.add_argument("--meta", type=msgspec.json.decode, default={}, help="JSON object for a new journal's manifest")
    parser.add_argument("--keys", type=Path, help="the hub's key file; default: no keys, this machine only")
    given = parser.parse_args(arguments)
    try:
        keys = None if given.keys is None else HubKeys.load(given.keys)
        run_hub(given.run_dir, run_id=given.run_id, speed=given.speed, meta=given.meta, keys=keys)
    except ProrsaError as error:
        print(f"prorsa hub: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _run_id(config: HubConfig) -> str | None:
    """The run id to open the journal with; a new journal needs one, an existing one may tell it."""
    if config.run_id is None and not (config.journal / MANIFEST_FILE).exists():
        return uuid.uuid4().hex
    return config.run_id


def _run_time_now(writer: JournalWriter, speed: float) -> int:
    """Run time goes on while no hub runs, and never back, whatever happened to the wall clock."""
    if writer.last_wall_ns is None:
        return 0
    return writer.last_t_ns + max(0, round((time.time_ns() - writer.last_wall_ns) * speed))


if __name__ == "__main__":
    sys.exit(main())
