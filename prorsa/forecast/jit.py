"""How the forecast's inner loops are compiled."""

import contextlib
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])

_IMPORT: Final = re.compile(r"^from ([\w.]+) import", re.MULTILINE)


def compiled(function: Function) -> Function:
    """Compile on first use, or take from the cache on disk.

    Numba's cache looks at the file of the compiled function alone. What that takes from other modules of its package is
    compiled in: constants, and the layout of tuples. So a change of their files makes the cache stale too; not one of
    the files that these import, so that only compiled functions of its own file may be called.
    """
    return _kernel(function)


def inlined(function: Function) -> Function:
    """As :func:`compiled`, into every function that calls it.

    A call copies all arrays of the tuples that it passes, some hundred words: more work than a loop over a minute.
    """
    return _kernel(function, forceinline=True)


def _kernel(function: Function, *, forceinline: bool = False) -> Function:
    kernel: Any = numba.njit(error_model="numpy", forceinline=forceinline)(function)
    # Where neither the package folder nor the user's cache folder is writable, each process compiles for itself.
    with contextlib.suppress(RuntimeError, AttributeError):
        kernel.enable_caching()
        # Numba has no public way to say what else a function depends on; a test holds that this one works.
        index = kernel._cache._cache_file  # noqa: SLF001
        index._source_stamp = (index._source_stamp, _imports(function.__module__))  # noqa: SLF001
    return cast("Function", kernel)


@cache
def _imports(module: str) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of the files of a module's package that it imports from."""
    package, file = module.partition(".")[0], getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return ()
    found = []
    for name in sorted(set(_IMPORT.findall(Path(file).read_text(encoding="utf-8")))):
        spec = find_spec(name) if name.partition(".")[0] == package else None
        if spec is not None and spec.origin is not None:
            stat = Path(spec.origin).stat()
            found.append((name, stat.st_mtime_ns, stat.st_size))
    return tuple(found)
