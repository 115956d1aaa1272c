"""How the engine's functions are compiled.

Numba's on-disk cache tells stale machine code by the source file of the compiled function alone, not by those of the
functions it calls. The engine is spread over several files, so here the stamp of every cached function is the digest
of the whole folder: a change anywhere compiles again, and never runs old code.
"""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

Function = TypeVar("Function", bound=Callable[..., object])


def _digest() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


_STAMP = _digest()


class _FolderCache(FunctionCache):
    """The cache of one function, stale as soon as any source file of the folder has changed."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file = IndexDataCacheFile(  # type: ignore[no-untyped-call]
            cache_path=self._cache_path, filename_base=self._impl.filename_base, source_stamp=_STAMP
        )


def kernel(function: Function) -> Function:
    """Compile a function that only other compiled functions call."""
    return _compile(function, no_cpython_wrapper=True)


def entry(function: Function) -> Function:
    """Compile a function that Python calls too. The wrapper for that costs more to compile than a short function."""
    return _compile(function, no_cpython_wrapper=False)


def _compile(function: Function, *, no_cpython_wrapper: bool) -> Function:
    """Compile on first use, or take from the cache."""
    # Nothing here allocates. Counting references to the state's arrays took four fifths of the engine's time.
    options: dict[str, Any] = {"no_cpython_wrapper": no_cpython_wrapper, "no_cfunc_wrapper": True, "_nrt": False}
    compiled: Any = numba.njit(error_model="numpy", **options)(function)
    # Where neither the package folder nor the user's cache folder is writable, each process compiles for itself.
    with contextlib.suppress(RuntimeError):
        compiled._cache = _FolderCache(function)  # noqa: SLF001 - numba offers no other way to set the stamp
    return cast("Function", compiled)
