"""The code of ``docs/sdk.md`` runs: each block, on stand-ins with the signatures of the frameworks that it names."""

import asyncio
import enum
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from prorsa import events as ev
from prorsa.bus.publisher import Publisher
from prorsa.events import Event
from prorsa.rollout import Trajectory
from tests.bus.conftest import HubThread
from tests.rollout.conftest import tracked
from tests.rollout.test_trajectory import assert_legal

DOC = Path(__file__).parents[2] / "docs" / "sdk.md"
Space = types.SimpleNamespace


def blocks() -> dict[str, list[str]]:
    """The Python blocks of the page, by the heading that they are under."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", DOC.read_text(), flags=re.MULTILINE):
        if code := re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL):
            found[section.partition("\n")[0]] = code
    return found


@pytest.fixture
def load(hub: HubThread, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a block, with stand-ins for the modules it imports, as a module that is configured for the hub."""
    monkeypatch.setenv("PRORSA_HUB", str(hub.run_dir))
    modules = []

    def load(heading: str, index: int = 0, **stand_ins: dict[str, Any]) -> Any:
        for name, content in stand_ins.items():
            parts = name.split("__")
            for depth in range(1, len(parts) + 1):
                full = ".".join(parts[:depth])
                if full not in sys.modules:
                    monkeypatch.setitem(sys.modules, full, types.ModuleType(full))
            for key, value in content.items():
                monkeypatch.setattr(sys.modules[".".join(parts)], key, value, raising=False)
        module = types.ModuleType("tracked")
        exec(compile(blocks()[heading][index], f"{DOC}: {heading}", "exec"), module.__dict__)
        modules.append(module)
        return module

    yield load
    for module in modules:
        assert module.tracker.stats().problems == {}
        module.tracker.close()


def names(found: list[Event]) -> list[str]:
    return [ev.type_name(event) for event in found]


def test_every_block_is_tried_here() -> None:
    assert {heading: len(code) for heading, code in blocks().items()} == {
        "A trajectory": 2,
        "The sampler, steps, and weights": 1,
        "How many at a time": 1,
        "slime": 1,
        "verl": 1,
        "AReaL": 1,
        "SkyRL": 1,
    }


async def test_a_trajectory(hub: HubThread, load: Any) -> None:
    module = load("A trajectory")
    headers: list[dict[str, str]] = []
    answers = iter([Space(tool="bash", arguments="ls"), Space(tool=None)])

    async def ask(messages: list[Any], headers: dict[str, str]) -> Any:
        seen.append(headers)
        return next(answers)

    async def run(tool: str, arguments: str) -> str:
        return "a b c"

    async def start(image: str) -> Any:
        return Space(run=run)

    async def score(box: Any) -> float:
        return 0.5

    seen = headers
    task = Space(group=3, prompt=[1, 2], image="swe", messages=["do"], score=score)
    assert await module.rollout(task, Space(ask=ask), Space(start=start)) == 0.5
    found = tracked(hub, module.tracker)
    assert_legal(found)
    assert names(found) == [
        "trajectory.dispatched", "sandbox.start", "sandbox.ready", "tool.start", "tool.end",
        "reward.start", "reward.end", "trajectory.end",
    ]  # fmt: skip
    assert {key["X-Session-ID"] for key in headers} == {found[0].trajectory_id}


def test_calls(hub: HubThread, load: Any) -> None:
    module = load("A trajectory", 1)
    sample = Space(session_id="s-1", group=0, status="truncated")
    module.on_dispatch(sample)
    assert module.on_tool(sample, "bash", lambda: 7) == 7
    module.on_end(sample)
    found = tracked(hub, module.tracker)
    assert_legal(found)
    assert names(found) == ["trajectory.dispatched", "tool.start", "tool.end", "trajectory.end"]
    assert found[-1] == ev.TrajectoryEnd(trajectory_id="s-1", status="truncated")


def test_sampler_steps_and_weights(hub: HubThread, load: Any) -> None:
    module = load("The sampler, steps, and weights")
    module.on_change(Space(waiting=4, running=8, limit=8))
    trainer = Space(last_step_s=40, train=lambda _: None, push_weights=lambda: None)
    module.train_step(6, 16, list, trainer)
    found = tracked(hub, module.tracker)
    assert names(found) == [
        "sampler.state", "step.begin", "step.end", "weights.update_begin", "weights.update_begin", "weights.update_end",
    ]  # fmt: skip
    assert found[3] == ev.WeightsUpdateBegin(version="7", cache_flushed=True, expected_in_s=40.0)
    assert found[5] == ev.WeightsUpdateEnd(version="7", cache_flushed=True)


def test_slime(hub: HubThread, load: Any) -> None:
    status = enum.Enum("Status", {"COMPLETED": "completed", "TRUNCATED": "truncated"})

    async def run_agent(args: Any, sample: Any, sampling_params: dict[str, Any], t: Trajectory) -> Any:
        async with t.tool("bash"):
            sample.status = status.TRUNCATED  # type: ignore[attr-defined]
        return sample

    async def async_rm(args: Any, sample: Any) -> float:
        return 1.0

    def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> list[Any]:
        samples = [Space(group_index=0, status=None, reward=None) for _ in range(2)]

        async def gather() -> list[Any]:
            return await asyncio.gather(*(module.generate(args, sample, {}) for sample in samples))

        return asyncio.run(gather())

    module = load(
        "slime",
        my_agent={"run_agent": run_agent},
        slime__rollout__rm_hub={"async_rm": async_rm},
        slime__rollout__sglang_rollout={"generate_rollout": generate_rollout},
    )
    args = Space(rollout_batch_size=4, n_samples_per_prompt=8)
    assert [sample.reward for sample in module.generate_rollout(args, 3, None)] == [1.0, 1.0]
    found = tracked(hub, module.tracker)
    assert found[0] == ev.SamplerState(mode="sync", batch_size=32)
    assert found[1] == ev.StepBegin(step=3, target_groups=4)
    assert found[-1] == ev.StepEnd(step=3)
    assert_legal(found[2:-1])
    ends = [event for event in found if isinstance(event, ev.TrajectoryEnd)]
    assert [end.status for end in ends] == ["truncated", "truncated"]


async def test_verl(hub: HubThread, load: Any) -> None:
    registered: dict[str, type] = {}

    def register(name: str) -> Any:
        return lambda cls: registered.setdefault(name, cls)

    class ToolAgentLoop:
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> str:
            return await self._call_tool(Space(name="search"), {}, None)

        async def _call_tool(self, tool_call: Any, tools_kwargs: dict[str, Any], agent_data: Any) -> str:
            return f"found by {tool_call.name}"

    module = load(
        "verl",
        verl__experimental__agent_loop__agent_loop={"register": register},
        verl__experimental__agent_loop__tool_agent_loop={"ToolAgentLoop": ToolAgentLoop},
    )
    loop = registered["tracked_tool_agent"]()
    assert await loop.run({}, uid="u-1", raw_prompt=[]) == "found by search"
    found = tracked(hub, module.tracker)
    assert_legal(found)
    assert names(found) == ["trajectory.dispatched", "tool.start", "tool.end", "trajectory.end"]
    assert found[0].group_id == "u-1"  # type: ignore[attr-defined]


async def test_areal(hub: HubThread, load: Any) -> None:
    module = load("AReaL", areal__api__workflow_api={"RolloutWorkflow": type("RolloutWorkflow", (), {})})

    class Workflow:
        def __init__(self, result: Any) -> None:
            self.result = result

        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
            return self.result

    assert await module.TrackedWorkflow(Workflow({"rewards": 1})).arun_episode(None, {}) == {"rewards": 1}
    assert await module.TrackedWorkflow(Workflow(None)).arun_episode(None, {"query_id": "q"}) is None

    async def reward(answer: str) -> int:
        return len(answer)

    async with module.tracker.trajectory() as t:
        assert await module.tracked_reward(t, reward)("four") == 4
    found = tracked(hub, module.tracker)
    assert_legal(found)
    ends = [event.status for event in found if isinstance(event, ev.TrajectoryEnd)]
    assert ends == ["completed", "filtered", "completed"]


async def test_skyrl(hub: HubThread, load: Any) -> None:
    class Env:
        def init(self, prompt: Any) -> Any:
            return prompt

        def step(self, output: str) -> str:
            return output

    class SkyRLGymGenerator:
        async def _run_in_executor_if_available(self, func: Any, *args: Any, **kwargs: Any) -> Any:
            return await asyncio.get_running_loop().run_in_executor(None, func, *args)

        async def agent_loop(
            self, prompt: Any, env_class: str, env_extras: dict[str, Any], max_tokens: int, max_input_length: int,
            sampling_params: Any = None, trajectory_id: Any = None, inference_engine_client: Any = None,
        ) -> Any:  # fmt: skip
            env = Env()
            await self._run_in_executor_if_available(env.init, prompt)
            await self._run_in_executor_if_available(env.step, "x")
            return Space(stop_reason="length" if trajectory_id.repetition_id else "stop")

        async def generate(self, input_batch: dict[str, Any], disable_tqdm: bool = False) -> list[Any]:
            ids = input_batch["trajectory_ids"]
            return await asyncio.gather(
                *(
                    self.agent_loop(p, "gsm8k", {}, 9, 9, sampling_params=None, trajectory_id=i)
                    for p, i in zip(input_batch["prompts"], ids, strict=True)
                )
            )

    module = load("SkyRL", skyrl__train__generators__skyrl_gym_generator={"SkyRLGymGenerator": SkyRLGymGenerator})
    ids = [Space(instance_id="task-1", repetition_id=repetition) for repetition in range(2)]
    await module.TrackedGenerator().generate({"prompts": [[], []], "trajectory_ids": ids})
    found = tracked(hub, module.tracker)
    assert found[0] == ev.SamplerState(mode="sync", batch_size=2)
    assert_legal(found[1:])
    ends = {event.trajectory_id: event.status for event in found if isinstance(event, ev.TrajectoryEnd)}
    assert ends == {"task-1_0": "completed", "task-1_1": "truncated"}
    tools = [event.tool_name for event in found if isinstance(event, ev.ToolStart)]
    assert tools == ["Env", "Env"]


async def test_a_sampler_keeps_to_the_advice(load: Any, hub: HubThread) -> None:
    module = load("How many at a time")
    said = ev.Admission(
        tick_ns=0, mode="advise", limit=9, live=3, room_tokens=10**6, mean_context_tokens=5e4, reason="they hold it"
    )
    with module.advice, Publisher(hub.endpoints.ingest, "controller") as controller:
        assert module.to_dispatch(Space(limit=16, running=4)) == 12
        controller.publish(said)
        for _ in range(500):
            if module.advice.limit is not None:
                break
            await asyncio.sleep(0.02)
        assert module.to_dispatch(Space(limit=16, running=4)) == 5
        assert module.to_dispatch(Space(limit=16, running=12)) == 0
        assert module.to_dispatch(Space(limit=6, running=4)) == 2
