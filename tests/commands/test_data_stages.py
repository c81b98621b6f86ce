"""gen-trajectory, split and gen-sft: their bytes, splits, demonstrations and rows."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch

from reflectkit.agents.scripted import Demonstrator
from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.cli.main import main
from reflectkit.commands import gen_sft
from reflectkit.console import Quiet
from reflectkit.data.problems import read_records
from reflectkit.envs import make
from reflectkit.jsonl import read_json, read_jsonl, write_json, write_jsonl
from reflectkit.models.load import LoadedModel
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import Observation
from tests.command_lines import DATA_FILES, error_of, prepare
from tests.kill import hashes


def test_two_runs_give_identical_bytes_and_another_seed_does_not(taxi_data: Path, tmp_path: Path) -> None:
    again, other = prepare(tmp_path / "again"), prepare(tmp_path / "other", seed=1)
    assert hashes(again) == hashes(taxi_data)
    assert set(hashes(again)) == {*DATA_FILES, "sft_settings.json"}
    assert all(hashes(other)[name] != hashes(taxi_data)[name] for name in DATA_FILES)


def test_no_start_is_in_two_splits_and_every_start_in_one(taxi_data: Path) -> None:
    parts = [
        {record.task.group for record in read_records(taxi_data / f"{name}.json", "taxi")}
        for name in ("train", "validate", "test")
    ]
    assert [len(part) for part in parts] == [210, 60, 30]
    assert len(set.union(*parts)) == 300


def test_demonstrations_replay_and_mark_their_mistakes(taxi_data: Path) -> None:
    records = [
        record for record in read_records(taxi_data / "data_reflection_negative.json", "taxi") if record.trajectories
    ]
    assert len(records) == 57
    notes = [[step.note for step in record.trajectories[0].trajectory] for record in records]
    flat = [note for row in notes for note in row]
    assert set(flat) == {"positive", "mistake", "correction"}
    assert 0.1 < flat.count("mistake") / len(flat) < 0.25  # noise 0.2, where a harmless mistake exists
    for row in notes:
        for before, after in itertools.pairwise(row):
            assert (after == "correction") == (before == "mistake" and after != "mistake")


def test_sft_rows_are_the_prompts_that_the_agent_sees(
    taxi_data: Path, policy: LoadedModel, reflector_player: LoadedModel
) -> None:
    """Character for character, through the files, the env and the agent."""
    rows = {name: [(row["prompt"], row["completion"]) for _, row in read_jsonl(taxi_data / f"{name}.jsonl")] for name in
            ("sft", "sft_reflection", "sft_policy")}  # fmt: skip
    seen: list[Observation] = []
    read: list[str] = []
    asked: list[str] = []

    class Scripted(Reflector):
        """Reads its prompts, and then says what it is given to say."""

        given = ""

        async def comment(self, observation: Observation, seed: int) -> str:
            await super().comment(observation, seed)
            return self.given

    def overhear(module: object, args: object, inputs: dict[str, torch.Tensor]) -> None:
        asked.extend(reflector_player.tokenizer.batch_decode(inputs["input_ids"], skip_special_tokens=True))

    class Watching(Demonstrator):
        """Acts as the demonstrator did, while the two players look at the same observations."""

        async def decide(self, observation, context):
            decision = await super().decide(observation, context)
            reflector = Scripted(LocalSampler(reflector_player, frozen=True), max_new_tokens=1)
            reflector.given = decision.reflection
            sampler = LocalSampler(policy)
            for agent in (TwoPlayerAgent(sampler), TwoPlayerAgent(sampler, reflector)):
                made = await agent.decide(observation, context)
                read.append(policy.tokenizer.decode(made.prompt_ids))
            seen.append(observation)
            return decision

    records = [record for record in read_records(taxi_data / "train.json", "taxi") if record.trajectories][:1]
    hook = reflector_player.model.register_forward_pre_hook(overhear, with_kwargs=True)
    played = [
        rollout([Episode(r.task, r.trajectories[0].seed)], lambda: make("taxi", 30), Watching(0.2), width=1)[0]
        for r in records
    ]
    hook.remove()
    taken = [decision for trajectory in played for decision in [turn.decision for turn in trajectory.turns]]
    kept = [index for index, decision in enumerate(taken) if decision.note != "mistake"]
    assert len(kept) > 5
    for number, index in enumerate(kept):
        assert rows["sft"][number] == (read[2 * index], f" {taken[index].action}")
        assert rows["sft_policy"][number] == (read[2 * index + 1], f" {taken[index].action}")
    for index, decision in enumerate(taken):
        assert rows["sft_reflection"][index] == (asked[index], f" {decision.reflection}")


TABLE = """
import random
from reflectkit import Teacher

class Knows(Teacher):
    def action(self):
        return self.env.choices.index(self.env.wanted)

    def comment(self, generator):
        return f"Take the {self.env.wanted}."

class Table:
    teacher_type = Knows
    horizon = 1
    things = ["apple", "bread", "candle"]
    choices = things
    moves = True

    def reset(self, seed):
        chance = random.Random(seed)
        self.choices = chance.sample(self.things, 3) if self.moves else self.things
        self.wanted = chance.choice(self.things)
        return f"Somebody asks for the {self.wanted}."

    def step(self, choice):
        return "", float(choice == self.wanted), True

class Still(Table):
    moves = False
"""


@pytest.mark.parametrize(("name", "flags", "form"), [("Table", [], "text"), ("Still", [], "label"),
    ("Table", ["--answer", "label"], "label"), ("Still", ["--answer", "text"], "text")])  # fmt: skip
def test_choices_that_move_are_answered_in_words(name: str, flags: list[str], form: str) -> None:
    Path("table.py").write_text(TABLE)
    env = ["--env", f"table.py:{name}"]
    assert main(["gen-trajectory", *env, "--demonstrations", "20"]) == 0
    assert main(["split", *env]) == 0
    assert main(["gen-sft", *env, *flags, "--questions", "--out-dir", "rows"]) == 0
    for file in ("sft", "sft_policy", "sft_typed"):
        rows = [row for _, row in read_jsonl(Path(f"rows/{file}.jsonl"))]
        assert {row.get("answer", "label") for row in rows} == {form}
        for row in rows:
            wanted = row["prompt"].partition("asks for the ")[2].partition(".")[0]
            listed = row["prompt"].partition("Actions:\n")[2].splitlines()[:3]
            right = next(line for line in listed if line.endswith(f" {wanted}"))
            assert row["completion"] == (f" {wanted}" if form == "text" else right.removesuffix(f" {wanted}"))


ASKED = {"role": "user", "content": "Which box?"}
LOOK = {"type": "function", "function": {"name": "look", "arguments": '{"box":2}'}}
LOGGED = [
    {"messages": [ASKED, {"role": "assistant", "content": "Try\n2.", "tool_calls": [{"id": "a", **LOOK}]},
        {"role": "tool", "tool_call_id": "a", "content": "Red."}, {"role": "assistant", "content": "Box 2."}]},
    {"session": "s", "observation": {"messages": [ASKED], "replies": True},
        "decision": {"action": {"text": "<call/>", "calls": [{"name": "look", "arguments": {"box": 2}}]},
            "reflection": "Try 2."}},
    {"session": "s", "reward": 1.0},
]  # fmt: skip


@pytest.mark.parametrize("prompt", [[], ["--brief"]])
def test_demonstrated_calls_are_carried_out_again(prompt: list[str]) -> None:
    env = ["--env", "support"]
    assert main(["gen-task", *env, "--instances", "10"]) == 0
    assert main(["gen-trajectory", *env, "--level", "several", *prompt]) == 0
    assert main(["split", *env]) == 0
    assert main(["gen-sft", *env, *prompt]) == 0
    rows = [json.dumps(row) for _, row in read_jsonl(Path("data/support/sft.jsonl"))]
    assert sum("find_customer" in row for row in rows) == len(rows) > 0
    assert not [row for row in rows if "nothing was executed" in row]


def test_logged_conversations_become_rows() -> None:
    """The words before a call are the comment. Calls are written as fine-tuned models do."""
    write_jsonl(Path("log"), LOGGED)
    assert main(["gen-sft", "--env", "program:true", "--log", "log"]) == 0
    (table,) = [each for each in read_json(Path("results/1_gen-sft/report.json"))["tables"] if "Log" in each["title"]]
    assert ["rows that call, and offer no tools", "2", ""] in table["rows"]
    first = {"prompt": "User: Which box?\nAgent:", "completion": ' look {"box": 2}'}
    later = {"prompt": "\nTool look: Red.\nAgent:", "completion": " Box 2."}
    commented = {"prompt": "User: Which box?\nReflection: Try 2.\nAgent:", "completion": ' look {"box": 2}'}
    silent = {"prompt": "\nTool look: Red.\nReflection: \nAgent:", "completion": " Box 2."}
    found = {
        name: [row for _, row in read_jsonl(Path(f"data/program-true/{name}.jsonl"))] for name in ("sft", "sft_policy")
    }
    assert found["sft"] == [first | {"then": [later]}, first]
    assert found["sft_policy"] == [commented | {"then": [silent]}, commented]


def test_a_log_names_what_it_cannot_teach(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"role": "assistant", "content": "Box 2."}
    for message, told in (
        (answer | {"tool_calls": [{"function": {"name": "look", "arguments": '{"box": NaN}'}}]}, "no JSON object"),
        ({"role": "assistant", "content": "\ud83d"}, "surrogates not allowed"),
        (answer | {"weight": 0}, "weight 0"),
    ):
        Path("log").write_text(json.dumps({"messages": [ASKED, message]}))
        assert main(["gen-sft", "--env", "program:true", "--log", "log"]) == 2
        assert told in capsys.readouterr().err


@pytest.fixture
def folder(taxi_data: Path, tmp_path: Path) -> Path:
    """A data folder with taxi's training split."""
    target = tmp_path / "data" / "taxi"
    target.mkdir(parents=True)
    for name in ("train.json", "test.json"):
        shutil.copy(taxi_data / name, target / name)
    return target


def shared(folder: Path) -> dict[str, object]:
    return {"env": "taxi", "data_dir": folder.parent, "results_dir": folder.parents[1] / "results"}


def test_rows_of_fewer_problems_are_among_those_of_more(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = []
    for count in (3, 7, 0):
        out = folder / f"rows{count}"
        gen_sft.run(
            gen_sft.GenSFTConfig.from_flat(**shared(folder) | {"out_dir": out, "demonstrations": count}), Quiet()
        )
        prompts.append([row["prompt"] for _, row in read_jsonl(out / "sft.jsonl")])
    assert set(prompts[0]) < set(prompts[1]) < set(prompts[2])
    places = ["--env", "taxi", "--data-dir", str(folder.parent), "--results-dir", str(folder.parents[1] / "results")]
    assert "has 40 problems" in error_of(["gen-sft", *places, "--demonstrations", "41"], capsys)
    assert main(["gen-sft", *places]) == 0
    assert "run split" not in capsys.readouterr().out
    again = [record | {"trajectories": []} for record in read_json(folder / "train.json")]
    write_json(folder / "data_reflection_negative.json", again)  # since the split
    assert main(["gen-sft", *places, "--force"]) == 0
    assert "train.json has other demonstrations than" in capsys.readouterr().out
