"""The tracker: where a rollout begins to tell what it does."""

import os
import uuid
from typing import Final, Literal, NamedTuple, Self

from prorsa.bus.keys import Keys
from prorsa.events import SamplerState, StepBegin, StepEnd, WeightsUpdateBegin, WeightsUpdateEnd
from prorsa.rollout.channel import Channel
from prorsa.rollout.scope import Scope
from prorsa.rollout.trajectory import Trajectory

SamplerMode = Literal["sync", "async"]

_MODES: Final[tuple[SamplerMode, ...]] = ("sync", "async")


class TrackerStats(NamedTuple):
    """What a tracker has done in this process.

    Attributes:
        configured: whether events go to a hub.
        published, acknowledged, held, lost: events taken, journalled by the hub, waiting for that, and dropped because
            the buffer was full.
        problems: what was dropped or left out and why, by kind: ``value`` (an argument that makes no sense), ``order``
            (a call at the wrong time), ``configuration``.
    """

    configured: bool
    published: int
    acknowledged: int
    held: int
    lost: int
    problems: dict[str, int]


class Tracker:
    """Tells Prorsa what a rollout does. One a process is enough; it is for all threads and tasks.

    May be pickled: the copy publishes from its own process under a source of its own. May be forked over: likewise.

    Args:
        endpoint: the hub's ingest endpoint (``tcp://…``, ``ipc://…``) or its run directory; None takes the environment
            variable ``PRORSA_HUB``. If that is not set either, every call is a no-op.
        source: name under which the events are published.
        run_id: the run that they belong to; None takes ``PRORSA_RUN_ID``, else whichever run the hub serves.
        keys: the key file of a hub that asks for keys, or its content; None takes ``PRORSA_KEYS``.
    """

    def __init__(
        self,
        endpoint: str | os.PathLike[str] | None = None,
        *,
        source: str = "rollout",
        run_id: str | None = None,
        keys: Keys | str | os.PathLike[str] | None = None,
    ) -> None:
        self._given = (endpoint, source, run_id, keys)
        self._channel = Channel(endpoint, source, run_id, keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _again, self._given

    @property
    def configured(self) -> bool:
        """Whether events go to a hub (which may be away for now)."""
        return self._channel.active

    # --- trajectories -----------------------------------------------------------------------------------------------

    def trajectory(
        self,
        *,
        group_id: object = None,
        prompt_tokens: int | None = None,
        workload: str | None = None,
        trajectory_id: object = None,
    ) -> Trajectory:
        """A new trajectory, dispatched when its block is entered or it is started.

        Args:
            group_id: its GRPO group; any type that prints.
            prompt_tokens: length of its first prompt.
            workload: its class, such as ``coding``.
            trajectory_id: its id where the framework has a unique one; else one is made up.
        """
        name = self._channel.text("trajectory_id", trajectory_id) or uuid.uuid4().hex
        return Trajectory(self._channel, name, group_id=group_id, prompt_tokens=prompt_tokens, workload=workload)

    def attach(self, trajectory_id: object) -> Trajectory:
        """A trajectory that is started elsewhere, as in another process: here only :meth:`Trajectory.end` ends it."""
        name = self._channel.text("trajectory_id", trajectory_id) or uuid.uuid4().hex
        return Trajectory(self._channel, name, owned=False)

    # --- the run ----------------------------------------------------------------------------------------------------

    def sampler(
        self,
        *,
        queued: int | None = None,
        in_flight: int | None = None,
        limit: int | None = None,
        batch_size: int | None = None,
        mode: SamplerMode | None = None,
        expected_prompt_tokens: float | None = None,
    ) -> None:
        """How the data sampler stands: trajectories that wait and that are in flight, and its limit or batch size."""
        channel = self._channel
        if not channel.active:
            return
        event = SamplerState(
            mode=channel.one_of("mode", mode, _MODES),
            queued=channel.count("queued", queued),
            in_flight=channel.count("in_flight", in_flight),
            limit=channel.count("limit", limit),
            batch_size=channel.count("batch_size", batch_size),
            expected_prompt_tokens=channel.seconds("expected_prompt_tokens", expected_prompt_tokens),
        )
        channel.emit(event)

    def step(self, step: int | None = None, target_groups: int | None = None) -> "Step":
        """A synchronous step's rollout: ``with tracker.step(7, target_groups=16): ...``."""
        return Step(self._channel, step, target_groups)

    def weights_update(self, version: object, cache_flushed: bool | None = None) -> "WeightsUpdate":
        """A weight update: ``with tracker.weights_update(version=8, cache_flushed=True): ...``.

        An update that fails says no end: until one succeeds the weights are unknown, and no worker should flip.
        """
        return WeightsUpdate(self._channel, version, cache_flushed)

    def announce_weights_update(self, version: object, expected_in_s: float, cache_flushed: bool | None = None) -> None:
        """A weight update is about to begin in ``expected_in_s``; say so once it is known, for instance at the end of
        a step. May be said again with a better time.
        """
        WeightsUpdate(self._channel, version, cache_flushed).announce(expected_in_s)

    # --- the tracker itself -----------------------------------------------------------------------------------------

    def stats(self) -> TrackerStats:
        """What has been tracked, and what had to be left out."""
        stats, problems = self._channel.stats(), dict(self._channel.problems)
        if stats is None:
            return TrackerStats(False, 0, 0, 0, 0, problems)  # noqa: FBT003 - a record, read by name
        return TrackerStats(self.configured, stats.published, stats.acknowledged, stats.held, stats.lost, problems)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is journalled; False if that takes longer than ``timeout_s``. It blocks: for tests."""
        return self._channel.flush(timeout_s)

    def close(self, timeout_s: float = 1.0) -> bool:
        """Track nothing more, and wait up to ``timeout_s`` for the rest to be journalled; returns whether it was.

        The end of the process does so by itself.
        """
        return self._channel.close(timeout_s)


class Step(Scope):
    """The rollout of a synchronous step."""

    __slots__ = ("_channel", "_generation", "_step", "_target_groups")

    def __init__(self, channel: Channel, step: int | None, target_groups: int | None) -> None:
        self._channel = channel
        self._generation = channel.generation
        self._step = channel.count("step", step)
        self._target_groups = channel.count("target_groups", target_groups)

    def start(self) -> Self:
        """``step.begin``."""
        self._channel.emit(StepBegin(step=self._step, target_groups=self._target_groups))
        return self

    def end(self) -> None:
        """``step.end``."""
        self._channel.emit(StepEnd(step=self._step))

    def _leave(self, _: BaseException | None) -> None:
        if self._generation == self._channel.generation:
            self.end()


class WeightsUpdate(Scope):
    """An update of the workers' weights."""

    __slots__ = ("_cache_flushed", "_channel", "_generation", "_version")

    def __init__(self, channel: Channel, version: object, cache_flushed: bool | None) -> None:
        self._channel = channel
        self._generation = channel.generation
        self._version = channel.text("version", version) or "unknown"
        self._cache_flushed = channel.flag("cache_flushed", cache_flushed)

    def announce(self, expected_in_s: float) -> None:
        """``weights.update_begin``, ahead of time."""
        expected_in_s = self._channel.seconds("expected_in_s", expected_in_s) or 0.0
        if expected_in_s:  # none, or one that makes no sense, would say that the update begins now
            self._begin(expected_in_s)

    def start(self) -> Self:
        """``weights.update_begin``."""
        self._begin(None)
        return self

    def end(self) -> None:
        """``weights.update_end``: the workers run on the new weights."""
        self._channel.emit(WeightsUpdateEnd(version=self._version, cache_flushed=self._cache_flushed))

    def _begin(self, expected_in_s: float | None) -> None:
        self._channel.emit(
            WeightsUpdateBegin(version=self._version, cache_flushed=self._cache_flushed, expected_in_s=expected_in_s)
        )

    def _leave(self, error: BaseException | None) -> None:
        if error is None and self._generation == self._channel.generation:
            self.end()


def _again(
    endpoint: str | os.PathLike[str] | None,
    source: str,
    run_id: str | None,
    keys: Keys | str | os.PathLike[str] | None,
) -> Tracker:
    return Tracker(endpoint, source=source, run_id=run_id, keys=keys)
