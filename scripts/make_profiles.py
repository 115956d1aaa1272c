"""Make the profiles that the package carries, in prorsa/cluster/profiles, from AIConfigurator and measured rows.

    python scripts/make_profiles.py [NAME…]

Needs the ``profile`` extra: `aiconfigurator-core` also ships the table of measured rows. Only rows on the fit side of
benchmarks/latency-split.csv are read.
"""

import sys
from pathlib import Path

from prorsa.cluster.profiling.making import Request, make_profile
from prorsa.cluster.profiling.measured import Form
from prorsa.cluster.profiling.writing import profile_toml

FOLDER = Path(__file__).parent.parent / "prorsa" / "cluster" / "profiles"

V3, V32 = "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2"
QWEN_235B, QWEN_32B = "Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3-32B"
H100, H200 = "h100_sxm", "h200_sxm"
DP8, DP8_EP8 = Form(tp=1, dp=8, moe_tp=8), Form(tp=1, dp=8, moe_ep=8)



def main() -> None:
    """Make those that are named, or all."""
    wanted = sys.argv[1:]
    for request in REQUESTS:
        if not wanted or request.name in wanted:
            print(request.name)
            (FOLDER / f"{request.name}.toml").write_text(profile_toml(make_profile(request)))


if __name__ == "__main__":
    main()
