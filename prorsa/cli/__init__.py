"""The command line. Data goes to stdout, narration to stderr; bad input ends with status 2 and one line."""

import sys
from collections.abc import Sequence

from prorsa.errors import ProrsaError

_CONTROL_MODULES = frozenset(
    {"cyclopts", "rich", "numpy", "numba", "structlog", "textual", "aiohttp", "prometheus_client"}
)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of ``prorsa``; ends the process."""
    raise SystemExit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run one command and return the status to end with."""
    try:
        from prorsa.cli.app import call

        return call(argv)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _CONTROL_MODULES:
            raise
        return _fail(f"{error.name} is not installed: this command needs `pip install 'prorsa[control]'`", 2)
    except ProrsaError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read stdout has gone, as `head` does: that is not an error of ours.
        sys.stderr.close()
        return 141


def _fail(text: str, status: int) -> int:
    print(f"prorsa: {text}", file=sys.stderr)
    return status
