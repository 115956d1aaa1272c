"""``prorsa doctor``: looks at live workers and says what stands in the way of flipping them, with the remedy.

What is found is pure (:func:`examine`); asking the workers is a few calls around it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from prorsa.cluster.sglang import CHECKED_VERSION, ModelInfo, ServerInfo, WorkerClient, session_for_workers
from prorsa.errors import ProrsaError
from prorsa.events import Role

Level = Literal["ok", "warning", "problem"]

CLOCK_TOLERANCE_S: Final = 2.5
"""Difference of wall clocks that the resolution of a `Date` header may account for, and a bit."""
_ALIKE: Final = (
    "page_size",
    "max_running_requests",
    "chunked_prefill_size",
    "disable_radix_cache",
    "disaggregation_decode_enable_radix_cache",
    "disaggregation_transfer_backend",
    "kv_cache_dtype",
    "num_reserved_decode_tokens",
    "tp_size",
    "dp_size",
)
"""Settings that SGLang does not derive again when the role changes: workers that will flip must have them alike."""


@dataclass(frozen=True, slots=True)
class Patient:
    """One worker as it answered, or why it did not.

    Attributes:
        clock_ahead_s: how far its wall clock is ahead of ours; known to about a second.
        has_admin_key: whether we have an admin key to show it.
    """

    url: str
    info: ServerInfo | None = None
    model: ModelInfo | None = None
    clock_ahead_s: float | None = None
    has_admin_key: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``remedy`` is None where all is well."""

    level: Level
    where: str
    text: str
    remedy: str | None = None


async def ask(urls: Sequence[str], *, key: str | None = None, admin_key: str | None = None) -> list[Patient]:
    """Ask every worker who it is."""
    async with session_for_workers() as session:
        clients = [WorkerClient(session, url, api_key=key, admin_key=admin_key) for url in urls]
        return list(
            await asyncio.gather(
                *(
                    _ask(url, client, has_admin_key=admin_key is not None)
                    for url, client in zip(urls, clients, strict=True)
                )
            )
        )


async def _ask(url: str, client: WorkerClient, *, has_admin_key: bool) -> Patient:
    try:
        info, model = await client.info(fresh=True), await client.model()
        clock_s = await client.clock_s()
        ahead_s = None if clock_s is None else clock_s - time.time()
        return Patient(url, info, model, clock_ahead_s=ahead_s, has_admin_key=has_admin_key)
    except ProrsaError as error:
        return Patient(url, error=str(error))


def examine(patients: Sequence[Patient]) -> list[Finding]:
    """All findings: worker by worker, then what concerns the pool."""
    findings = [finding for patient in patients for finding in _examine_one(patient)]
    met = [patient for patient in patients if patient.info is not None]
    return [*findings, *_differences(met), *_bootstrap_ports(met), *_roles(met), *_weights(met)]


def _examine_one(patient: Patient) -> Iterator[Finding]:
    info = patient.info
    if info is None:
        yield Finding("problem", patient.url, patient.error or "does not answer", "start it, or mend its URL or key")
        return
    if info.version != CHECKED_VERSION:
        text = f"SGLang {info.version}: Prorsa was checked with {CHECKED_VERSION}"
        yield Finding(
            "warning", patient.url, text, f"run SGLang {CHECKED_VERSION}, or try a flip on idle workers first"
        )
    reason = info.why_not_flippable()
    if reason is None:
        roles = " and ".join(_live_roles(info))
        yield Finding("ok", patient.url, f"flippable, serves {roles}, {info.kv_capacity:,} KV tokens")
    else:
        yield Finding("problem", patient.url, f"cannot flip: {reason}", "launch it as `prorsa worker --print` shows")
    if info.admin_api_key is not None and not patient.has_admin_key:
        text = "asks for an admin key: role switches would be refused"
        yield Finding("problem", patient.url, text, "name the file that holds it (admin_key_file)")
    if patient.clock_ahead_s is not None and abs(patient.clock_ahead_s) > CLOCK_TOLERANCE_S:
        text = f"its clock is off by {patient.clock_ahead_s:+.0f} s: times in logs and journals will not match"
        yield Finding("warning", patient.url, text, "synchronise the clocks (NTP)")
    if len(info.live_roles) > 1:
        text = f"its schedulers are in different roles: {', '.join(sorted(info.live_roles))}"
        yield Finding("problem", patient.url, text, "restart it: a switch has failed half-way")
    if info.disable_radix_cache:
        yield Finding("problem", patient.url, "no radix cache: every turn prefills its whole context",
                      "launch it without --disable-radix-cache")  # fmt: skip
    elif not info.disaggregation_decode_enable_radix_cache and info.launch_role != "mixed":
        yield Finding("warning", patient.url, "no radix cache while it decodes: flips to prefill start cold",
                      "launch it with --disaggregation-decode-enable-radix-cache")  # fmt: skip


def _live_roles(info: ServerInfo) -> list[Role]:
    return sorted(info.live_roles) or [info.launch_role]


def _differences(met: Sequence[Patient]) -> Iterator[Finding]:
    for name in _ALIKE:
        values = {patient.url: getattr(patient.info, name) for patient in met}
        common, count = Counter(values.values()).most_common(1)[0] if values else (None, 0)
        if count < len(values):
            odd = ", ".join(f"{url} has {value}" for url, value in values.items() if value != common)
            flag = "--" + name.replace("_", "-")
            yield Finding(
                "problem", "pool", f"{name} is {common} on most, but {odd}", f"launch all with the same {flag}"
            )


def _bootstrap_ports(met: Sequence[Patient]) -> Iterator[Finding]:
    places = Counter(
        (urlsplit(patient.url).hostname, patient.info.disaggregation_bootstrap_port)
        for patient in met
        if patient.info is not None and patient.info.launch_role != "mixed"
    )
    for (host, port), count in places.items():
        if count > 1:
            yield Finding("problem", "pool", f"{count} workers of {host} share bootstrap port {port}",
                          "give each its own --disaggregation-bootstrap-port")  # fmt: skip


def _roles(met: Sequence[Patient]) -> Iterator[Finding]:
    roles = {role for patient in met if patient.info is not None for role in _live_roles(patient.info)}
    if roles and roles != {"mixed"} and not roles >= {"prefill", "decode"}:
        yield Finding("problem", "pool", "there is not one worker of each role: no request can be served",
                      "launch or flip one of the other role")  # fmt: skip


def _weights(met: Sequence[Patient]) -> Iterator[Finding]:
    versions = {patient.url: patient.model.weight_version for patient in met if patient.model}
    if len(set(versions.values())) > 1:
        named = ", ".join(f"{url}: {version}" for url, version in versions.items())
        yield Finding("problem", "pool", f"weight versions differ ({named}): these workers are not paired",
                      "finish the weight update on all")  # fmt: skip
