"""Stand-in for SGLang's CPU kernels, which need AMX.

SGLang imports these names when it is told to use its CPU engine. Only speculative decoding calls them, which cannot be
combined with role switching. ``convert_weight_packed`` must stay absent: SGLang takes it for the sign of an AMX build.
"""

from collections.abc import Callable

__version__ = "0.0.0"

_NAMES = (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
)


def _unavailable(name: str) -> Callable[..., None]:
    def kernel(*_args: object, **_kwargs: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} needs a CPU with AMX; the test bed runs without it")

    kernel.__name__ = name
    return kernel


for _name in _NAMES:
    globals()[_name] = _unavailable(_name)
