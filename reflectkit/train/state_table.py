"""A table of what each choice led to in states that recur, from which the policy also learns.

A policy gradient learns from what was just sampled. A choice that has become unlikely is hardly
sampled again, even where it would pay now, and what a rare episode found is soon lost. A table
forgets nothing. It counts rewards and following states of each choice. Value iteration on these
counts says what is best, with a bonus for what was rarely tried (MBIE-EB, Strehl and Littman 2008).
The policy is drawn towards the softmax of these values. A state that is met for the first time has
hardly any weight, so where no text recurs, nothing changes.

A text may tell less than the state. Most often it leaves out the time: a late success may pay less,
and a horizon ends all. So a state also has values at each step, which begin at those that it has at
any step, as these begin at the critic's value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reflectkit.train.advantages import SPREAD, deviation, returns_to_go
from reflectkit.train.novelty import key
from reflectkit.types import ChoiceTarget, Observation, Trajectory

TEMPERATURE = 0.05
"""Of the softmax in a state that was hardly met, in standard deviations of the returns. A pull
towards a softmax is bounded. One towards ever better choices, in proportion to the policy, was not:
it settled on the table's errors.
"""
LEAST_TEMPERATURE = 0.005
"""In a state that was met very often: where choices that cost little are left, they add up over a
long game.
"""
COOLING_VISITS = 25.0
"""After how many visits of each choice the square of the temperature has halved. The error of a mean
shrinks as the root of the visits, and so does the temperature.
"""
PRIOR_VISITS = 1.0
"""How many visits of a choice the critic's value of its state counts as."""
STEP_PRIOR_VISITS = 5.0
"""How many visits of a choice at one step its value at any step counts as."""
VISITS = 8.0
"""How many visits for each of its choices give a state half of the whole weight."""
FIRST_BONUS = 1.0
"""What an untried choice is worth at the start of a run beyond the value of its state, in standard
deviations of the returns.
"""
PRIOR_RATE = 0.5
"""How far the critic's value of a state moves at each visit to the latest one."""
SCALE_RATE = 0.2
"""How far the standard deviation of returns moves in an update to the update's."""
DISCOUNT = 0.99
"""Of what follows, besides --gamma: of two ways to the same end the shorter is better. Without it,
all choices that lose nothing are equal, and greedy play may go round in circles.
"""
SWEEPS = 3
"""How often an update backs up the values of its episodes."""
MOST_STATES = 100_000
"""States beyond these are not remembered, nor are states at a step."""


@dataclass
class Outcomes:
    """What a choice led to in a state."""

    visits: int = 0
    reward: float = 0.0
    """The sum over visits."""
    following: dict[str, int] = field(default_factory=dict)
    """How often each state followed, by its name. The episode ended at the other visits."""
    value: float = 0.0
    """The mean of the rewards and of the discounted values of the states that followed."""

    def towards(self, prior: float, prior_visits: float) -> float:
        """The value, with a prior that counts as `prior_visits`."""
        total = self.visits * self.value + prior_visits * prior
        return total / (self.visits + prior_visits)


@dataclass
class State:
    """A state that was met, at any step or at one."""

    choice_count: int
    prior: float
    """The critic's value, or without a critic the return: a moving average over visits."""
    outcomes: dict[int, Outcomes] = field(default_factory=dict)
    """By the place of a choice among the sorted ones; untried choices are missing."""
    value: float = 0.0
    """That of the best choice, with bonuses."""


@dataclass(frozen=True)
class Visit:
    """A decision: its state at any step and at this one, and what its choice led to in both."""

    state: State
    outcomes: Outcomes
    state_then: State
    outcomes_then: Outcomes


StateNames = list[tuple[str, str]]
"""The names of the states of an episode: at any step, and at the step at which it was met."""


class StateTable:
    """What choices led to, by states.

    weight: of the divergence from the table's policy, in a state that was met very often; 0:
    nothing is counted. gamma: discount factor.
    """

    def __init__(self, weight: float, gamma: float = 1.0) -> None:
        self.weight = weight
        self.gamma = gamma * DISCOUNT
        self.states: dict[str, State] = {}
        """States at any step, by their `key`, and at one step, by `key` and step."""
        self.scale = 0.0
        """The standard deviation of returns, a moving average over updates; 0 before they differ."""
        self.bonus = 0.0
        """What an untried choice is worth now beyond the value of its state, in units of reward."""

    def learn(self, fresh: Sequence[Trajectory], explores: float) -> None:
        """Count the transitions of an update's episodes, and back up the values of their states.

        explores: the share of the first bonus that is left, 0 … 1.
        """
        if not self.weight:
            return
        # 1. The scale of returns
        returns = []
        for trajectory in fresh:
            rewards = [turn.reward for turn in trajectory.turns]
            returns.append(returns_to_go(rewards, self.gamma))
        self._follow([value for row in returns for value in row])
        self.bonus = FIRST_BONUS * explores * self._unit

        # 2. States, and what choices led to
        paths = [_path(trajectory) for trajectory in fresh]
        for trajectory, path, row in zip(fresh, paths, returns, strict=True):
            self._meet(trajectory, path, row)
        visits = []
        for trajectory, path in zip(fresh, paths, strict=True):
            visits.append(self._count(trajectory, path))

        # 3. Values, from the end of each episode to its start
        for _ in range(SWEEPS):
            for episode in visits:
                for visit in reversed(episode):
                    self._back_up(visit)

    def targets(self, trajectory: Trajectory) -> list[ChoiceTarget | None]:
        """The table's policy for each decision of `trajectory`; None for states that it does not
        have.
        """
        pairs = zip(trajectory.turns, _path(trajectory), strict=True)
        return [self._target(turn.observation, names) for turn, names in pairs]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds, as JSON values."""
        states: dict[str, Any] = {}
        for name, state in self.states.items():
            outcomes = {
                str(place): [each.visits, each.reward, each.following, each.value]
                for place, each in state.outcomes.items()
            }
            states[name] = [state.choice_count, state.prior, outcomes, state.value]
        return {"scale": self.scale, "states": states}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned. Raises KeyError, TypeError or ValueError for something
        else.
        """
        self.scale = float(state["scale"])
        self.states = {}
        for name, (choice_count, prior, rows, value) in state["states"].items():
            outcomes = {}
            for place, (visits, reward, following, mean) in rows.items():
                counts = {str(after): int(count) for after, count in following.items()}
                outcomes[int(place)] = Outcomes(int(visits), float(reward), counts, float(mean))
            self.states[str(name)] = State(int(choice_count), float(prior), outcomes, float(value))

    @property
    def _unit(self) -> float:
        """The scale of returns, 1 before it is known."""
        return self.scale or 1.0

    def _follow(self, returns: Sequence[float]) -> None:
        """Move the scale towards that of `returns`, the first time all the way. Nothing changes if
        they are all equal.
        """
        if not returns or max(returns) - min(returns) <= SPREAD:
            return
        rate = SCALE_RATE if self.scale else 1.0
        self.scale = (1 - rate) * self.scale + rate * deviation(returns)

    def _meet(self, trajectory: Trajectory, path: StateNames, returns: Sequence[float]) -> None:
        """Have the states of `trajectory`, unless the table is full."""
        for turn, names, return_to_go in zip(trajectory.turns, path, returns, strict=True):
            value = turn.decision.value
            prior = return_to_go if value is None else value
            choice_count = len(turn.observation.choices)
            for name in names:
                if name in self.states:
                    state = self.states[name]
                    state.prior = (1 - PRIOR_RATE) * state.prior + PRIOR_RATE * prior
                elif choice_count and len(self.states) < MOST_STATES:
                    self.states[name] = State(choice_count, prior)

    def _count(self, trajectory: Trajectory, path: StateNames) -> list[Visit]:
        """Count the transitions of `trajectory`. Returns its decisions, without those in states
        that the table does not have.
        """
        visits = []
        turns = trajectory.turns
        for step, (turn, names) in enumerate(zip(turns, path, strict=True)):
            if any(name not in self.states for name in names):
                continue
            after = turns[step + 1] if step + 1 < len(turns) else None
            names_after = path[step + 1] if after else (None, None)
            place = sorted(turn.observation.choices).index(turn.action_text)

            # At any step, and at this one
            counted = []
            for name, name_after in zip(names, names_after, strict=True):
                state = self.states[name]
                outcomes = state.outcomes.setdefault(place, Outcomes())
                outcomes.visits += 1
                outcomes.reward += turn.reward
                if name_after in self.states:
                    seen = outcomes.following.get(name_after, 0)
                    outcomes.following[name_after] = seen + 1
                elif after is not None:  # a full table has the critic's value of it
                    outcomes.reward += self.gamma * (after.decision.value or 0.0)
                counted.append((state, outcomes))
            visits.append(Visit(*counted[0], *counted[1]))
        return visits

    def _back_up(self, visit: Visit) -> None:
        """The values of a decision's choice and state, by those of the states that followed."""
        visit.outcomes.value = self._mean(visit.outcomes)
        visit.state.value = max(self._values(visit.state))
        visit.outcomes_then.value = self._mean(visit.outcomes_then)
        visit.state_then.value = max(self._values(visit.state, visit.state_then))

    def _mean(self, outcomes: Outcomes) -> float:
        """The value of a choice, by its outcomes."""
        total = outcomes.reward
        for after, count in outcomes.following.items():
            total += self.gamma * count * self.states[after].value
        return total / outcomes.visits

    def _values(self, state: State, state_then: State | None = None) -> list[float]:
        """The value of each choice, by its place, with the bonus divided by the root of its visits
        and one.

        state_then: the state at one step, for the values at that step.
        """
        values = []
        for place in range(state.choice_count):
            # 1. At any step
            value = state.prior
            visits = 0
            if place in state.outcomes:
                outcomes = state.outcomes[place]
                value = outcomes.towards(value, PRIOR_VISITS)
                visits = outcomes.visits

            # 2. At one step
            if state_then is not None and place in state_then.outcomes:
                value = state_then.outcomes[place].towards(value, STEP_PRIOR_VISITS)
            values.append(value + self.bonus / math.sqrt(visits + 1))
        return values

    def _target(self, observation: Observation, names: tuple[str, str]) -> ChoiceTarget | None:
        """The table's policy in a state at a step, by its names; None if it does not have it."""
        name, name_then = names
        if name not in self.states or name_then not in self.states:
            return None
        # 1. The temperature, and the weight, by the visits
        state = self.states[name]
        visits = sum(outcomes.visits for outcomes in state.outcomes.values())
        cooling = COOLING_VISITS * state.choice_count
        temperature = TEMPERATURE * math.sqrt(cooling / (cooling + visits))
        temperature = max(temperature, LEAST_TEMPERATURE) * self._unit
        share = visits / (visits + VISITS * state.choice_count)

        # 2. The softmax, by place
        values = self._values(state, self.states[name_then])
        best = max(values)
        exponentials = [math.exp((value - best) / temperature) for value in values]
        total = sum(exponentials)

        # 3. In the order of the state's choices
        places = {choice: place for place, choice in enumerate(sorted(observation.choices))}
        probabilities = tuple(exponentials[places[each]] / total for each in observation.choices)
        return ChoiceTarget(probabilities, self.weight * share)


def _path(trajectory: Trajectory) -> StateNames:
    """The names of the states of `trajectory`."""
    path = []
    for step, turn in enumerate(trajectory.turns):
        name = key(turn.observation)
        path.append((name, f"{name} {step}"))
    return path
