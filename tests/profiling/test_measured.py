"""Reading measured rows, matching them with profiles, and holding some back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.profiling.catalogue import CARRIED, colocated_rows, disaggregated_rows
from prorsa.cluster.profiling.measured import Form, Pool, Row, hold_back, read_rows, read_split
from prorsa.errors import InputError

SPLIT = Path(__file__).parents[2] / "benchmarks" / "latency-split.csv"

HEAD = (
    "model_path,system,backend_version,precision,mode,isl,osl,batch_size,tp_size,attention_dp_size,moe_tp_size,"
    "moe_ep_size,prefill_batch_size,prefill_num_workers,prefill_tp_size,prefill_attention_dp_size,prefill_moe_ep_size,"
    "decode_batch_size,decode_num_workers,decode_tp_size,decode_attention_dp_size,decode_moe_ep_size,"
    "silicon_ttft_ms,silicon_tpot_ms,concurrency"
)
V3_AGG = "deepseek-ai/DeepSeek-V3,h200_sxm,0.5.9,fp8,agg,8192,1024,32,8,1,8,1,,,,,,,,,,,993.69,31.97,32"
R1_AGG = V3_AGG.replace("DeepSeek-V3", "DeepSeek-R1").replace("993.69", "993.6900000001")
V3_PD = "deepseek-ai/DeepSeek-V3,h200_sxm,0.5.8,fp8,disagg,8192,1024,,,,,,1,1,8,1,1,32,1,1,8,8,29643.6,42.7,256"
QWEN = "Qwen/Qwen3-32B,h100_sxm,0.5.1,,agg,1024,128,16,4,,1,1,,,,,,,,,,,492.7,10.5,16"


def table(tmp_path: Path, *lines: str, head: str = HEAD) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join((head, *lines)) + "\n")
    return path


def row(shape: str, prompt: int, output: int, ttft_ms: float = 100.0) -> Row:
    return Row(
        shape=shape,
        system="h200_sxm",
        precision="fp8",
        version="0",
        mode="agg",
        prompt_tokens=prompt,
        output_tokens=output,
        concurrency=4,
        ttft_ms=ttft_ms,
        tpot_ms=10.0,
        mixed=Pool(Form(8), 1),
    )


def test_a_point_that_is_listed_under_v3_and_r1_counts_once(tmp_path: Path) -> None:
    rows = read_rows(table(tmp_path, V3_AGG, R1_AGG, QWEN))
    assert [(each.shape, each.concurrency, each.precision) for each in rows] == [
        ("deepseek-v3", 32, "fp8"),
        ("qwen3-32b", 16, "bf16"),
    ]


def test_rows_find_the_profiles_of_their_form(tmp_path: Path) -> None:
    rows = read_rows(table(tmp_path, V3_AGG, V3_PD, QWEN))
    matched = {request.name: len(found) for request in CARRIED if (found := colocated_rows(request, rows))}
    assert matched == {"dsv3-h200-tp8": 1, "qwen3-32b-h100-tp4": 1}
    [(found, prefill, decode)] = disaggregated_rows(rows)
    assert (found.concurrency, prefill.name, decode.name) == (256, "dsv3-h200-tp8", "dsv3-h200-dp8ep8")


def test_other_engines_are_passed_over_and_concurrency_may_be_in_the_source_note(tmp_path: Path) -> None:
    head = HEAD.replace(",concurrency", ",backend,silicon_data_source")
    lines = [V3_AGG.rsplit(",", 1)[0] + f",{engine},a.csv; silicon_concurrency=48; b" for engine in ("sglang", "vllm")]
    [only] = read_rows(table(tmp_path, *lines, head=head))
    assert only.concurrency == 48


@pytest.mark.parametrize("line", [V3_AGG.replace("993.69", "fast"), V3_AGG.replace("8192", "")])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match="line 3"):
        read_rows(table(tmp_path, QWEN, line))


def test_a_missing_table_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_rows(tmp_path / "none.csv")


keys = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([1024, 2048, 8192]), st.sampled_from([128, 512, 1024]))


@given(st.lists(keys, min_size=1, max_size=12, unique=True), st.randoms())
def test_holding_back_depends_on_the_keys_alone(chosen: list[tuple[str, int, int]], random: object) -> None:
    rows = [row(*key, ttft_ms=ttft) for key in chosen for ttft in (100.0, 5.0)]
    sides = hold_back(rows)
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert hold_back(rows) == sides == hold_back(row(*key) for key in chosen)
    for shape in {key[0] for key in chosen}:
        mine = [side for key, side in sides.items() if key[0] == shape]
        assert mine.count("held-back") == -(-len(mine) // 3)


def test_the_committed_split_is_that_of_the_rule_over_the_shipped_table() -> None:
    pytest.importorskip("aiconfigurator_core")
    from prorsa.cluster.profiling.aiconfigurator import measured_table

    split, ruled = read_split(SPLIT), hold_back(read_rows(measured_table()))
    assert {key: ruled[key] for key in split} == split


def test_a_damaged_split_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    path.write_text("shape,prompt_tokens,output_tokens,side\na,1,2,neither\n")
    with pytest.raises(InputError, match="neither"):
        read_split(path)


@pytest.mark.parametrize(
    ("form", "label"),
    [
        (Form(4), "TP4"),
        (Form(8, moe_tp=8), "TP8"),
        (Form(1, 8, 8), "DP8, TP8 experts"),
        (Form(1, 8, 1, 8), "DP8 EP8"),
        (Form(2, 4, 1, 8), "DP4 TP2 EP8"),
    ],
)
def test_forms_are_written_as_engineers_do(form: Form, label: str) -> None:
    assert form.label == label
