"""The trainer: it learns, its curriculum and replay buffer, groups, and aborted episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.data.episodes import episode_to_json
from reflectkit.env import StepResult
from reflectkit.envs import env_class, make
from reflectkit.envs.adapters import adapt
from reflectkit.envs.corridor import Corridor
from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.evals.aggregate import player_rows
from reflectkit.evals.rows import EpisodeRow
from reflectkit.rollouts.wrappers import Checked
from reflectkit.train.algorithms import AlgorithmConfig
from reflectkit.train.critic import Critic
from reflectkit.train.curriculum import Curriculum, Level, draw
from reflectkit.train.trainer import ReplayBuffer, env_figures, summary
from reflectkit.types import NAMED, Decision, Message, Observation, Status, Task, ToolCall, ToolUse, Trajectory, Turn
from tests.examples import own_module
from tests.train.training import Spelling, build_trainer, corridor_player, favour, objective


@pytest.mark.parametrize(
    ("objective", "settings"),
    [
        (objective("reinforce"), {"replay": 12}),
        (objective("ppo", gae_lambda=0.9), {"critic": ("mlp", "shared"), "epochs": 2, "minibatch": 64}),
        (objective("grpo", step_groups=1.0), {}),
    ],
    ids=["reinforce", "ppo", "grpo"],
)
def test_learns_the_corridor_from_scratch(objective: AlgorithmConfig, settings: dict[str, Any]) -> None:
    player = corridor_player(seed=0)
    critic = Critic(player, *settings["critic"]) if "critic" in settings else None
    trainer = build_trainer(player, objective, steps=16, **{**settings, "critic": critic})
    rows = [trainer.train_step() for _ in range(16)]
    assert float(str(rows[-1]["return"])) > float(str(rows[0]["return"])) + 0.2
    assert rows[-1]["success_rate"] == 1
    assert rows[-1]["aborted"] == 0


def test_the_figures_of_an_update_by_hand() -> None:
    """The mean of 1 and 3 is 2, from which each is 1 away; what the aborted episode got does not count."""
    played = [
        Trajectory(Task("1", "e", "l", "g", {}), 0, (Turn(Observation(()), Decision(0), reward),), status, success)
        for reward, status, success in (
            (1.0, Status.COMPLETED, True),
            (3.0, Status.TRUNCATED, False),
            (9.0, Status.ABORTED, False),
        )
    ]
    figures = {"success_rate": 0.5, "return": 2.0, "return_std": 1.0, "episode_steps": 1.0, "aborted": 1 / 3}
    assert summary(played) == pytest.approx(figures)
    assert summary(played[:0])["return_std"] == 0


def test_a_figure_is_a_mean_over_the_episodes_that_it_applies_to() -> None:
    """One that was cut off before it was reported counts 0; one that it does not apply to does not count."""
    infos: list[dict[str, Any]] = [
        {"figures": {"judge": 1.0, "length": 4.0}},
        {"figures": {"length": 2.0}, "inapplicable": ["judge"]},
        {},
    ]
    task = Task("1", "e", "l", "g", {})
    seen = Observation((), ("go",))
    played = [Trajectory(task, 0, (Turn(seen, Decision(0), 0.0, info),), Status.COMPLETED, False) for info in infos]
    assert env_figures(played[:2]) == {"judge": 1.0, "length": 3.0, NAMED: ["judge", "length"]}
    assert env_figures(played) == {"judge": 0.5, "length": 2.0, NAMED: ["judge", "length"]}
    lines = [episode_to_json("p", one) | {"task": f"{number}"} for number, one in enumerate(played)]
    (row,) = player_rows([[EpisodeRow.read(line) for line in lines[:2]]])
    assert row.figures["judge"].mean == 1.0
    assert row.figures["length"].mean == 3.0


def test_an_update_has_no_success_rate_where_an_ended_episode_reports_none() -> None:
    task, ended = Task("1", "e", "l", "g", {}), Turn(Observation(()), Decision(0), 2.0, {"success": None})
    profit = Trajectory(task, 0, (ended,), Status.COMPLETED, False)
    lost = Trajectory(task, 0, (replace(ended, info={"success": False}),), Status.COMPLETED, False)
    assert "success_rate" not in summary([profit, lost])
    assert summary([lost])["success_rate"] == 0.0


def test_curriculum_gives_equal_steps_and_every_task_its_turn() -> None:
    equal = Curriculum(3)
    began = [(equal.begin(step, 7), equal.level) for step in range(7)]
    assert [level for _, level in began] == [0, 0, 0, 1, 1, 2, 2]
    assert [new for new, _ in began] == [False, False, False, True, False, True, False]
    assert (equal.begin(7, 70), equal.level) == (False, 2)  # continued: update 8 of 70 would be at the first level
    tasks = [Task(str(number), "e", "l", "g", {}) for number in range(10)]
    level = Level("l", tasks, lambda: make("corridor", 8))
    drawn = [task.id for step in range(5) for task in draw(level, step, 4, seed=0)]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == sorted(task.id for task in tasks)
    assert len(draw(level, 0, 35, seed=0)) == 35


def test_problems_without_an_end_are_new_in_each_turn() -> None:
    turns = [[Task(str(10 * turn + place), "e", "l", "g", {}) for place in range(10)] for turn in range(4)]
    level = Level("l", turns[0], lambda: make("corridor", 8), dealt=turns.__getitem__)
    drawn = [task.id for step in range(10) for task in draw(level, step, 4, seed=0)]
    assert [{*drawn[first : first + 10]} for first in range(0, 40, 10)] == [
        {task.id for task in turn} for turn in turns
    ]


def test_adaptive_curriculum_moves_on_when_it_is_good_enough() -> None:
    adaptive = Curriculum(3, advance_at=0.6)
    levels = []
    for step, rate in enumerate([0.9, 0.9, 0.0, 0.1, 0.9, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]):
        adaptive.begin(step, 100)
        levels.append(adaptive.level)
        adaptive.end(rate)
    # means of three: .6 passes after the third; .633 after the sixth (three of level 1); the last level is never left
    assert levels == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2]


def test_replay_keeps_the_last_successes() -> None:
    task = Task("t", "e", "l", "g", {})
    played = [Trajectory(task, number, (), Status.COMPLETED, number % 2 == 0) for number in range(9)]
    buffer = ReplayBuffer(3)
    buffer.add(played)
    assert [trajectory.seed for trajectory in buffer] == [4, 6, 8]
    buffer.clear()
    assert list(buffer) == []
    none = ReplayBuffer(0)
    none.add(played)
    assert len(none) == 0


def test_the_buffer_is_cleared_on_each_level() -> None:
    levels = [
        Level(name, Corridor.taskset.tasks(name), lambda name=name: make("corridor", 16)) for name in ("short", "long")
    ]
    trainer = build_trainer(corridor_player(seed=0), objective("reinforce"), 4, levels, replay=50)
    replayed = [trainer.train_step()["replayed_episodes"] for _ in range(4)]
    assert replayed[0] == replayed[2] == 0
    assert min(replayed[1], replayed[3]) > 0
    assert {trajectory.task.level for trajectory in trainer.replay} == {"long"}


def test_the_entropy_bonus_falls_to_0_over_the_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [Level("long", Corridor.taskset.tasks("long"), lambda: make("corridor", 4))]
    falling = objective("reinforce", entropy_schedule="linear")
    trainer = build_trainer(corridor_player(seed=0), falling, 4, levels)
    update, rates = trainer.learner.update, []

    def kept(samples: Any, generator: Any, rate: float, entropy_rate: float) -> Any:
        rates.append(entropy_rate)
        return update(samples, generator, rate, entropy_rate)

    monkeypatch.setattr(trainer.learner, "update", kept)
    for _ in range(4):
        trainer.train_step()
    assert rates == [1.0, 0.75, 0.5, 0.25]


def test_groups_without_spread_are_dropped_and_counted() -> None:
    """Where every episode is won alike, grpo has no rows, says so, and changes nothing."""
    player = corridor_player(seed=0)
    ends = [task for task in Corridor.taskset.tasks("long") if task.data["start"] == 5]  # one step from the goal

    def sure() -> Any:
        env = make("corridor", 1)
        env.step = lambda action: StepResult(env.reset(ends[0], 0), 1.0, True, info={"success": True})  # type: ignore[method-assign]
        return env

    trainer = build_trainer(player, objective("grpo"), 2, [Level("end", ends, sure)])
    before = [weight.detach().clone() for weight in player.model.parameters()]
    figures = trainer.train_step()
    assert (figures["rows"], figures["groups_without_spread"]) == (0, 1.0)
    assert all(torch.equal(old, new) for old, new in zip(before, player.model.parameters(), strict=True))


def test_answers_that_never_end_are_told_once() -> None:
    words = [Task(word, "spelling", "all", word, {"word": word}) for word in ("abba", "bab")]
    player, told = corridor_player(seed=0), list[str]()
    favour(player, ["a"], 9.0)
    trainer = build_trainer(player, objective("grpo"), 2, [Level("all", words, Spelling)])
    trainer.agent.max_new_tokens = 3
    trainer.learner.notify = told.append
    figures = [trainer.train_step() for _ in range(2)]
    assert [row["cut_answers"] for row in figures] == [1.0, 1.0]
    assert len(told) == 1
    assert player.tokenizer.eos_token in told[0]


def test_a_group_starts_alike_and_plays_apart() -> None:
    seen: dict[str, set[int]] = {}

    class Watching(Corridor):
        def reset(self, task: Task, seed: int) -> Observation:
            seen.setdefault(task.id, set()).add(seed)
            return super().reset(task, seed)

    player = corridor_player(seed=0)
    from reflectkit.rollouts.wrappers import Checked

    trainer = build_trainer(
        player, objective("grpo"), 2, [Level("long", Corridor.taskset.tasks("long"), lambda: Checked(Watching(), 16))]
    )
    trainer.train_step()
    played = [trajectory for trajectory, _ in trainer.latest]
    assert all(len(starts) == 1 for starts in seen.values())
    assert [trajectory.group for trajectory in played] == [f"0/{number}" for number in range(3) for _ in range(4)]
    seeds = {trajectory.seed for trajectory in played}
    assert len(seeds) == 12
    trainer.train_step()
    assert not seeds & {trajectory.seed for trajectory, _ in trainer.latest}


def test_all_aborted_is_an_error_and_some_are_a_share() -> None:
    player = corridor_player(seed=0)

    def broken(which: Callable[[int], bool]) -> Callable[[], Any]:
        class Broken(Corridor):
            def reset(self, task: Task, seed: int) -> Observation:
                if which(int(task.data["start"])):
                    raise EnvironmentFailure("the engine is down")
                return super().reset(task, seed)

        return lambda: Checked(Broken(), 16)

    tasks = Corridor.taskset.tasks("long")
    half = build_trainer(player, objective("reinforce"), 2, [Level("long", tasks, broken(lambda start: start < 3))])
    told = list[str]()
    half.learner.notify = told.append
    assert half.train_step()["aborted"] == 0.5
    half.train_step()
    assert told == ["update 1: 6 of 12 episodes aborted, the first for: the engine is down"]
    assert half.counters["aborted"] == 12
    none = build_trainer(player, objective("reinforce"), 2, [Level("long", tasks, broken(lambda start: True))])
    with pytest.raises(EnvironmentFailure, match=r"every episode of update 1 was aborted \(12\): the engine is down"):
        none.train_step()


def test_prompts_that_never_fit_are_an_error() -> None:
    """Some that do not fit end their episodes early."""
    tasks = Corridor.taskset.tasks("long")
    wordy = {tasks[0].id}

    class Wordy(Corridor):
        def reset(self, task: Task, seed: int) -> Observation:
            observation = super().reset(task, seed)
            words = (Message("user", "word " * 3000),)
            return replace(observation, messages=words) if task.id in wordy else observation

    level = Level("long", tasks, lambda: Checked(Wordy(), 16))
    trainer = build_trainer(corridor_player(seed=0), objective("reinforce"), 2, [level])
    trainer.train_step()
    wordy.update(task.id for task in tasks)
    with pytest.raises(EnvironmentFailure, match="of update 2 ended at its first prompt"):
        trainer.train_step()


def test_an_update_that_no_reward_applies_to_teaches_nothing_and_is_counted(rewards: str) -> None:
    env: Any = env_class("prompts")
    level = Level("all", [Task("1", "prompts", "all", "1", {"prompt": "Hi"})], lambda: Checked(env(reward=(rewards,))))
    player = corridor_player(0)
    before = {name: weight.clone() for name, weight in player.model.named_parameters()}
    trainer = build_trainer(player, objective("grpo"), 2, [level], episodes=4)
    figures = trainer.train_step()
    assert (figures["aborted"], figures["rows"], trainer.counters["aborted"]) == (1.0, 0, 4)
    assert all(torch.equal(weight, before[name]) for name, weight in player.model.named_parameters())


@pytest.fixture
def rewards(request: pytest.FixtureRequest) -> str:
    name = own_module(request.node)
    Path(f"{name}.py").write_text("def none(completions, **kwargs):\n    return [None]\n", encoding="utf-8")
    return f"{name}.py:none"


class Till:
    """A class with a tool that fails by its code, or tells the agent of its arguments."""

    name = "till"
    wrong: type[Exception] = RuntimeError

    def reset(self) -> str:
        return "Look."

    def look(self, box: int) -> str:
        """Looks into a box.

        Args:
            box: Its number.
        """
        raise self.wrong("it is closed")

    def get_reward(self) -> float:
        return 0.0


class Looks:
    """Looks into two boxes, and ends."""

    async def decide(self, observation: Any, context: Any) -> Decision:
        if context.turns:
            return Decision(ToolUse("Done."), prompt_ids=(1,), token_ids=(2,), logprobs=(-0.5,))
        calls = tuple(ToolCall("look", {"box": box}) for box in range(2))
        return Decision(ToolUse("", calls), prompt_ids=(1,), token_ids=(2,), logprobs=(-0.5,))


@pytest.mark.parametrize(("wrong", "ends"), [(RuntimeError, True), (NameError, True), (ValueError, False)])
def test_a_tool_whose_code_fails_in_all_its_calls_ends_the_run(wrong: type[Exception], ends: bool) -> None:
    env: Any = adapt(type("Till", (Till,), {"wrong": wrong}))
    tasks = [Task("1", "till", "all", "1", {"seed": 1})]
    level = Level("all", tasks, lambda: Checked(env(), 3))
    trainer = build_trainer(corridor_player(0), objective("reinforce"), 2, [level], episodes=4)
    trainer.agent.decide = Looks().decide  # type: ignore[method-assign]
    if ends:
        with pytest.raises(ConfigError, match=r"look\(\) raised the same error in all its 8 calls: .*it is closed"):
            trainer.train_step()
    else:
        assert trainer.train_step()["success_rate"] == 0.0
