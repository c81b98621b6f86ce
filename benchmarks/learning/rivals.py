"""What a user may pick instead of ours: stable-baselines3 on a game's state as a vector, and a table of Q-values.

A vector is an easier task than a text: its numbers have fixed places, and a network need not learn to read. A rival
takes the number of environment steps that our default took in the same game, budget and seed. Settings are the
libraries' defaults, except:

- PPO makes the same number of updates (`n_steps`). Its default is 2,048 steps, more than some budgets have.
- Where the legal choices change, PPO is sb3-contrib's MaskablePPO.
- DQN's buffer is no larger than the budget. It has no masks, and plays three games with fixed choices.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.learning.games import ChangingChoices, State
from benchmarks.learning.learners import Budget, Learner, Training
from benchmarks.learning.values import FIRST_SEED, Values
from reflectkit.seeding import generator

PACKAGE = "sb3-contrib"
"""What brings stable-baselines3 and its PPO with masks."""
MOST_STEPS = 2048
"""`n_steps` of stable-baselines3's PPO by default."""
RATE = 0.1
"""Learning rate of Q-learning."""
EXPLORATION = (1.0, 0.05)
"""Share of random choices in Q-learning, at the first step and at the last."""


class GameEnv(gymnasium.Env[np.ndarray, int]):
    """A game for learners that read vectors. An action is the place of a choice among all that the game has."""

    def __init__(self, values: Values) -> None:
        self.game = values.game
        self.choices = all_choices(values)
        size = len(self.game.vector(values.starts[0]))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(self.choices))  # type: ignore[assignment]
        self.steps = 0

    def observation(self, state: State) -> np.ndarray:
        """What a learner reads in `state`."""
        return np.array(self.game.vector(state), np.float32)

    def legal(self, state: State) -> np.ndarray:
        """Which actions are legal in `state`."""
        options = set(self.game.options(state))
        return np.array([choice in options for choice in self.choices])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode, none of the held-out ones."""
        super().reset(seed=seed)
        self.game.reset(int(self.np_random.integers(FIRST_SEED)))
        self.steps = 0
        return self.observation(self.game.state), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a legal choice."""
        _, reward, done = self.game.step(self.choices[int(action)])
        self.steps += 1
        truncated = not done and self.steps == self.game.horizon
        return self.observation(self.game.state), reward, done, truncated, {}

    def action_masks(self) -> np.ndarray:
        """Which actions are legal now, by the name that MaskablePPO looks for."""
        return self.legal(self.game.state)


def all_choices(values: Values) -> list[str]:
    """Every choice that a game has, numbers in their order."""
    choices = {option for step in values.states.values() for option in step.options}
    return sorted(choices, key=lambda choice: (len(choice), choice))


def legal_rows(env: GameEnv, values: Values, rows: Sequence[Sequence[float]]) -> dict[State, list[float]]:
    """Rows over all actions as probabilities of the legal choices in each state."""
    place = {choice: number for number, choice in enumerate(env.choices)}
    return {
        state: [row[place[option]] for option in step.options]
        for (state, step), row in zip(values.states.items(), rows, strict=True)
    }


def best_only(row: Sequence[float]) -> list[float]:
    """1, shared by the highest values of `row`."""
    best = [value == max(row) for value in row]
    return [each / sum(best) for each in best]


def train_ppo(values: Values, budget: Budget, seed: int, steps: int) -> Training:
    """stable-baselines3's PPO, masked where the choices change."""
    from sb3_contrib import MaskablePPO
    from stable_baselines3 import PPO

    env = GameEnv(values)
    masked = isinstance(values.game, ChangingChoices)
    rollout = max(2, min(MOST_STEPS, math.ceil(steps / budget.updates)))
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You have specified a mini-batch size")  # the last one is smaller
        kind = MaskablePPO if masked else PPO
        model = kind("MlpPolicy", env, n_steps=rollout, batch_size=min(64, rollout), seed=seed, device="cpu")
        model.learn(steps)
    cpu_seconds = time.process_time() - started

    observations = torch.as_tensor(np.array([env.observation(state) for state in values.states]))
    model.policy.set_training_mode(False)
    with torch.no_grad():
        if masked:
            masks = np.array([env.legal(state) for state in values.states])
            distribution = model.policy.get_distribution(observations, action_masks=masks)
        else:
            distribution = model.policy.get_distribution(observations)
    rows = distribution.distribution.probs.tolist()
    probabilities = legal_rows(env, values, rows)
    return Training(values.sampled(probabilities), values.greedy(probabilities), model.num_timesteps, cpu_seconds)


def train_dqn(values: Values, budget: Budget, seed: int, steps: int) -> Training:
    """stable-baselines3's DQN, which takes its best choice once it has learned."""
    from stable_baselines3 import DQN

    env = GameEnv(values)
    started = time.process_time()
    model = DQN("MlpPolicy", env, buffer_size=steps, seed=seed, device="cpu")
    model.learn(steps)
    cpu_seconds = time.process_time() - started
    observations = torch.as_tensor(np.array([env.observation(state) for state in values.states]))
    with torch.no_grad():
        values_BK = model.q_net(observations)
    rows = [best_only(row) for row in values_BK.tolist()]
    probabilities = legal_rows(env, values, rows)
    return Training(values.sampled(probabilities), values.greedy(probabilities), model.num_timesteps, cpu_seconds)


def train_table(values: Values, budget: Budget, seed: int, steps: int) -> Training:
    """Q-learning with a row of values for each text, and fewer and fewer random choices."""
    game, chance = values.game, generator(seed, "q-table")
    table: dict[str, dict[str, float]] = {}

    def row(state: State) -> dict[str, float]:
        return table.setdefault(game.text(state), dict.fromkeys(game.options(state), 0.0))

    def pick(state: State, done: float) -> str:
        options = row(state)
        first, last = EXPLORATION
        if chance.random() < first + (last - first) * done:
            return chance.choice(list(options))
        return chance.choice([choice for choice, value in options.items() if value == max(options.values())])

    started = time.process_time()
    taken = 0
    while taken < steps:
        game.reset(chance.randrange(FIRST_SEED))
        for _ in range(min(game.horizon, steps - taken)):
            state = game.state
            choice = pick(state, taken / steps)
            _, reward, done = game.step(choice)
            target = reward if done else reward + max(row(game.state).values())
            options = row(state)
            options[choice] += RATE * (target - options[choice])
            taken += 1
            if done:
                break
    cpu_seconds = time.process_time() - started
    probabilities = {state: best_only(list(row(state).values())) for state in values.states}
    return Training(values.sampled(probabilities), values.greedy(probabilities), taken, cpu_seconds)


RIVALS = {
    "sb3-ppo": Learner(train_ppo, rival=True, package=PACKAGE),
    "sb3-dqn": Learner(train_dqn, rival=True, package=PACKAGE, games=("search", "ice", "blackjack")),
    "q-table": Learner(train_table, rival=True),
}
"""Learners that read no text, or read it as a name of the state."""
