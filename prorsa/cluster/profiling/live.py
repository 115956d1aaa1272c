"""A profile from live workers of one kind: how they are launched, and what their counters say while they are used."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from prorsa.cluster.profile import Profile, Range
from prorsa.cluster.profiling.observed import Observed, add_counters, fit_steps
from prorsa.cluster.sglang import ServerInfo, WorkerClient, session_for_workers
from prorsa.errors import InputError


@dataclass(frozen=True, slots=True)
class Known:
    """What counters do not say and a person must.

    Attributes:
        name: name of the profile.
        kv_bytes_per_token: KV of a token, a GPU.
        model_context: longest prompt + output; None for what a rank holds.
        kv_transfer_gb_s: KV transfer rate between two workers.
        request_ms: a request's time outside the engine's steps.
    """

    name: str
    kv_bytes_per_token: int
    model_context: int | None = None
    kv_transfer_gb_s: float = 40.0
    request_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How the workers were launched, as far as a profile needs it."""

    model: str
    system: str
    gpus: int
    kv_tokens: int
    chunk_tokens: int
    max_running: int
    why_not_flippable: str | None


async def watch(
    urls: Sequence[str], for_s: float, *, every_s: float = 0.05, api_key: str | None = None
) -> tuple[Launch, Observed]:
    """Look at the workers' counters for ``for_s`` seconds.

    Raises:
        WorkerError: if a worker does not answer.
        InputError: if they are not alike, or have data-parallel ranks.
    """
    async with session_for_workers() as session:
        clients = [WorkerClient(session, url, api_key=api_key) for url in urls]
        launches = [await _launch(client) for client in clients]
        if any(launch != launches[0] for launch in launches):
            raise InputError(f"the workers {', '.join(urls)} are not launched alike: fit a profile of each kind")
        seen = Observed()
        await asyncio.gather(*(_look(client, seen, launches[0].chunk_tokens, for_s, every_s) for client in clients))
    return launches[0], seen


async def _look(client: WorkerClient, seen: Observed, chunk_tokens: int, for_s: float, every_s: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + for_s
    before, looked_s = await client.loads(), loop.time()
    while loop.time() < end:
        await asyncio.sleep(every_s)
        asked_s = loop.time()
        after = await client.loads()
        # From the earliest time that the first look can be of to the latest of the second.
        add_counters(seen, before, after, chunk_tokens, loop.time() - looked_s)
        before, looked_s = after, asked_s


async def _launch(client: WorkerClient) -> Launch:
    info, model = await client.info(), await client.model()
    if info.dp_size > 1:
        raise InputError(
            f"{client.url} has {info.dp_size} data-parallel ranks, whose counters hold the waiting for one another: "
            "use `prorsa profile make`, or fit from a worker with tensor parallelism alone"
        )
    return Launch(
        model=model.served_model_name,
        system="live",
        gpus=info.tp_size * info.pp_size,
        kv_tokens=info.max_total_num_tokens,
        chunk_tokens=_chunk(info),
        max_running=info.max_running or 1,
        why_not_flippable=info.why_not_flippable(),
    )


def _chunk(info: ServerInfo) -> int:
    """Without chunks (-1) a prompt is prefilled in one step, which KV bounds."""
    chunk = info.chunked_prefill_size
    return chunk if chunk is not None and chunk > 0 else info.max_total_num_tokens


def live_profile(launch: Launch, seen: Observed, known: Known, source: str) -> Profile:
    """The profile of workers so launched and so seen.

    Raises:
        InputError: if too little was seen of prefill or decode.
    """
    prefill, decode = fit_steps("prefill", seen.prefill), fit_steps("decode", seen.decode)
    return Profile(
        name=known.name,
        model=launch.model,
        system=launch.system,
        parallel=f"TP{launch.gpus}",
        provenance=(
            f"Least squares on {source}: {_seen(seen.prefill)} of prefill, {_seen(seen.decode)} of decode. "
            "Experts are part of both."
        ),
        gpus=launch.gpus,
        ranks=1,
        kv_tokens=launch.kv_tokens,
        kv_bytes_per_token=known.kv_bytes_per_token,
        chunk_tokens=launch.chunk_tokens,
        max_running=launch.max_running,
        model_context=known.model_context or launch.kv_tokens,
        flippable=launch.why_not_flippable is None,
        why_not_flippable=launch.why_not_flippable,
        kv_transfer_gb_s=known.kv_transfer_gb_s,
        matched_rows=0,
        request_ms=known.request_ms,
        prefill=prefill,
        decode=decode,
        measured=_range(seen),
    )


def _seen(steps: Sequence[object]) -> str:
    return f"{len(steps)} observations"


def _range(seen: Observed) -> Range:
    """What the observations reach to: the most new tokens and contexts, and the largest mean batch."""
    return Range(
        new_tokens=int(max(step.work for step in seen.prefill)),
        context_tokens=int(max((step.context or 0.0) / max(step.work, 1.0) for step in seen.decode)),
        batch=max(1, round(max(step.work / step.count for step in seen.decode))),
    )
