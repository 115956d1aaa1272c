"""Policy files: the weights of a small network as safetensors, with a card in the header that says what they are for.

Reading one runs no code of the file: safetensors is a table of numbers and a JSON header. What is read is checked
before it is used: the card, the observation that it was trained on, the shapes, and a hash over the numbers.
"""

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from prorsa.control.actions import ACTIONS
from prorsa.control.observation import FEATURES, VERSION
from prorsa.errors import ConfigError

Array = NDArray[np.float32]

_CARD: Final = "prorsa"
_MAX_BYTES: Final = 1 << 26
"""A policy of this observation has some tens of kilobytes; anything near this is another file."""


class Card(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a policy file says of itself.

    Attributes:
        name: of the policy.
        observation: version of the observation that it was trained on.
        features, actions: their names, in order.
        low, high: range of each feature in training: the 0.1 and 99.9 percentiles of what was seen.
        sha256: hash over names, shapes and bytes of the weights.
        trained: how: command, seeds, decisions, versions.
        scores: what it came to, by scenario.
        limits: what it is not good for.
    """

    name: str
    observation: int
    features: tuple[str, ...]
    actions: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    sha256: str
    trained: dict[str, str] = {}
    scores: dict[str, float] = {}
    limits: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A policy and its value estimate: two stacks of layers with tanh between, over the same observation.

    Attributes:
        policy, value: ``(weights [out, in], bias [out])`` of each layer.
    """

    card: Card
    policy: tuple[tuple[Array, Array], ...]
    value: tuple[tuple[Array, Array], ...]

    def logits(self, observation: Array) -> Array:
        """One number an action; softmax over the allowed ones gives their probabilities."""
        return _through(self.policy, observation)

    def worth(self, observation: Array) -> float:
        """The discounted reward that it expects from here."""
        return float(_through(self.value, observation)[0])


def _through(layers: tuple[tuple[Array, Array], ...], values: Array) -> Array:
    for weights, bias in layers[:-1]:
        values = np.tanh(weights @ values + bias)
    weights, bias = layers[-1]
    result: Array = weights @ values + bias
    return result


def tensors_of(model: Model) -> dict[str, Array]:
    """The weights by their names in the file."""
    return {
        f"{stack}.{index}.{part}": np.ascontiguousarray(array)
        for stack, layers in (("policy", model.policy), ("value", model.value))
        for index, layer in enumerate(layers)
        for part, array in zip(("weight", "bias"), layer, strict=True)
    }


def digest(tensors: dict[str, Array]) -> str:
    """SHA-256 over names, shapes and bytes, by name."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name], dtype="<f4")
        sha.update(f"{name} {array.shape}\n".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def save_model(model: Model, path: Path) -> None:
    """Write the file; the card's hash is computed afresh."""
    tensors = tensors_of(model)
    card = msgspec.structs.replace(model.card, sha256=digest(tensors))
    save_file(dict(tensors), path, metadata={_CARD: msgspec.json.encode(card).decode()})


def shipped(name: str) -> Path:
    """The file of a policy that the package ships; there may be none.

    In an installed package they are beside the modules, in a checkout at its root.
    """
    packed = resources.files("prorsa") / "models" / f"{name}.safetensors"
    inside = Path(str(packed))
    return inside if inside.exists() else Path(__file__).parents[2] / "models" / f"{name}.safetensors"


def load_model(path: Path) -> Model:
    """Read and check a policy file.

    Raises:
        ConfigError: says in one line what is wrong with it and what would be right.
    """
    card, tensors = _read(path)
    _check_card(path, card)
    if digest(tensors) != card.sha256:
        raise ConfigError(f"policy {path}: its weights are not those that its card was written for; fetch it again")
    model = Model(card, _stack(path, tensors, "policy"), _stack(path, tensors, "value"))
    _check_shapes(path, model)
    return model


def _read(path: Path) -> tuple[Card, dict[str, Array]]:
    if not path.is_file():
        raise ConfigError(f"policy {path}: no such file; give learned:FILE with a file that `prorsa train` wrote")
    if path.stat().st_size > _MAX_BYTES:
        raise ConfigError(f"policy {path}: {path.stat().st_size} bytes are no policy; give a file of `prorsa train`")
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise ConfigError(f"policy {path}: not a whole safetensors file ({error}); fetch it again") from error
    if _CARD not in metadata:
        raise ConfigError(f"policy {path}: it has no card of Prorsa; give a file that `prorsa train` wrote")
    try:
        card = msgspec.json.decode(metadata[_CARD], type=Card)
    except msgspec.DecodeError as error:
        raise ConfigError(f"policy {path}: its card cannot be read ({error}); train or fetch it again") from error
    return card, tensors


def _check_card(path: Path, card: Card) -> None:
    if card.observation != VERSION or card.features != tuple(FEATURES) or card.actions != ACTIONS:
        raise ConfigError(
            f"policy {path}: it is for observation {card.observation}, this Prorsa has {VERSION}; train it again"
        )
    if not len(card.low) == len(card.high) == len(FEATURES):
        raise ConfigError(f"policy {path}: its card does not give the range of each feature; train or fetch it again")


def _stack(path: Path, tensors: dict[str, Array], stack: str) -> tuple[tuple[Array, Array], ...]:
    count = sum(name.startswith(f"{stack}.") and name.endswith(".weight") for name in tensors)
    names = [(f"{stack}.{index}.weight", f"{stack}.{index}.bias") for index in range(count)]
    if not names or any(name not in tensors for pair in names for name in pair):
        raise ConfigError(f"policy {path}: layers of its {stack} network are missing; train or fetch it again")
    return tuple((tensors[weight], tensors[bias]) for weight, bias in names)


def _check_shapes(path: Path, model: Model) -> None:
    for layers, outputs in ((model.policy, len(ACTIONS)), (model.value, 1)):
        size = len(FEATURES)
        for weights, bias in layers:
            if weights.ndim != 2 or bias.shape != weights.shape[:1] or weights.shape[1] != size:
                raise ConfigError(f"policy {path}: its layers do not fit one another; train or fetch it again")
            size = weights.shape[0]
        if size != outputs:
            raise ConfigError(f"policy {path}: it has {size} outputs instead of {outputs}; train or fetch it again")
