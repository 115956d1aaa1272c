"""``learned``: a policy that practised in the simulator; hands over to another where it should not be trusted.

To ``analytic`` where it is out of its range or its moves have not paid; to ``lookahead`` where the model of that one
keeps promising clearly more of another split: what practice did not teach, a wrong split for an hour, shows in no move.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from prorsa.clock import seconds
from prorsa.control.actions import ACTIONS, STAY, shift_of
from prorsa.control.handover import LEAST_RATIO, RETURN_S, SUSPENDED_S, Handover, Opposition, Outcomes, Ranges
from prorsa.control.lookahead import Lookahead
from prorsa.control.model import Array, Model, load_model, shipped
from prorsa.control.observation import observe
from prorsa.control.policies.analytic import Analytic
from prorsa.control.policies.base import Context, Policy, Want, shifted

PREFIX: Final = "learned:"
_LOWEST: Final = np.float32(-1e9)
_NAMED: Final = 3
"""Features outside their range that a reason names."""


class Learned:
    """The most likely of the actions that the guards allow.

    Args:
        name: on the command line.
        model: its weights and card.
    """

    economy = True
    flips = True
    needs_forecast = True
    needs_events = True

    def __init__(self, name: str, model: Model) -> None:
        self.name = name
        self.model = model
        self._analytic = Analytic()
        self._lookahead = Lookahead()
        self._opposition = Opposition()
        self._instead: Policy = self._analytic
        self._ranges = Ranges(model.card)
        self._handover = Handover()
        self._outcomes = Outcomes()

    def decide(self, context: Context) -> Want:
        """What it would do, or what another would where it is not its turn; the reason says which and why."""
        observation = observe(context)
        logits = self.model.logits(observation)
        second = self._lookahead.decide(context)
        self._judge(context, observation, logits)
        if self._handover.away(context.t_ns):
            return self._hand_over(context, second)
        action = _best(logits, context)
        shift = shift_of(action, context.parallel_flips)
        if context.acts:
            suspended_s = self._opposition.note(shift, second.split.prefill - context.current.prefill)
            if suspended_s is not None:
                self._object(context, "look-ahead keeps seeing more in another split", suspended_s, self._lookahead)
                return self._hand_over(context, second)
        if action != STAY and context.acts:
            self._outcomes.moved(seconds(context.t_ns))
        split = shifted(context, shift)
        return Want(
            split=split,
            reason=f"practised in {self.model.card.name}: {_say(shift)}",
            inputs=_inputs(logits, self.model.worth(observation)),
        )

    def state(self) -> str:
        """The weights, and until when it is not its turn."""
        return f"{self.model.card.sha256} {self._handover.until_s} {self._lookahead.state()}"

    def _judge(self, context: Context, observation: Array, logits: Array) -> None:
        now_s = seconds(context.t_ns)
        counts = [worker.load.output_tokens_total for worker in context.workers if worker.load is not None]
        known = [count for count in counts if count is not None]
        if known:
            self._outcomes.count(now_s, float(sum(known)))
        if outside := self._ranges.outside(observation):
            names = ", ".join(outside[:_NAMED])
            self._object(context, f"{names}: outside the range of its training", RETURN_S, self._analytic)
        if not np.isfinite(logits).all():
            self._object(context, "its output is not a number", RETURN_S, self._analytic)
        ratio = self._outcomes.ratio()
        if ratio is not None and ratio < LEAST_RATIO:
            self._outcomes.forget()
            why = f"after its moves the pool put out {ratio:.2f} of before"
            self._object(context, why, SUSPENDED_S, self._analytic)

    def _object(self, context: Context, why: str, for_s: float, instead: Policy) -> None:
        if self._handover.object(seconds(context.t_ns), why, for_s):
            self._instead = instead

    def _hand_over(self, context: Context, second: Want) -> Want:
        want = second if self._instead is self._lookahead else self._instead.decide(context)
        left_s = self._handover.until_s - seconds(context.t_ns)
        why = self._handover.reason
        reason = f"{self._instead.name} decides for {self.name} for {left_s:.0f} s ({why}): {want.reason}"
        inputs = {**want.inputs, "handed_over_s": round(left_s, 1)}
        return replace(want, reason=reason, inputs=inputs, handed_over=why, decided_by=self._instead.name)


def make_learned(name: str) -> Learned:
    """``learned`` is the policy that the package ships, ``learned:FILE`` one of one's own.

    Raises:
        ConfigError: if there is no such file, or it is not a whole policy for this observation.
    """
    path = Path(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else shipped("learned")
    return Learned(name, load_model(path))


def _best(logits: Array, context: Context) -> int:
    if context.allowed_actions is None:
        return int(np.argmax(logits))
    return int(np.argmax(np.where(context.allowed_actions(), logits, _LOWEST)))


def _say(shift: int) -> str:
    if shift == 0:
        return "nothing to move"
    return f"{abs(shift)} worker(s) to {'prefill' if shift > 0 else 'decode'}"


def _inputs(logits: Array, worth: float) -> dict[str, float | None]:
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    said = {f"p({action})": round(float(share), 4) for action, share in zip(ACTIONS, shares, strict=True)}
    return {**said, "expected_reward": round(worth, 3)}
