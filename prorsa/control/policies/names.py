"""Policies by their names on the command line."""

from collections.abc import Callable
from typing import Final

from prorsa.control.policies.analytic import Analytic
from prorsa.control.policies.base import Policy
from prorsa.control.policies.dynamo import DynamoLike
from prorsa.control.policies.fixed import (
    CLAIRVOYANT,
    COLOCATED_TUNED,
    Colocated,
    Planned,
    Static,
    colocated_settings,
    parse_split,
    rollouts_of,
)
from prorsa.control.policies.guarded import SUFFIX, Guarded
from prorsa.control.policies.ordered import Ordered
from prorsa.control.policies.reactive import Arrow, Proportional, Reactive
from prorsa.errors import ConfigError

_RULES: Final[dict[str, Callable[[str], Policy]]] = {
    "reactive": Reactive,
    "reactive:arrow": Arrow,
    "reactive:proportional": Proportional,
    "dynamo-like": DynamoLike,
}

LOOKAHEAD: Final = "lookahead"
STATIC_BEST: Final = "static:best"

SIMULATED: Final = (STATIC_BEST, COLOCATED_TUNED, CLAIRVOYANT)
"""Names that only a simulation can run: they are found by trying, or know the future."""

POLICIES: Final = (
    "analytic",
    "default",
    LOOKAHEAD,
    "learned",
    "learned:FILE",
    "static:P:D",
    "colocated",
    "colocated:N",
    *_RULES,
    *(name + SUFFIX for name in _RULES),
)
"""The names that :func:`make_policy` takes; P, D and N stand for numbers."""


def make_policy(name: str, workers: int | None = None) -> Policy:
    """The policy of a name as on the command line; ``workers``, where known, must be what a static split adds up to.

    Raises:
        ConfigError: for an unknown name, a split that does not add up, or a name that only a simulation can run; says
            what there is.
    """
    if name in SIMULATED or rollouts_of(name) is not None:
        raise ConfigError(f"policy {name} is found by trying futures: it is for `prorsa simulate` alone")
    return _make(name, workers, POLICIES)


def _make(name: str, workers: int | None, known: tuple[str, ...]) -> Policy:
    if name == "analytic":
        return Analytic(name)
    if name == "learned" or name.startswith("learned:"):
        # It reads a file, with what else needs nobody: only whoever asks for it loads that.
        from prorsa.control.learned import make_learned

        return make_learned(name)
    if name == "ordered":
        return Ordered(name)
    if name in (LOOKAHEAD, "default"):
        # Both load the compiler, which a command that only names policies does without.
        from prorsa.control.lookahead import Lookahead
        from prorsa.control.policies.default import Default

        return Lookahead(name) if name == LOOKAHEAD else Default(name)
    if (mixed := colocated_settings(name)) is not None:
        return mixed
    if name.startswith("static:"):
        return Static(name, parse_split(name.removeprefix("static:"), workers, where=f"policy {name}"))
    rule, plus, rest = name.partition(SUFFIX)
    if rule in _RULES and not rest:
        made = _RULES[rule](rule)
        return Guarded(made) if plus else made
    raise ConfigError(f"no policy {name!r}; there are {', '.join(known)}")


def make_simulated(name: str, workers: int) -> Policy:
    """As :func:`make_policy`, with the names that only a simulation can run: what they have in common with others.

    Raises:
        ConfigError: as :func:`make_policy`.
    """
    if name == STATIC_BEST:
        return Static(name, parse_split(f"1:{max(workers - 1, 1)}", None, where=f"policy {name}"))
    if name == COLOCATED_TUNED:
        return Colocated(name)
    if rollouts_of(name) is not None:
        return Planned(name)
    return _make(name, workers, (*POLICIES, *SIMULATED))
