"""Checkpoints of a simulation: one npz file with its arrays and the rest of it as msgpack. No pickle."""

import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from prorsa.cluster.profile import Profile
from prorsa.cluster.sim.config import SimConfig
from prorsa.cluster.sim.report import SplitRow
from prorsa.cluster.sim.state import State
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import InputError
from prorsa.events import SamplerState

VERSION: Final = 3


class Parts(NamedTuple):
    """What a simulation is beside its state arrays."""

    config: SimConfig
    profiles: tuple[Profile, ...]
    workload: Workload
    actuator: bytes
    split: list[SplitRow]
    sampler: SamplerState | None


class _Rest(msgspec.Struct):
    version: int
    config: SimConfig
    profiles: tuple[Profile, ...]
    workload: dict[str, Any]
    actuator: bytes
    split: list[SplitRow]
    sampler: SamplerState | None
    log_size: int


def save(path: Path, state: State, parts: Parts) -> None:
    """Write everything to ``path``, as given: without a suffix added."""
    workload = {field.name: getattr(parts.workload, field.name) for field in fields(Workload)}
    arrays = {name: value for name, value in workload.items() if isinstance(value, np.ndarray)}
    rest = _Rest(
        version=VERSION,
        config=parts.config,
        profiles=parts.profiles,
        workload={name: value for name, value in workload.items() if name not in arrays},
        actuator=parts.actuator,
        split=parts.split,
        sampler=parts.sampler,
        log_size=len(state.log),
    )
    columns: dict[str, Any] = {f"workload.{name}": value for name, value in arrays.items()}
    columns |= {f"state.{name}": value for name, value in state._asdict().items() if name != "log"}
    with path.open("wb") as file:
        np.savez(file, rest=np.frombuffer(msgspec.msgpack.encode(rest), np.uint8), **columns)


def load(path: Path) -> tuple[State, Parts]:
    """Read what :func:`save` has written.

    Raises:
        InputError: if the file is missing, damaged or of another version.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            rest = msgspec.msgpack.decode(file["rest"].tobytes(), type=_Rest)
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, msgspec.DecodeError) as error:
        raise InputError(f"checkpoint {path}: {error}; start the run anew") from error
    if rest.version != VERSION:
        raise InputError(f"checkpoint {path} is of version {rest.version}, not {VERSION}: start the run anew")
    return _state(arrays, rest.log_size), Parts(
        rest.config, rest.profiles, _workload(arrays, rest), rest.actuator, rest.split, rest.sampler
    )


def _state(arrays: dict[str, Any], log_size: int) -> State:
    from prorsa.cluster.sim.state import RECORD

    fields_ = {name: arrays[f"state.{name}"] for name in State._fields if name != "log"}
    return State(**fields_, log=np.empty(log_size, RECORD))


def _workload(arrays: dict[str, Any], rest: _Rest) -> Workload:
    prefix = "workload."
    columns = {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
    return Workload(**{**rest.workload, "tools": tuple(rest.workload["tools"])}, **columns)
