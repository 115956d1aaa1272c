"""Put a trained policy into ``models/`` with what it came to: its scores, how it was trained, and its limits.

    python -m benchmarks.learned analytic lookahead learned:trained/learned.safetensors --json > scores.json
    python scripts/ship_policy.py trained/learned.safetensors scores.json --command "make train"

The weights stay as they are; only the card changes. ``scores.json`` names the policy as ``learned:FILE``.
"""

import argparse
import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from prorsa.control.model import load_model, save_model

MODELS: Final = Path(__file__).parent.parent / "models"
_LIBRARIES: Final = ("torch", "sb3-contrib", "stable-baselines3", "gymnasium", "numpy")
_LIMITS: Final = (
    "Simulated pools of 4 to 12 workers with 4 to 80 trajectories in flight on each, of the profiles and scenarios of "
    "prorsa.control.learn.practice; on others it hands over to analytic, or should be trained from a recording."
)


def scores_of(policy: str, scores: list[dict[str, Any]]) -> dict[str, float]:
    """The scores of the policy, and the means of those it was compared with; the first one is what all are by."""
    own = next(row for row in scores if row["policy"] == policy)
    by = f"held-out episodes, reward by {scores[0]['policy']}"
    found = {f"{by}: {name}": round(float(own[name]), 3) for name in ("mean", "low", "high", "worst")}
    rivals = (row for row in scores[1:] if row["policy"] != policy)
    return found | {f"{by}: mean of {Path(row['policy']).name}": round(float(row["mean"]), 3) for row in rivals}


def main() -> None:
    """Write ``models/learned.safetensors``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--command", required=True, help="that trained it")
    args = parser.parse_args()
    model = load_model(args.file)
    trained = {
        "data": "practice",
        **model.card.trained,
        "command": args.command,
        **{name: version(name) for name in _LIBRARIES},
    }
    scores = scores_of(f"learned:{args.file}", json.loads(args.scores.read_text()))
    card = msgspec.structs.replace(model.card, trained=trained, scores=scores, limits=_LIMITS)
    save_model(replace(model, card=card), MODELS / "learned.safetensors")


if __name__ == "__main__":
    main()
