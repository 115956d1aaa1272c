"""The commands of ``prorsa profile``, their parameters and their help."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from prorsa.cli.options import Duration, duration

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object to stdout.")]
Output = Annotated[Path, Parameter(name=["--output", "-o"], help="The TOML file to write; it must not exist yet.")]

app = App(name="profile", help="Performance profiles: those that there are, and making new ones.")


@app.command(name="list")
def list_(*, as_json: Json = False) -> int:
    """List the profiles of the package: whether they are validated, and whether such workers can flip."""
    from prorsa.cli.profiles import list_profiles

    return list_profiles(as_json=as_json)


@app.command
def show(name: str, *, as_json: Json = False) -> int:
    """Show a profile: its figures, where they are from, and what its steps cost.

    Parameters
    ----------
    name
        Name of a profile, or a TOML file.
    """
    from prorsa.cli.profiles import show_profile

    return show_profile(name, as_json=as_json)


@app.command
def make(
    *,
    model: str,
    system: str,
    output: Output,
    tp: int = 1,
    dp: int = 1,
    moe_tp: int | None = None,
    moe_ep: int = 1,
    chunk_tokens: int | None = None,
) -> int:
    """Make a profile from AIConfigurator's tables (pip install 'prorsa[profile]'); no GPU is needed.

    Parameters
    ----------
    model
        Hugging Face name, as in deepseek-ai/DeepSeek-V3.2.
    system
        GPU, as in h200_sxm, h100_sxm, b200_sxm.
    tp
        Tensor-parallel size of attention in one data-parallel rank.
    dp
        Attention data-parallel ranks of a worker, which has tp × dp GPUs.
    moe_tp
        Tensor-parallel size of the experts; by default what moe_ep leaves of the GPUs.
    moe_ep
        Expert-parallel size; above 1 SGLang lets no worker flip.
    chunk_tokens
        Prefill budget of a rank and step; by default 8,192 / dp, as SGLang has it.
    """
    from prorsa.cli.profiles import make as run

    experts = tp * dp // moe_ep if moe_tp is None and moe_ep > 0 else moe_tp or 0
    return run(output.stem, model, system, (tp, dp, experts, moe_ep), output, chunk_tokens)


@app.command
def fit(
    *,
    sources: Annotated[list[str], Parameter(name="--from", consume_multiple=True, negative="")],
    output: Output,
    kv_bytes_per_token: int,
    for_s: Annotated[Duration, Parameter(name="--for", converter=duration)] = 60.0,
    request_ms: float = 0.0,
    model_context: int | None = None,
    kv_tokens: int | None = None,
    chunk_tokens: int = 8192,
    gpus: int = 1,
    key_file: Path | None = None,
) -> int:
    """Fit a profile to live workers under load, or to journals of a run whose workers had the plugin.

    Parameters
    ----------
    sources
        URLs of workers that are alike (a prefill and a decode worker, or colocated ones), or journal directories.
    kv_bytes_per_token
        KV of one token on one GPU: 2 × layers × KV heads × head size × bytes of an element, divided by tp.
    for_s
        How long to watch live workers: 90s, 30m.
    request_ms
        A request's time outside the engine's steps: time to first token of a short prompt on idle workers, less its
        prefill. Counters do not say it.
    model_context
        Longest prompt + output; by default what one worker holds.
    kv_tokens
        KV capacity of a worker, for journals; live workers say it.
    chunk_tokens
        Chunked prefill size, for journals; live workers say it.
    gpus
        GPUs of a worker, for journals; live workers say it.
    key_file
        File with the workers' API key.
    """
    from prorsa.cli.profiles import FitOptions
    from prorsa.cli.profiles import fit as run

    return run(
        FitOptions(
            sources=tuple(sources),
            for_s=for_s,
            output=output,
            kv_bytes_per_token=kv_bytes_per_token,
            chunk_tokens=chunk_tokens,
            kv_tokens=kv_tokens,
            gpus=gpus,
            model_context=model_context,
            request_ms=request_ms,
            key_file=key_file,
        )
    )
