"""A typed client of SGLang workers."""

from prorsa.cluster.sglang.bootstrap import spell_host
from prorsa.cluster.sglang.client import WorkerClient, session_for_workers
from prorsa.cluster.sglang.costs import Costs, costs_between
from prorsa.cluster.sglang.replies import CHECKED_VERSION, Loads, ModelInfo, ServerInfo, SwitchReply

__all__ = [
    "CHECKED_VERSION",
    "Costs",
    "Loads",
    "ModelInfo",
    "ServerInfo",
    "SwitchReply",
    "WorkerClient",
    "costs_between",
    "session_for_workers",
    "spell_host",
]
