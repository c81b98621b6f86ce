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
from reflectkit.evals.rows import CalibrationRow, EpisodeRow, Estimate, Json, ReliabilityBin
from reflectkit.evals.stats import amount_interval, mean_interval, rate_interval
from reflectkit.eventloop import followed
from reflectkit.types import Observation, Task, ToolUse, Trajectory, Turn

ORACLE_CHOICE, BEST_CHOICES, RIGHT_ANSWERS = "oracle", "best", "answers"
"""In a step's info: the oracle's action; all best actions where there are several; and the right options of other
questions, by name.
"""
ACTION = "action"
"""What is foretold of an action: that it is a best one."""
BY_CRITIC, BY_PLAYER = "success, by the critic", "success, asked"
"""What is foretold at the start of an episode: its success, by the critic's value or the player's answer."""
FIRST_VALUE = "first_value"
"""In a line of episodes.jsonl: the critic's value of the first state."""
SUREST = 0.99
"""What a critic's value foretells at most, as a probability of success or of failure."""
BINS = 10
"""Of equal width, from 0 to 1."""
DIGITS = 6
"""Of the numbers of a forecast in a file."""
COLDEST, HOTTEST = 0.05, 20.0
"""The range of a fitted temperature."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast of which is known what came true."""

    confidence: float
    """The probability of the event, or of the likeliest option."""
    hit: bool
    """Whether that came true."""
    brier: float
    """The squared distance of the probabilities from what came true (Brier 1950, Monthly Weather Review 78:1): 0 to 1
    of an event, 0 to 2 of a choice.
    """
    log_score: float
    """The negative log-probability of what came true, in nats."""

    @property
    def numbers(self) -> list[float]:
        """As a line of episodes.jsonl has it."""
        values = (self.confidence, self.hit, self.brier, self.log_score)
        return [round(float(value), DIGITS) for value in values]

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
    # Rounding may lift the sum of the right ones above 1
    share = min(1.0, math.fsum(probabilities[index] for index in right))
    # Brier's score: a square for each wrong option, and one for all that are right
    squares = [value**2 for index, value in enumerate(probabilities) if index not in right]
    brier = math.fsum(squares) + (1 - share) ** 2
    return Forecast(probabilities[likeliest], likeliest in right, brier, _surprise(share))


ForecastClusters = Sequence[Sequence[Forecast]]
"""Forecasts, one sequence per cluster of problems."""
TaskForecasts = dict[str, list[Forecast]]
"""Forecasts by task."""


class Advised(Wrapper):
    """Records the best actions in each state in the step's info."""

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`. Raises ConfigError if there are no enumerated choices."""
        return followed(self.env.reset(task, seed), self._checked)

    def step(self, action: int | str | ToolUse) -> StepResult | Awaitable[StepResult]:
        """One step, with the best actions in the state before it."""
        teacher = self.env.teacher()
        best = list(teacher.best_actions())
        advice: dict[str, Any] = {ORACLE_CHOICE: best[0]}
        if len(best) > 1:
            advice[BEST_CHOICES] = best
        answers = teacher.answers() if teacher.has("answers") else {}
        others = {name: list(right) for name, right in answers.items() if name != LIKELY.name}
        if others:
            advice[RIGHT_ANSWERS] = others

        def with_advice(result: StepResult) -> StepResult:
            return replace(result, info=result.info | advice)

        return followed(self.env.step(action), with_advice)

    def _checked(self, observation: Observation) -> Observation:
        if not observation.choices:
            raise ConfigError(
                f"--score-oracle compares enumerated choices, which env '{self.name}' does not have; leave it out"
            )
        return observation


def best_choices(info: Json) -> list[int]:
    """The best actions in the state before a step with this info, of an `Advised` env; none where they are unknown."""
    if BEST_CHOICES in info:
        return list(info[BEST_CHOICES])
    return [info[ORACLE_CHOICE]] if ORACLE_CHOICE in info else []


def action_forecasts(trajectory: Trajectory) -> list[Forecast]:
    """One for each decision that has probabilities, in an `Advised` env."""
    forecasts = []
    for turn in trajectory.turns:
        probabilities = turn.decision.probabilities
        best = best_choices(turn.info)
        if probabilities and best:
            forecasts.append(choice_forecast(probabilities, best))
    return forecasts


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
            right = _right_options(question, turn, trajectory)
            if not right:
                continue
            # Yes or no is an event; the likeliest action is a choice, even among two
            if len(shares) == 2 and question != LIKELY.name:
                forecast = event_forecast(shares[0], 0 in right)
            else:
                forecast = choice_forecast(shares, right)
            forecasts.setdefault(name, []).append(forecast)
    return forecasts


def _right_options(
    question: str,
    turn: Turn,
    trajectory: Trajectory,
) -> list[int]:
    """The options of a question about the state of a turn that are right; none where that is unknown."""
    if question == LIKELY.name:
        return best_choices(turn.info)
    if question == SUCCEEDS.name:
        if trajectory.reported_success is None:
            return []
        return [0] if trajectory.success else [1]
    options: list[int] = turn.info.get(RIGHT_ANSWERS, {}).get(question, [])
    return options


def read_forecasts(episodes: Iterable[EpisodeRow]) -> dict[str, TaskForecasts]:
    """The forecasts of episodes, by what is foretold and by task. Aborted episodes have none."""
    forecasts: dict[str, TaskForecasts] = {}
    for episode in episodes:
        if episode.is_aborted:
            continue
        for kind, rows in episode.forecasts.items():
            by_task = forecasts.setdefault(kind, {})
            by_task.setdefault(episode.task, []).extend(map(Forecast.read, rows))
    return forecasts


def critic_forecasts(episodes: Iterable[EpisodeRow]) -> TaskForecasts:
    """By task, success as the critic foretells it by the value of the first state: 0 at the mean return of the failures
    among the episodes, 1 at that of the successes. None if one of the two is missing.
    """
    # 1. The returns that stand for failure and success
    returns: dict[bool, list[float]] = {True: [], False: []}
    with_values = []
    for episode in episodes:
        value = episode.first_value
        if episode.is_aborted or value is None or episode.success is None:
            continue
        with_values.append((episode, value))
        returns[episode.success].append(episode.total_return)
    if not (returns[True] and returns[False]):
        return {}
    failure = fmean(returns[False])
    success = fmean(returns[True])
    if failure == success:
        return {}

    # 2. Where each value is between them
    forecasts: dict[str, list[Forecast]] = {}
    for episode, value in with_values:
        share = (value - failure) / (success - failure)
        share = min(SUREST, max(1 - SUREST, share))
        forecast = event_forecast(share, bool(episode.success))
        forecasts.setdefault(episode.task, []).append(forecast)
    return forecasts


def calibration_row(clusters: ForecastClusters) -> CalibrationRow:
    """The scores of forecasts by cluster: means over all of them, see also `calibration_error` and `reliability`."""
    forecasts = [forecast for cluster in clusters for forecast in cluster]
    briers = [[forecast.brier for forecast in cluster] for cluster in clusters]
    log_scores = [[forecast.log_score for forecast in cluster] for cluster in clusters]
    confidences = [[forecast.confidence for forecast in cluster] for cluster in clusters]
    hit_count = sum(forecast.hit for forecast in forecasts)
    error, low, high = calibration_error(clusters)
    return CalibrationRow(
        forecasts=len(forecasts),
        clusters=len(clusters),
        confidence=_mean(confidences),
        hits=hit_count / len(forecasts),
        brier=Estimate.of(_mean(briers), amount_interval(briers)),
        log_score=Estimate.of(_mean(log_scores), amount_interval(log_scores)),
        calibration_error=Estimate.of(error, (low, high)),
        bins=tuple(reliability(clusters)),
    )


def _mean(clusters: Sequence[Sequence[float]]) -> float:
    """The mean over all values."""
    values = [value for cluster in clusters for value in cluster]
    return math.fsum(values) / len(values)


def _bin(confidence: float) -> int:
    return min(BINS - 1, int(confidence * BINS))


def calibration_error(clusters: ForecastClusters) -> tuple[float, float, float]:
    """(expected calibration error, low, high): the mean distance of the confidence from how often it came true, over
    BINS bins of equal width, each weighted by its forecasts (Naeini et al. 2015, AAAI).

    The interval is a t interval with the jackknife's standard error, leaving out one cluster at a time. Few forecasts
    make the error too large: it is above 0 even where the true one is 0.

    >>> low = Forecast(0.25, False, 0.0625, 0.288)
    >>> calibration_error([[low, low], [low, Forecast(0.25, True, 0.5625, 1.386)]])[0]
    0.0
    """
    import numpy as np

    # 1. The error, from the sums of (hit - confidence) in each cluster and bin
    gaps_CB = np.zeros((len(clusters), BINS))
    counts_C = np.array([len(cluster) for cluster in clusters])
    for number, cluster in enumerate(clusters):
        for forecast in cluster:
            gaps_CB[number, _bin(forecast.confidence)] += forecast.hit - forecast.confidence
    gaps_B = gaps_CB.sum(axis=0)
    total = counts_C.sum()
    error = float(abs(gaps_B).sum() / total)
    count = len(clusters)
    if count < 2:
        return error, -math.inf, math.inf

    # 2. Its jackknife: the t interval of C values with the standard error ((C - 1) / C * spread) ** 0.5
    without_C = abs(gaps_B - gaps_CB).sum(axis=1) / (total - counts_C)
    mean = without_C.mean()
    spread = float(((without_C - mean) ** 2).sum())
    pseudo_C = (count - 1) * (mean - without_C)
    low, high = 0.0, 0.0
    if spread:
        low, high = mean_interval([[float(value)] for value in pseudo_C])
    return error, max(0.0, error + low), min(1.0, error + high)


def reliability(clusters: ForecastClusters) -> list[ReliabilityBin]:
    """The bins that have forecasts, with the interval of their hits by cluster."""
    bins = []
    for number in range(BINS):
        # The forecasts in the bin, by cluster
        inside = []
        for cluster in clusters:
            of_bin = [forecast for forecast in cluster if _bin(forecast.confidence) == number]
            if of_bin:
                inside.append(of_bin)
        if not inside:
            continue
        # How often they came true, and how likely they were called
        count = sum(map(len, inside))
        hits = [[float(forecast.hit) for forecast in cluster] for cluster in inside]
        low, high = rate_interval(hits, count)
        confidences = [[forecast.confidence for forecast in cluster] for cluster in inside]
        bins.append(ReliabilityBin(_mean(confidences), _mean(hits), low, high, count))
    return bins


def calibration_rows(
    episodes: Sequence[EpisodeRow], cluster_of: Mapping[str, str]
) -> dict[str, CalibrationRow]:
    """The scores of the episodes' forecasts, by what is foretold; empty where nothing is. cluster_of: of the tasks."""
    forecasts = read_forecasts(episodes)
    of_critic = critic_forecasts(episodes)
    if of_critic:
        forecasts[BY_CRITIC] = of_critic
    rows = {}
    for kind, by_task in forecasts.items():
        clusters: dict[str, list[Forecast]] = {}
        for task, of_task in by_task.items():
            clusters.setdefault(cluster_of.get(task, task), []).extend(of_task)
        with_forecasts = [cluster for cluster in clusters.values() if cluster]
        if with_forecasts:
            rows[kind] = calibration_row(with_forecasts)
    return rows


LabelledShares = tuple[Sequence[float], Sequence[int]]
"""The probability of each option at temperature 1, and the options that are right."""


def log_scores(rows: Sequence[LabelledShares], temperature: float) -> list[float]:
    """The log score of each decision at a temperature, in nats (D).

    >>> [round(score, 3) for score in log_scores([((0.8, 0.2), (1,))], 2.0)]
    [1.099]
    """
    import numpy as np
    from scipy.special import logsumexp

    scores = []
    for shares, right in rows:
        logs_K = np.log(np.maximum(shares, sys.float_info.min)) / temperature
        scores.append(float(logsumexp(logs_K) - logsumexp(logs_K[list(right)])))
    return scores


def fit_temperature(rows: Sequence[LabelledShares]) -> float:
    """The temperature at which decisions have the best log score, from COLDEST to HOTTEST (Guo et al. 2017, ICML,
    section 4.2).

    >>> round(fit_temperature([((0.9, 0.1), (0,)), ((0.9, 0.1), (0,)), ((0.9, 0.1), (1,))]), 3)
    3.17
    """
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        return math.fsum(log_scores(rows, math.exp(log_temperature)))

    ends = math.log(COLDEST), math.log(HOTTEST)
    minimum = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-5})
    # An end of the range may be better than a minimum inside
    return math.exp(min((float(minimum.x), *ends), key=loss))
