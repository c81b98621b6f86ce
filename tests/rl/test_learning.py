"""Rows, the learner and the loop: what is trained is what was sampled, and every algorithm learns."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.core.errors import DivergedError, EnvironmentFailure, ReflectkitError
from reflectkit.core.prompts import label, policy_prompt
from reflectkit.core.protocols import Context, StepResult
from reflectkit.core.rollout import Episode, rollout
from reflectkit.core.types import Decision, Message, Observation, Sample, Status, Task, Trajectory, Turn
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.taxi import Taxi
from reflectkit.models.load import Player, save_player
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.models.tokens import label_ids
from reflectkit.rl import batch
from reflectkit.rl.algorithms import Objective, objective
from reflectkit.rl.critic import Critic
from reflectkit.rl.curriculum import Curriculum, draw
from reflectkit.rl.learner import Learner, Settings
from reflectkit.rl.logprobs import Unit, minibatches, packed, score, units
from reflectkit.rl.loop import Level, Plan, Trainer
from reflectkit.rl.losses import weighted_loss
from reflectkit.rl.replay import Replay


def play(policy: Player, reflector: Player | None = None, count: int = 12, **settings: Any) -> list[Trajectory]:
    tasks = Taxi.tasks("full")[:: 300 // count]
    agent = TwoPlayerAgent(policy, Reflector(reflector, max_new_tokens=5) if reflector else None, **settings)
    return rollout([Episode(task, index) for index, task in enumerate(tasks)], lambda: make("taxi", 10), agent)


def rows_of(policy: Player, played: Sequence[Trajectory], values: list[list[float]] | None = None) -> list[Sample]:
    kept = batch.trainable(played)
    found = objective("ppo" if values else "reinforce").estimate(kept, [], values or [])
    return batch.rows(kept, found.advantages, found.returns, {6: label_ids(policy.tokenizer, 6)}, values)


@pytest.mark.parametrize("with_reflector", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ratio_starts_at_exactly_one(
    policy: Player, reflector_player: Player, with_reflector: bool, temperature: float
) -> None:
    played = play(policy, reflector_player if with_reflector else None, 15, temperature=temperature, reflect_prob=0.5)
    samples = rows_of(policy, played)
    learner = Learner(policy, Settings(learning_rate=1e-3, minibatch=10_000, temperature=temperature))
    figures = learner.update(samples, random.Random(0))
    assert figures["ratio_deviation"] < 1e-5
    assert figures["gradient_norm"] > 0
    assert learner.update(samples, random.Random(0))["ratio_deviation"] > 1e-4  # the weights have moved


def test_rows_hold_what_was_sampled(policy: Player) -> None:
    played = play(policy)
    samples = rows_of(policy, played)
    assert len(samples) == sum(len(trajectory.turns) for trajectory in played)
    first, turn = samples[0], played[0].turns[0]
    labels = label_ids(policy.tokenizer, 6)
    assert first.tokens == (
        *policy.tokenizer(policy_prompt(turn.observation))["input_ids"],
        labels[int(turn.decision.action)],
    )
    assert first.loss_mask == (0,) * (len(first.tokens) - 1) + (1,)
    assert first.logprobs[-1] == turn.decision.logprobs[0]
    assert first.returns[-1] == pytest.approx(played[0].total_return)
    assert not any(first.advantages[:-1])


def test_text_turns_make_one_row_while_the_prompt_grows() -> None:
    def turn(prompt: tuple[int, ...], written: tuple[int, ...]) -> Turn:
        return Turn(
            Observation((Message("user", "?"),)), Decision("a", None, prompt, written, (-0.5,) * len(written)), 1.0
        )

    task = Task("t", "e", "l", "g", {})
    turns = (turn((1, 2), (3, 4)), turn((1, 2, 3, 4, 5), (6,)), turn((9,), (7, 8)))  # the third prompt was rebuilt
    played = [Trajectory(task, 0, turns, Status.COMPLETED, True)]
    first, second = batch.rows(played, [[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]], {}, [[0.1, 0.2, 0.3]])
    assert first.tokens == (1, 2, 3, 4, 5, 6)
    assert first.loss_mask == (0, 0, 1, 1, 0, 1)
    assert first.decisions == (-1, -1, 0, 0, -1, 1)
    assert first.advantages == (0, 0, 1, 1, 0, 2)
    assert first.returns == (0, 0, 4, 4, 0, 5)
    assert first.values == (0, 0, 0.1, 0.1, 0, 0.2)
    assert (second.tokens, second.loss_mask, second.choices) == ((9, 7, 8), (0, 1, 1), ())


def test_adjacent_decisions_of_equal_returns_are_weighted_apart(policy: Player) -> None:
    """Two decisions with nothing between them, each half as likely as when it was sampled, weigh a half each, not a
    quarter.
    """
    stub = Sample(
        (5, 6, 7), (0, 1, 1), (-1, 0, 1), (0.0,) * 3, (0.0, 1.0, 1.0), (0.0, 2.0, 2.0), (), (), "g", replayed=True
    )
    with torch.no_grad():
        now = score(policy.model, [stub], units([stub]), policy.pad_id, 1.0).logprob_N.tolist()
    older = replace(stub, logprobs=(0.0, *(logprob + math.log(2) for logprob in now)))
    settings = Settings(learning_rate=1e-9, loss=weighted_loss)
    figures = Learner(policy, settings).update([older], random.Random(0))
    assert figures["loss"] == pytest.approx(-0.5 * sum(now) / 2, rel=1e-4)


def test_minibatches_cut_units_where_they_must() -> None:
    parts = [Unit((1,), (2, 3), (0, 4, 5)), Unit((2,), (), (1,)), Unit((3,), (2, 3), (2, 3, 6))]
    cut = minibatches(parts, 3)  # 7 rows: 2, 2 and 3
    assert [[unit.rows for unit in minibatch] for minibatch in cut] == [[(0, 4)], [(5,), (1,)], [(2, 3, 6)]]
    assert cut[1][0] == Unit((1,), (2, 3), (5,))
    assert minibatches(parts, 1) == [parts]


def test_aborted_episodes_are_never_trained_on_or_replayed(policy: Player) -> None:
    played = play(policy)
    spoiled = [replace(trajectory, status=Status.ABORTED, success=True) for trajectory in played[:-1]]
    kept = batch.trainable([*spoiled, played[-1]])
    assert kept == [played[-1]]
    assert len(rows_of(policy, [*spoiled, played[-1]])) == len(played[-1].turns)
    buffer = Replay(5)
    buffer.add(spoiled)
    assert len(buffer) == 0


def test_replay_keeps_the_last_successes() -> None:
    task = Task("t", "e", "l", "g", {})
    played = [Trajectory(task, number, (), Status.COMPLETED, number % 2 == 0) for number in range(9)]
    buffer = Replay(3)
    buffer.add(played)
    assert [trajectory.seed for trajectory in buffer] == [4, 6, 8]
    buffer.clear()
    assert list(buffer) == []
    none = Replay(0)
    none.add(played)
    assert len(none) == 0


def test_sharing_a_prompts_forward_changes_nothing(policy: Player) -> None:
    """Ten copies of the rows give the gradient of one copy."""
    samples = rows_of(policy, play(policy, count=6))
    settings = Settings(learning_rate=0.0, minibatch=10_000, max_grad_norm=1e9)
    once = Learner(policy, settings).update(samples, random.Random(0))
    tenfold = Learner(policy, settings).update(samples * 10, random.Random(0))
    assert tenfold["gradient_norm"] == pytest.approx(once["gradient_norm"], rel=1e-4)
    assert tenfold["entropy"] == pytest.approx(once["entropy"], rel=1e-5)
    assert len(units(samples * 10)) == len({sample.tokens[:-1] for sample in samples})


def weights_after(policy: Player, samples: list[Sample], **settings: Any) -> dict[str, torch.Tensor]:
    """The policy's gradients after one update that does not move it."""
    Learner(policy, Settings(learning_rate=0.0, minibatch=10_000, max_grad_norm=1e9, **settings)).update(
        samples, random.Random(0)
    )
    return {name: weight.grad.clone() for name, weight in policy.model.named_parameters() if weight.grad is not None}


def test_micro_batches_and_checkpointed_gradients_change_nothing_but_memory(policy: Player) -> None:
    samples = rows_of(policy, play(policy, count=6))
    whole = weights_after(policy, samples)
    for settings in ({"max_tokens": 300}, {"max_tokens": 1}, {"gradient_checkpointing": True}):
        for name, gradient in weights_after(policy, samples, **settings).items():
            torch.testing.assert_close(gradient, whole[name], atol=1e-6, rtol=1e-4)


def test_micro_batches_hold_no_more_tokens_than_allowed(policy: Player) -> None:
    samples = rows_of(policy, play(policy, count=20))
    batches = packed(units(samples), 500)
    assert len(batches) > 1
    for micro in batches:
        assert max(len(unit.tokens) for unit in micro) * len(micro) <= 500
    assert sorted(row for micro in batches for unit in micro for row in unit.rows) == list(range(len(samples)))


def test_out_of_memory_halves_the_micro_batch_and_repeats(policy: Player) -> None:
    samples = rows_of(policy, play(policy, count=6))
    whole = weights_after(policy, samples)
    trunk, told = policy.model.transformer, []
    inner, limit, failures = trunk.forward, 700, []

    def forgetful(input_ids: torch.Tensor, **arguments: Any) -> Any:
        if input_ids.numel() > limit and torch.is_grad_enabled():
            failures.append(input_ids.numel())
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")
        return inner(input_ids=input_ids, **arguments)

    trunk.forward = forgetful
    settings = Settings(learning_rate=0.0, minibatch=10_000, max_grad_norm=1e9, max_tokens=2000)
    learner = Learner(policy, settings, notify=told.append)
    learner.update(samples, random.Random(0))
    assert learner.max_tokens <= 700
    assert len(told) == len(failures) == 2  # 2000, 1000
    assert "500 tokens" in told[-1]
    for name, weight in policy.model.named_parameters():
        if name in whole:
            torch.testing.assert_close(weight.grad, whole[name], atol=1e-6, rtol=1e-4)
    learner.update(samples, random.Random(0))
    assert len(told) == 2  # said once, and kept
    limit = 10
    with pytest.raises(ReflectkitError, match="a single row of"):
        learner.update(samples, random.Random(0))


def corridor_player(seed: int) -> Player:
    seen = [make("corridor").reset(task, 0) for task in Corridor.tasks("long")]
    tokenizer = build_tokenizer(
        [policy_prompt(observation) for observation in seen], [label(index) for index in range(2)]
    )
    return Player(build_model(tokenizer, 64, seed), tokenizer, "plain")


def trainer_of(
    player: Player,
    objective: Objective[Any],
    steps: int,
    levels: Sequence[Level] | None = None,
    critic: Critic | None = None,
    replay: int = 0,
    threshold: float | None = None,
    episodes: int = 12,
    **settings: Any,
) -> Trainer:
    """A trainer of `player` in the long corridor, or in `levels`."""
    known = levels or [Level("long", Corridor.tasks("long"), lambda: make("corridor", 16))]
    options = {"learning_rate": 1e-3, "entropy": 0.003, "max_grad_norm": 1.0, "loss": objective.loss}
    learner = Learner(player, Settings(**{**options, **settings}), critic)
    repeats = 4 if objective.algorithm.compares_groups(objective.settings) else 1
    plan = Plan(known, steps, episodes, objective, seed=0, width=12, repeats=repeats)
    return Trainer(plan, TwoPlayerAgent(player, critic=critic), learner, replay_size=replay, threshold=threshold)


LEARNERS: dict[str, tuple[Objective[Any], dict[str, Any]]] = {
    "reinforce": (objective("reinforce", baseline="none"), {}),
    "reinforce batch": (objective("reinforce", baseline="batch"), {}),
    "reinforce leave-one-out": (objective("reinforce", baseline="leave-one-out"), {}),
    "reinforce replay": (objective("reinforce", baseline="batch"), {"replay": 12}),
    "ppo": (objective("ppo", gae_lambda=0.9), {"epochs": 2, "minibatch": 64, "critic": ("linear", "detached")}),
    "ppo mlp shared": (
        objective("ppo"),
        {"critic": ("mlp", "shared"), "value_clip": 0.5, "target_kl": 0.05, "epochs": 2},
    ),
    "ppo separate": (objective("ppo"), {"critic": ("linear", "separate"), "critic_rate": 1e-3}),
    "ppo replay": (objective("ppo"), {"critic": ("linear", "detached"), "replay": 12}),
    "grpo": (objective("grpo"), {}),
    "grpo step": (objective("grpo", advantages="step"), {}),
    "grpo states": (objective("grpo", step_groups=1.0), {}),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_learns_corridor_from_scratch(name: str) -> None:
    algorithm, settings = LEARNERS[name]
    player = corridor_player(seed=0)
    critic = Critic(player, *settings["critic"]) if "critic" in settings else None
    trainer = trainer_of(player, algorithm, steps=30, **{**settings, "critic": critic})
    first = trainer.advance()
    for _ in range(29):
        last = trainer.advance()
    # the optimum over the six starts: 1 - 0.1 * mean(6 … 1) + 0 = 0.65; four repeats draw three starts, of 0.45 or more
    assert last["return"] > max(0.55 if trainer.plan.repeats == 1 else 0.4, float(str(first["return"])) + 0.2)
    assert last["success_rate"] == 1
    assert last["aborted"] == 0


class Spelling:
    """Free text: say the word that is asked for. One step; reward 0.5 for each letter in its place, -0.3 for
    each too many, 1 for the word itself.
    """

    name = "spelling"
    levels = ("all",)

    def reset(self, task: Task, seed: int) -> Observation:
        self._seen = Observation((Message("user", f"Say {task.data['word']}."),))
        self._word = task.data["word"]
        return self._seen

    def step(self, action: int | str) -> StepResult:
        right = sum(said == asked for said, asked in zip(str(action), self._word, strict=False))
        said_it = action == self._word
        longer = max(0, len(str(action)) - len(self._word))
        return StepResult(self._seen, float(said_it) + 0.5 * right - 0.3 * longer, True, info={"success": said_it})


@pytest.mark.parametrize("algorithm", ["reinforce", "ppo", "grpo"])
def test_learns_to_write_decisions_of_several_tokens(algorithm: str) -> None:
    tasks = [Task(word, "spelling", "all", word, {"word": word}) for word in ("abb",)]
    tokenizer = build_tokenizer(["Say", "Action", "a b\n"], [], vocabulary=262)
    player = Player(build_model(tokenizer, 64, seed=1), tokenizer, "plain")
    with torch.no_grad():  # an untrained model says all of 262 tokens; a bias towards three of them, as SFT would give
        for text in ("a", "b", "\n"):
            player.model.transformer.wte.weight[tokenizer(text)["input_ids"][0], 0] += 4.0
        player.model.transformer.ln_f.bias[0] = 1.5
    critic = Critic(player) if algorithm == "ppo" else None
    options = {"episodes": 64, "entropy": 0.01, "learning_rate": 5e-4}
    trainer = trainer_of(player, objective(algorithm), 40, [Level("all", tasks, Spelling)], critic, **options)
    trainer.agent.max_new_tokens = 6
    rates = [trainer.advance()["success_rate"] for _ in range(40)]
    assert sum(rates[:3]) / 3 < 0.3
    assert sum(rates[-3:]) / 3 > 0.5
    decisions = [turn.decision for episode in trainer._play(trainer.plan.levels[0]) for turn in episode.turns]
    assert all(len(decision.token_ids) == len(decision.logprobs) for decision in decisions)


def test_text_ratio_starts_at_one_and_the_stop_token_is_trained(policy: Player) -> None:
    task = Task("w", "spelling", "all", "w", {"word": "ab"})
    agent = TwoPlayerAgent(policy, max_new_tokens=5)
    agent._stops = frozenset(range(0, len(policy.tokenizer), 3))  # so that an untrained model comes to an end
    played = rollout([Episode(task, seed) for seed in range(6)], Spelling, agent)
    stopped = [turn.decision for one in played for turn in one.turns if turn.decision.token_ids[-1] in agent._stops]
    assert stopped
    found = objective("reinforce", baseline="none", normalize=False).estimate(played)
    samples = batch.rows(played, [[1.0]] * 6, found.returns, {})
    assert all(sample.loss_mask[-1] == 1 and sum(sample.loss_mask) == len(played[0].turns[0].decision.token_ids)
               for sample in samples[:1])  # fmt: skip
    figures = Learner(policy, Settings(learning_rate=1e-3)).update(samples, random.Random(0))
    assert figures["ratio_deviation"] < 1e-5


def test_what_is_written_does_not_depend_on_who_shares_the_batch(policy: Player) -> None:
    agent = TwoPlayerAgent(policy, max_new_tokens=20)
    agent._stops = frozenset()
    short = Observation((Message("user", "Say: ab"),), ())
    room = policy.context - len(agent._ids(policy_prompt(short))) - 3
    long = Observation((Message("user", "Say: ab" + " x" * room),), ())
    while len(agent._ids(policy_prompt(long))) > policy.context - 3:
        long = Observation((Message("user", long.text[:-1]),), ())
    alone = agent.act([short], [Context(0, 7)])[0]
    beside, cut = agent.act([short, long], [Context(0, 7), Context(0, 8)])
    assert beside.token_ids == alone.token_ids
    assert len(alone.token_ids) == 20
    assert 0 < len(cut.token_ids) <= 4


def test_old_rows_are_weighted_and_never_fresh(policy: Player) -> None:
    """A decision that the policy has since made ten times less likely weighs a tenth in REINFORCE."""
    sample = next(sample for sample in rows_of(policy, play(policy)) if abs(sample.advantages[-1]) > 0.5)
    settings = {"entropy": 0.0, "loss": weighted_loss}
    as_fresh = weights_after(policy, [sample], **settings)
    older = replace(sample, logprobs=(*sample.logprobs[:-1], sample.logprobs[-1] + math.log(10)), replayed=True)
    for name, gradient in weights_after(policy, [older], **settings).items():
        torch.testing.assert_close(gradient, as_fresh[name] / 10, atol=1e-6, rtol=1e-3)
    likelier = replace(sample, logprobs=(*sample.logprobs[:-1], sample.logprobs[-1] - math.log(10)), replayed=True)
    for name, gradient in weights_after(policy, [likelier], **settings).items():
        torch.testing.assert_close(gradient, as_fresh[name] * 1.2, atol=1e-6, rtol=1e-3)  # 10, cut at 1 + clip


def test_replayed_values_are_the_critics_of_today(policy: Player) -> None:
    critic = Critic(policy)
    learner = Learner(policy, Settings(learning_rate=1e-3), critic)
    played = play(policy, critic=critic)
    prompts = [turn.decision.prompt_ids for one in played for turn in one.turns]
    assert learner.values(prompts) == pytest.approx([0.0] * len(prompts))
    with torch.no_grad():
        critic.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    again = play(policy, critic=critic)
    recorded = [turn.decision.value for one in again for turn in one.turns]
    assert learner.values([turn.decision.prompt_ids for one in again for turn in one.turns]) == pytest.approx(
        recorded, abs=1e-4
    )
    assert len(set(recorded)) > 3


@pytest.mark.parametrize(("trunk", "moves"), [("detached", False), ("shared", True), ("separate", False)])
def test_whose_weights_the_critics_errors_move(policy: Player, trunk: str, moves: bool) -> None:
    critic = Critic(policy, "mlp", trunk)
    with torch.no_grad():
        critic.head[-1].weight.normal_(generator=torch.Generator().manual_seed(0))
    played = play(policy, critic=critic)
    values = [[turn.decision.value or 0.0 for turn in one.turns] for one in played]
    samples = [replace(sample, advantages=(0.0,) * len(sample.tokens)) for sample in rows_of(policy, played, values)]
    learner = Learner(policy, Settings(learning_rate=0.0, entropy=0.0, max_grad_norm=1e9), critic)
    learner.update(samples, random.Random(0))
    norm = sum(float(weight.grad.abs().sum()) for weight in policy.model.parameters() if weight.grad is not None)
    assert (norm > 0) == moves
    assert all(weight.grad is not None for weight in critic.head.parameters())
    if trunk == "separate":
        assert any(
            float(weight.grad.abs().sum()) > 0 for weight in critic.own_trunk.parameters() if weight.grad is not None
        )


def test_ppo_stops_early_when_it_has_moved_too_far(policy: Player) -> None:
    samples = rows_of(policy, play(policy))
    settings = Settings(learning_rate=1e-2, epochs=20, max_grad_norm=10.0)
    assert Learner(policy, settings).update(samples, random.Random(0))["gradient_steps"] == 20
    stopped = Learner(policy, replace(settings, target_kl=0.01)).update(samples, random.Random(0))
    assert stopped["gradient_steps"] < 20
    one_step = Learner(policy, replace(settings, epochs=2, target_kl=1e-6)).update(samples, random.Random(0))
    assert one_step["gradient_steps"] == 1  # the first has moved it, the second is not made


def test_a_loss_that_is_not_finite_stops_before_the_step(policy: Player) -> None:
    samples = [replace(sample, advantages=(math.nan,) * len(sample.tokens)) for sample in rows_of(policy, play(policy))]
    before = [weight.detach().clone() for weight in policy.model.parameters()]
    with pytest.raises(DivergedError, match="the update diverged") as caught:
        Learner(policy, Settings(learning_rate=1e-3)).update(samples, random.Random(0))
    assert len(caught.value.samples) == len(samples)
    assert all(torch.equal(old, new) for old, new in zip(before, policy.model.parameters(), strict=True))


def test_a_step_after_which_a_weight_is_not_finite_is_an_error(policy: Player) -> None:
    """The losses and gradients of a first step are finite whatever the learning rate."""
    samples = rows_of(policy, play(policy))
    with pytest.raises(DivergedError, match="a weight became NaN or infinite") as caught:
        Learner(policy, Settings(learning_rate=1e308)).update(samples, random.Random(0))
    assert len(caught.value.samples) == len(samples)


def test_a_player_with_a_weight_that_is_not_finite_is_not_saved(policy: Player, tmp_path: Path) -> None:
    for value in (math.nan, math.inf):
        with torch.no_grad():
            policy.model.transformer.ln_f.bias[0] = value
        with pytest.raises(DivergedError, match="was not written"):
            save_player(tmp_path / "checkpoint-1", policy)
    assert list(tmp_path.iterdir()) == []


def test_no_rows_no_step(policy: Player) -> None:
    empty: list[Sample] = []
    assert Learner(policy, Settings(learning_rate=1e-3)).update(empty, random.Random(0)) == {}


def test_groups_without_spread_are_dropped_and_counted() -> None:
    """Where every episode is won alike, grpo has no rows, says so, and changes nothing."""
    player = corridor_player(seed=0)
    ends = [task for task in Corridor.tasks("long") if task.data["start"] == 5]  # one step from the goal

    def sure() -> Any:
        env = make("corridor", 1)
        env.step = lambda action: StepResult(env.reset(ends[0], 0), 1.0, True, info={"success": True})  # type: ignore[method-assign]
        return env

    trainer = trainer_of(player, objective("grpo"), 2, [Level("end", ends, sure)])
    before = [weight.detach().clone() for weight in player.model.parameters()]
    figures = trainer.advance()
    assert (figures["rows"], figures["groups_without_spread"]) == (0, 1.0)
    assert all(torch.equal(old, new) for old, new in zip(before, player.model.parameters(), strict=True))


def test_a_group_starts_alike_and_plays_apart() -> None:
    seen: dict[str, set[int]] = {}

    class Watching(Corridor):
        def reset(self, task: Task, seed: int) -> Observation:
            seen.setdefault(task.id, set()).add(seed)
            return super().reset(task, seed)

    player = corridor_player(seed=0)
    from reflectkit.envs.wrappers import Horizon

    trainer = trainer_of(
        player, objective("grpo"), 2, [Level("long", Corridor.tasks("long"), lambda: Horizon(Watching(), 16))]
    )
    played = trainer._play(trainer.plan.levels[0])
    assert all(len(seeds) == 1 for seeds in seen.values())
    assert [trajectory.group for trajectory in played] == [f"0/{number}" for number in range(3) for _ in range(4)]
    assert len({trajectory.seed for trajectory in played}) == 12


def test_all_aborted_is_an_error_and_some_are_a_share() -> None:
    player = corridor_player(seed=0)

    def broken(which: Callable[[int], bool]) -> Callable[[], Any]:
        class Broken(Corridor):
            def reset(self, task: Task, seed: int) -> Observation:
                if which(int(task.data["start"])):
                    raise EnvironmentFailure("the engine is down")
                return super().reset(task, seed)

        from reflectkit.envs.wrappers import Horizon

        return lambda: Horizon(Broken(), 16)

    tasks = Corridor.tasks("long")
    half = trainer_of(player, objective("reinforce"), 2, [Level("long", tasks, broken(lambda start: start < 3))])
    assert half.advance()["aborted"] == 0.5
    assert half.counters["aborted"] == 6
    none = trainer_of(player, objective("reinforce"), 2, [Level("long", tasks, broken(lambda start: True))])
    with pytest.raises(EnvironmentFailure, match="all 12 episodes of update 1 were aborted: the engine is down"):
        none.advance()


def test_curriculum_gives_equal_steps_and_every_task_its_turn() -> None:
    equal = Curriculum(3, 7)
    began = [(equal.begin(step), equal.level) for step in range(7)]
    assert [level for _, level in began] == [0, 0, 0, 1, 1, 2, 2]
    assert [new for new, _ in began] == [False, False, False, True, False, True, False]
    tasks = [Task(str(number), "e", "l", "g", {}) for number in range(10)]
    drawn = [task.id for step in range(5) for task in draw(tasks, step, 4, seed=0)]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == sorted(task.id for task in tasks)
    assert len(draw(tasks, 0, 35, seed=0)) == 35


def test_adaptive_curriculum_moves_on_when_it_is_good_enough() -> None:
    adaptive = Curriculum(3, 100, threshold=0.6)
    levels = []
    for step, rate in enumerate([0.9, 0.9, 0.0, 0.1, 0.9, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]):
        adaptive.begin(step)
        levels.append(adaptive.level)
        adaptive.end(rate)
    # means of three: .6 passes after the third; .633 after the sixth (three of level 1); the last level is never left
    assert levels == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2]


def test_the_buffer_is_cleared_on_each_level() -> None:
    levels = [Level(name, Corridor.tasks(name), lambda name=name: make("corridor", 16)) for name in ("short", "long")]
    trainer = trainer_of(corridor_player(seed=0), objective("reinforce"), 4, levels, replay=50)
    replayed = [trainer.advance()["replayed_episodes"] for _ in range(4)]
    assert replayed[0] == replayed[2] == 0
    assert min(replayed[1], replayed[3]) > 0
    assert {trajectory.task.level for trajectory in trainer.replay} == {"long"}
