"""How the forecast's inner loops are compiled."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile on first use, or take from the cache on disk.

    Numba's cache looks at the file of the compiled function alone: it may only call compiled functions of its own file.
    """
    kernel: Any = numba.njit(error_model="numpy")(function)
    # Where neither the package folder nor the user's cache folder is writable, each process compiles for itself.
    with contextlib.suppress(RuntimeError):
        kernel.enable_caching()
    return cast("Function", kernel)
