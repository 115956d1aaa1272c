"""What the tests of workloads share."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from prorsa.cluster.profile import Profile, load_profile

TRACES = Path(__file__).parents[2] / ".." / "shared" / "traces"


@pytest.fixture(scope="session")
def profile() -> Profile:
    return load_profile("qwen3-32b-h200-tp2")


@pytest.fixture
def small(profile: Profile) -> Callable[[int], Profile]:
    """A profile whose longest context is as given."""
    return lambda max_context: msgspec.structs.replace(profile, model_context=max_context)


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of recorded traces beside the repository; tests that need it skip where it is absent."""
    if not TRACES.is_dir():
        pytest.skip(f"no recorded traces: {TRACES} is absent")
    return TRACES


@pytest.fixture
def session_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a session file from rows of (session, turn, prompt, output, new) or from the text given."""

    def write(*rows: tuple[object, ...], text: str | None = None, name: str = "sessions.csv") -> Path:
        path = tmp_path / name
        header = "session,turn,prompt_tokens,output_tokens,new_tokens"
        path.write_text(text if text is not None else "\n".join([header, *(",".join(map(str, row)) for row in rows)]))
        return path

    return write
