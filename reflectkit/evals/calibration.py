"""How far probabilities can be trusted: forecasts of what comes true, their scores and reliability, with intervals by
clusters of problems; and the temperature that makes them fit best.

An event is foretold with one probability, a choice with one for each option. Shapes: C clusters, B bins, D decisions,
K options.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from reflectkit.agents.two_player import REFLECTOR_ANSWER
from reflectkit.env import LIKELY, SUCCEEDS, StepResult, Wrapper
from reflectkit.errors import ConfigError
from reflectkit.evals.stats import amount_interval, mean_interval, rate_interval
from reflectkit.eventloop import followed
from reflectkit.types import Observation, Task, ToolUse, Trajectory

ORACLE_CHOICE, BEST_CHOICES, RIGHT_ANSWERS = "oracle", "best", "answers"
"""In a step's info: the oracle's action; all best actions where there are several; and the right options of other
questions, by name.
"""
ACTION, CRITIC, ASKED = "action", "success, by the critic", "success, asked"
"""What is foretold: that an action is a best one; and success, at the start of an episode."""
FIRST_VALUE = "first_value"
"""In a line of episodes.jsonl: the critic's value of the first state."""
SUREST = 0.99
"""What a critic's value foretells at most, as a probability of success or of failure."""
SCORES = ("brier", "log_score", "calibration_error")
BINS = 10
"""Of equal width, from 0 to 1."""
DIGITS = 6
"""Of the numbers of a forecast in a file."""
COLDEST, HOTTEST = 0.05, 20.0
"""The range of a fitted temperature."""
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast of which is known what came true.

    confidence: the probability of the event, or of the likeliest option. hit: whether that came true. brier: the
    squared distance of the probabilities from what came true (Brier 1950, Monthly Weather Review 78:1): 0 to 1 of an
    event, 0 to 2 of a choice. log_score: the negative log-probability of what came true, in nats.
    """

    confidence: float
    hit: bool
    brier: float
    log_score: float

    @property
    def numbers(self) -> list[float]:
        """As a line of episodes.jsonl has it."""
        return [round(float(value), DIGITS) for value in (self.confidence, self.hit, self.brier, self.log_score)]

    @classmethod
    def read(cls, numbers: Sequence[float]) -> Forecast:
        """A forecast from its `numbers`."""
        confidence, hit, brier, log_score = numbers
        return cls(confidence, bool(hit), brier, log_score)


def _surprise(probability: float) -> float:
    """-ln p, which is finite."""
    return -math.log(max(probability, sys.float_info.min))


def event_forecast(probability: float, happened: bool) -> Forecast:
    """The forecast of an event.

    >>> event_forecast(0.75, False)
    Forecast(confidence=0.75, hit=False, brier=0.5625, log_score=1.3862943611198906)
    """
    share = probability if happened else 1 - probability
    return Forecast(probability, happened, (1 - share) ** 2, _surprise(share))


def choice_forecast(probabilities: Sequence[float], right: Sequence[int]) -> Forecast:
    """The forecast of which option is right; several that are right count as one.

    >>> choice_forecast((0.25, 0.25, 0.5), (0, 1))
    Forecast(confidence=0.5, hit=False, brier=0.5, log_score=0.6931471805599453)
    """
    likeliest = max(range(len(probabilities)), key=probabilities.__getitem__)
    share = min(1.0, math.fsum(probabilities[index] for index in right))
    wrong = math.fsum(value**2 for index, value in enumerate(probabilities) if index not in right)
    return Forecast(probabilities[likeliest], likeliest in right, wrong + (1 - share) ** 2, _surprise(share))


class Advised(Wrapper):
    """Records the best actions in each state in the step's info."""

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`. Raises ConfigError if there are no enumerated choices."""
        return followed(self.env.reset(task, seed), self._checked)

    def step(self, action: int | str | ToolUse) -> StepResult | Awaitable[StepResult]:
        """One step, with the best actions in the state before it."""
        teacher = self.env.teacher()
        best = list(teacher.best_actions())
        told: dict[str, Any] = {ORACLE_CHOICE: best[0]} | ({BEST_CHOICES: best} if len(best) > 1 else {})
        known = teacher.answers() if teacher.has("answers") else {}  # else it is the action alone
        answers = {name: list(right) for name, right in known.items() if name != LIKELY.name}
        told |= {RIGHT_ANSWERS: answers} if answers else {}
        return followed(self.env.step(action), lambda result: replace(result, info=result.info | told))

    def _checked(self, observation: Observation) -> Observation:
        if not observation.choices:
            raise ConfigError(
                f"--score-oracle compares enumerated choices, which env '{self.name}' does not have; leave it out"
            )
        return observation


def best_choices(info: Json) -> list[int]:
    """The best actions in the state before a step with this info, of an `Advised` env; none where they are unknown."""
    return list(info.get(BEST_CHOICES, [info[ORACLE_CHOICE]] if ORACLE_CHOICE in info else []))


def action_forecasts(trajectory: Trajectory) -> list[Forecast]:
    """One for each decision that has probabilities, in an `Advised` env."""
    return [
        choice_forecast(turn.decision.probabilities, best)
        for turn in trajectory.turns
        if turn.decision.probabilities and (best := best_choices(turn.info))
    ]


def answer_forecasts(trajectory: Trajectory) -> dict[str, list[Forecast]]:
    """Those of a typed reflector, by question, where the answer is known: whether the episode succeeded, and in an
    `Advised` env what its teacher knows.
    """
    forecasts: dict[str, list[Forecast]] = {}
    for turn in trajectory.turns:
        for name, shares in turn.decision.answers.items():
            question = name.removeprefix(REFLECTOR_ANSWER)
            if question == name:  # of the policy
                continue
            if question == SUCCEEDS.name:
                known = trajectory.reported_success is not None
                right = [0 if trajectory.success else 1] if known else []
            elif question == LIKELY.name:
                right = best_choices(turn.info)
            else:
                right = turn.info.get(RIGHT_ANSWERS, {}).get(question, [])
            if right:
                is_event = len(shares) == 2 and question != LIKELY.name
                forecast = event_forecast(shares[0], 0 in right) if is_event else choice_forecast(shares, right)
                forecasts.setdefault(name, []).append(forecast)
    return forecasts


def read_forecasts(episodes: Iterable[Json]) -> dict[str, dict[str, list[Forecast]]]:
    """The forecasts in lines of episodes.jsonl, by what is foretold and by task. Aborted episodes have none."""
    forecasts: dict[str, dict[str, list[Forecast]]] = {}
    for episode in episodes:
        if episode["status"] == "aborted":
            continue
        for kind, rows in episode.get("forecasts", {}).items():
            forecasts.setdefault(kind, {}).setdefault(episode["task"], []).extend(map(Forecast.read, rows))
    return forecasts


def critic_forecasts(episodes: Iterable[Json]) -> dict[str, list[Forecast]]:
    """By task, success as the critic foretells it by the value of the first state, in lines of episodes.jsonl: 0 at the
    mean return of the failures among them, 1 at that of the successes. None if one of the two is missing.
    """
    valued = [
        episode
        for episode in episodes
        if episode["status"] != "aborted" and FIRST_VALUE in episode and episode.get("success") is not None
    ]
    returns: dict[bool, list[float]] = {True: [], False: []}
    for episode in valued:
        returns[bool(episode["success"])].append(episode["return"])
    if not (returns[True] and returns[False]):
        return {}
    failure, success = fmean(returns[False]), fmean(returns[True])
    if failure == success:
        return {}
    forecasts: dict[str, list[Forecast]] = {}
    for episode in valued:
        share = (episode[FIRST_VALUE] - failure) / (success - failure)
        forecast = event_forecast(min(SUREST, max(1 - SUREST, share)), bool(episode["success"]))
        forecasts.setdefault(episode["task"], []).append(forecast)
    return forecasts


def scores(clusters: Sequence[Sequence[Forecast]]) -> dict[str, Any]:
    """The scores of forecasts by cluster, each with the ends of its 95 % interval, which are None where unknown.

    brier, log_score: means over all forecasts. calibration_error: see `calibration_error`. confidence, hits: the mean
    probability, and how often what was foretold came true. bins: see `reliability`.
    """
    every = [forecast for cluster in clusters for forecast in cluster]
    row: dict[str, Any] = {"forecasts": len(every), "clusters": len(clusters)}
    row["confidence"] = math.fsum(forecast.confidence for forecast in every) / len(every)
    row["hits"] = sum(forecast.hit for forecast in every) / len(every)
    for name in ("brier", "log_score"):
        values = [[getattr(forecast, name) for forecast in cluster] for cluster in clusters]
        mean = math.fsum(value for cluster in values for value in cluster) / len(every)
        row |= _figure(name, mean, *amount_interval(values))
    row |= _figure("calibration_error", *calibration_error(clusters))
    return row | {"bins": reliability(clusters)}


def _figure(name: str, mean: float, low: float, high: float) -> dict[str, float | None]:
    ends = (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)
    return {name: mean, f"{name}_low": ends[0], f"{name}_high": ends[1]}


def _bin(confidence: float) -> int:
    return min(BINS - 1, int(confidence * BINS))


def calibration_error(clusters: Sequence[Sequence[Forecast]]) -> tuple[float, float, float]:
    """(expected calibration error, low, high): the mean distance of the confidence from how often it came true, over
    BINS bins of equal width, each weighted by its forecasts (Naeini et al. 2015, AAAI).

    The interval is a t interval with the jackknife's standard error, leaving out one cluster at a time. Few forecasts
    make the error too large: it is above 0 even where the true one is 0.

    >>> low = Forecast(0.25, False, 0.0625, 0.288)
    >>> calibration_error([[low, low], [low, Forecast(0.25, True, 0.5625, 1.386)]])[0]
    0.0
    """
    import numpy as np

    gaps_CB, counts_C = np.zeros((len(clusters), BINS)), np.array([len(cluster) for cluster in clusters])
    for number, cluster in enumerate(clusters):
        for forecast in cluster:
            gaps_CB[number, _bin(forecast.confidence)] += forecast.hit - forecast.confidence
    error = float(abs(gaps_CB.sum(axis=0)).sum() / counts_C.sum())
    count = len(clusters)
    if count < 2:
        return error, -math.inf, math.inf
    without_C = abs(gaps_CB.sum(axis=0) - gaps_CB).sum(axis=1) / (counts_C.sum() - counts_C)
    spread = float(((without_C - without_C.mean()) ** 2).sum())
    # the t interval of `count` values with the jackknife's standard error, ((C - 1) / C * spread) ** 0.5
    pseudo_C = (count - 1) * (without_C.mean() - without_C)
    low, high = mean_interval([[float(value)] for value in pseudo_C]) if spread else (0.0, 0.0)
    return error, max(0.0, error + low), min(1.0, error + high)


def reliability(clusters: Sequence[Sequence[Forecast]]) -> list[dict[str, float]]:
    """The bins that have forecasts: their mean confidence, how often these came true, with its 95 % interval by
    cluster, and how many there are.
    """
    rows = []
    for number in range(BINS):
        inside = [[each for each in cluster if _bin(each.confidence) == number] for cluster in clusters]
        inside = [cluster for cluster in inside if cluster]
        every = [forecast for cluster in inside for forecast in cluster]
        if not every:
            continue
        hits = [[float(forecast.hit) for forecast in cluster] for cluster in inside]
        low, high = rate_interval(hits, len(every))
        rows.append(
            {
                "confidence": math.fsum(forecast.confidence for forecast in every) / len(every),
                "hits": sum(forecast.hit for forecast in every) / len(every),
                "low": low,
                "high": high,
                "forecasts": len(every),
            }
        )
    return rows


def calibration_of(episodes: Sequence[Json], cluster_of: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """`scores` of lines of episodes.jsonl, by what is foretold; empty where nothing is. cluster_of: of the tasks."""
    found = {}
    forecasts = read_forecasts(episodes)
    if of_critic := critic_forecasts(episodes):
        forecasts[CRITIC] = of_critic
    for kind, by_task in forecasts.items():
        clusters: dict[str, list[Forecast]] = {}
        for task, of_task in by_task.items():
            clusters.setdefault(cluster_of.get(task, task), []).extend(of_task)
        if every := [cluster for cluster in clusters.values() if cluster]:
            found[kind] = scores(every)
    return found


Decided = tuple[Sequence[float], Sequence[int]]
"""The probability of each option at temperature 1, and the options that are right."""


def log_scores(rows: Sequence[Decided], temperature: float) -> list[float]:
    """The log score of each decision at a temperature, in nats (D).

    >>> [round(score, 3) for score in log_scores([((0.8, 0.2), (1,))], 2.0)]
    [1.099]
    """
    import numpy as np
    from scipy.special import logsumexp

    logs = ((np.log(np.maximum(shares, sys.float_info.min)) / temperature, list(right)) for shares, right in rows)
    return [float(logsumexp(logs_K) - logsumexp(logs_K[right])) for logs_K, right in logs]


def fit_temperature(rows: Sequence[Decided]) -> float:
    """The temperature at which decisions have the best log score, from COLDEST to HOTTEST (Guo et al. 2017, ICML,
    section 4.2).

    >>> round(fit_temperature([((0.9, 0.1), (0,)), ((0.9, 0.1), (0,)), ((0.9, 0.1), (1,))]), 3)
    3.17
    """
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        return math.fsum(log_scores(rows, math.exp(log_temperature)))

    ends = math.log(COLDEST), math.log(HOTTEST)
    found = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-5})
    return math.exp(min((float(found.x), *ends), key=loss))
