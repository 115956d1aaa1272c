"""Numbers and times as the console writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.console import text
from prorsa.console.look import ASCII, UNICODE, Look, fit, fit_words, wrap
from prorsa.errors import InputError


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "–"),
        (0, "0"),
        (950, "950"),
        (999, "999"),
        (1000, "1k"),
        (41_234, "41.2k"),
        (999_600, "1M"),
        (1_250_000, "1.25M"),
        (6.7, "6.7"),
        (2.5e9, "2.5G"),
        (-1500, "-1.5k"),
        (-0.02, "-0.02"),
        (-0.004, "0"),
        (-0.0, "0"),
    ],
)
def test_count(value: float | None, written: str) -> None:
    assert text.count(value) == written


@given(st.floats(min_value=0, max_value=9e11))
def test_a_count_is_short_and_true_to_three_digits(value: float) -> None:
    written = text.count(value)
    assert len(written) <= 5
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    number = float(written.rstrip("kMG")) * units.get(written[-1], 1.0)
    assert number == pytest.approx(value, rel=6e-3, abs=0.01)


def test_unknown_is_never_written_as_zero() -> None:
    assert text.count(None) == text.percent(None) == text.span(None) == "–"
    assert text.run_time(None) == "––:––:––"
    assert text.ratio(None, 5) is text.ratio(5, None) is text.ratio(5, 0) is None
    assert text.count(0) == "0"
    assert text.percent(0.0) == "0%"


@pytest.mark.parametrize(
    ("value_s", "written"), [(4.24, "4.2 s"), (9.96, "10 s"), (42, "42 s"), (725, "12:05"), (3725, "1:02:05")]
)
def test_span(value_s: float, written: str) -> None:
    assert text.span(value_s) == written


@pytest.mark.parametrize(("given_text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), (" 1 h ", 3600)])
def test_duration(given_text: str, seconds: float) -> None:
    assert text.parse_duration_s(given_text) == seconds


@pytest.mark.parametrize("wrong", ["", "30", "m", "30x", "0s", "30m or so", "-5m"])
def test_no_duration(wrong: str) -> None:
    with pytest.raises(InputError, match="no duration"):
        text.parse_duration_s(wrong)


@pytest.mark.parametrize(("given_text", "split"), [("5:3", "5:3"), (" 5P : 3D ", "5:3")])
def test_split(given_text: str, split: str) -> None:
    assert text.parse_split(given_text, 8) == split


@pytest.mark.parametrize(
    ("wrong", "why"), [("5", "no split"), ("8:0", "without a worker"), ("5:4", "makes 9 workers, but there are 8")]
)
def test_no_split(wrong: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        text.parse_split(wrong, 8)


@given(st.text(), st.integers(min_value=0, max_value=60))
def test_a_fitted_text_is_exactly_as_wide_as_asked(words: str, width: int) -> None:
    from rich.cells import cell_len

    words = " ".join(words.split())
    assert cell_len(fit(words, width, Look())) == width
    assert cell_len(fit_words(words, width, Look())) == width


def test_words_are_cut_between_words() -> None:
    assert fit_words("one two three four", 12, Look()).rstrip() == "one two…"
    assert fit_words("one two", 12, Look()).rstrip() == "one two"


def test_wrapping_keeps_every_word() -> None:
    reason = "15 s ahead ask for 3.8 prefill and 4.1 decode: 4P:4D is the nearest split that fits"
    lines = wrap(reason, 30)
    assert " ".join(lines) == reason
    assert max(map(len, lines)) <= 30


def test_the_ascii_look_has_nothing_but_ascii() -> None:
    assert Look(ASCII).plain("4P → 5P · ×20 – −10 min …").isascii()
    for value in (getattr(ASCII, name) for name in ("unknown", "arrow", "live", "up", "down", "levels", "bar", "band")):
        assert value.isascii()
    assert len(ASCII.levels) == len(UNICODE.levels)
