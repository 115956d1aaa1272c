"""Make the profiles that the package carries, in prorsa/cluster/profiles, from AIConfigurator and measured rows.

    python scripts/make_profiles.py [NAME…]

Needs the ``profile`` extra: `aiconfigurator-core` also ships the table of measured rows. Only rows on the fit side of
benchmarks/latency-split.csv correct a profile; a fit runs the simulator some thousand times, which takes minutes.
"""

import sys
from functools import cache
from pathlib import Path

import msgspec

from prorsa.cluster.profile import Profile
from prorsa.cluster.profiling.aiconfigurator import measured_table
from prorsa.cluster.profiling.catalogue import CARRIED, TRANSFERS, colocated_rows, disaggregated_rows
from prorsa.cluster.profiling.corrections import Corrections, corrected, fit_corrections
from prorsa.cluster.profiling.making import Request, make_profile
from prorsa.cluster.profiling.measured import Row, read_rows, read_split
from prorsa.cluster.profiling.writing import profile_toml

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "prorsa" / "cluster" / "profiles"
SPLIT = ROOT / "benchmarks" / "latency-split.csv"
KEPT = "qwen3-32b-h200-tp2"
"""Made before there was this script; published results rest on its figures."""


@cache
def rows() -> list[Row]:
    """All measured rows whose side is known."""
    split = read_split(SPLIT)
    return [row for row in read_rows(measured_table()) if row.key in split]


@cache
def fitted(request: Request) -> tuple[Corrections, list[Row]]:
    """The corrections that a profile's own rows give, and these rows."""
    split = read_split(SPLIT)
    mine = [row for row in colocated_rows(request, rows()) if split[row.key] == "fit"]
    return fit_corrections(make_profile(request), mine), mine


def matched(request: Request) -> int:
    """Measured rows of a profile, fit and held back, colocated or as one of the two roles."""
    in_pairs = sum(request in (prefill, decode) for _, prefill, decode in disaggregated_rows(rows()))
    return len(colocated_rows(request, rows())) or in_pairs


def make(request: Request) -> Profile:
    """The profile with its corrections, and a word on each."""
    profile = msgspec.structs.replace(make_profile(request), matched_rows=matched(request))
    if colocated_rows(request, rows()):
        by, mine = fitted(request)
        versions = ", ".join(sorted({row.version for row in mine}))
        return _noted(corrected(profile, by), f"Corrected by {len(mine)} measured rows (SGLang {versions}): {by}.")
    transfer = TRANSFERS.get(request.name)
    if transfer is None:
        return _noted(profile, "Not corrected: no measured row is of its form.")
    source = next(other for other in CARRIED if other.name == transfer.source)
    by = transfer.of(fitted(source)[0])
    return _noted(corrected(profile, by), f"Corrections that {source.name} has from its rows, {transfer.why}: {by}.")


def _noted(profile: Profile, note: str) -> Profile:
    return msgspec.structs.replace(profile, provenance=f"{profile.provenance} {note}")


def main() -> None:
    """Make those that are named, or all."""
    wanted = sys.argv[1:]
    for request in CARRIED:
        if request.name == KEPT or (wanted and request.name not in wanted):
            continue
        profile = make(request)
        (FOLDER / f"{request.name}.toml").write_text(profile_toml(profile))
        print(f"{request.name}: {profile.provenance}", flush=True)


if __name__ == "__main__":
    main()
