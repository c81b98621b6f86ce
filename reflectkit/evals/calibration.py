"""Calibration: whether events come true as often as their forecasts say.

A forecast of an event is one probability; a forecast of a choice has one for each option. This file
makes forecasts from episodes, scores them, and fits a temperature to labelled decisions. Shapes: C
clusters of tasks, B bins, D decisions, K options.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any

from reflectkit.agents.two_player import REFLECTOR_ANSWER
from reflectkit.env import LIKELY, SUCCEEDS, StepResult, Wrapper
from reflectkit.errors import ConfigError
from reflectkit.evals.rows import CalibrationRow, EpisodeRow, Estimate, Json, ReliabilityBin
from reflectkit.evals.stats import amount_interval, mean_interval, rate_interval
from reflectkit.eventloop import followed
from reflectkit.types import Observation, Task, ToolUse, Trajectory, Turn

ORACLE_CHOICE = "oracle"
"""In a step's info: the index of the oracle's action."""
BEST_CHOICES = "best"
"""In a step's info: the indices of all best actions, if there are several."""
RIGHT_ANSWERS = "answers"
"""In a step's info: the right options of other questions, by the name of the question."""
ACTION = "action"
"""The kind of forecasts of actions: that the action is a best one."""
BY_CRITIC = "success, by the critic"
"""The kind of forecasts of success by the critic's value of the first state."""
BY_PLAYER = "success, asked"
"""The kind of forecasts of success by the player's answer at the start of an episode."""
FIRST_VALUE = "first_value"
"""In a line of episodes.jsonl: the critic's value of the first state."""
SUREST = 0.99
"""The highest probability of success or of failure in a critic's forecast."""
BINS = 10
"""The number of bins of probabilities, of equal width from 0 to 1."""
DIGITS = 6
"""The number of digits, after the point, of a forecast's numbers in a file."""
COLDEST = 0.05
"""The least fitted temperature."""
HOTTEST = 20.0
"""The greatest fitted temperature."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast, and whether it came true."""

    confidence: float
    """The probability of the event, or of the likeliest option."""
    hit: bool
    """Whether the event happened, or the likeliest option was right."""
    brier: float
    """The squared distance of the probabilities from the outcome (Brier 1950, Monthly Weather
    Review 78:1): 0 to 1 for an event, 0 to 2 for a choice.
    """
    log_score: float
    """The negative log-probability of the outcome, in nats."""

    @property
    def numbers(self) -> list[float]:
        """The four numbers of the forecast, as a line of episodes.jsonl has them."""
        values = (self.confidence, self.hit, self.brier, self.log_score)
        return [round(float(value), DIGITS) for value in values]

    @classmethod
    def read(cls, numbers: Sequence[float]) -> Forecast:
        """The forecast with these `numbers`."""
        confidence, hit, brier, log_score = numbers
        return cls(confidence, bool(hit), brier, log_score)


def _surprise(probability: float) -> float:
    """-ln p, in nats; finite even for 0."""
    return -math.log(max(probability, sys.float_info.min))


def event_forecast(probability: float, happened: bool) -> Forecast:
    """The forecast that an event happens with this probability.

    >>> event_forecast(0.75, False)
    Forecast(confidence=0.75, hit=False, brier=0.5625, log_score=1.3862943611198906)
    """
    outcome_probability = probability if happened else 1 - probability
    brier = (1 - outcome_probability) ** 2
    return Forecast(probability, happened, brier, _surprise(outcome_probability))


def choice_forecast(probabilities: Sequence[float], right: Sequence[int]) -> Forecast:
    """The forecast of which option is right.

    probabilities: of the options (K). right: indices of the right options, which count as one.

    >>> choice_forecast((0.25, 0.25, 0.5), (0, 1))
    Forecast(confidence=0.5, hit=False, brier=0.5, log_score=0.6931471805599453)
    """
    likeliest = max(range(len(probabilities)), key=probabilities.__getitem__)

    # Rounding may make the sum larger than 1
    right_probability = math.fsum(probabilities[index] for index in right)
    right_probability = min(1.0, right_probability)

    # Brier's score has a square for each wrong option, and one for all right options together
    squares = [value**2 for index, value in enumerate(probabilities) if index not in right]
    brier = math.fsum(squares) + (1 - right_probability) ** 2
    return Forecast(
        confidence=probabilities[likeliest],
        hit=likeliest in right,
        brier=brier,
        log_score=_surprise(right_probability),
    )


ForecastClusters = Sequence[Sequence[Forecast]]
"""Forecasts, one sequence per cluster of problems."""
TaskForecasts = dict[str, list[Forecast]]
"""Forecasts by task."""


class Advised(Wrapper):
    """An env whose steps have the teacher's best actions in their info."""

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`. Raises ConfigError if there are no enumerated choices."""
        return followed(self.env.reset(task, seed), self._checked)

    def step(self, action: int | str | ToolUse) -> StepResult | Awaitable[StepResult]:
        """Take a step. The info has the best actions in the state before it."""
        # 1. The best actions
        teacher = self.env.teacher()
        best = list(teacher.best_actions())
        advice: dict[str, Any] = {ORACLE_CHOICE: best[0]}
        if len(best) > 1:
            advice[BEST_CHOICES] = best

        # 2. The right options of other questions
        answers = teacher.answers() if teacher.has("answers") else {}
        right_answers = {
            name: list(right) for name, right in answers.items() if name != LIKELY.name
        }
        if right_answers:
            advice[RIGHT_ANSWERS] = right_answers

        def with_advice(result: StepResult) -> StepResult:
            return replace(result, info=result.info | advice)

        return followed(self.env.step(action), with_advice)

    def _checked(self, observation: Observation) -> Observation:
        """`observation`, which has choices. Raises ConfigError if it has none."""
        if not observation.choices:
            raise ConfigError(
                f"--score-oracle compares enumerated choices, which env '{self.name}' does not"
                " have; leave it out"
            )
        return observation


def best_choices(info: Json) -> list[int]:
    """Indices of the best actions in the state before a step with this info.

    Empty if the step was not of an `Advised` env.
    """
    if BEST_CHOICES in info:
        return list(info[BEST_CHOICES])
    if ORACLE_CHOICE in info:
        return [info[ORACLE_CHOICE]]
    return []


def action_forecasts(trajectory: Trajectory) -> list[Forecast]:
    """A forecast for each decision with probabilities, in an episode of an `Advised` env."""
    forecasts = []
    for turn in trajectory.turns:
        probabilities = turn.decision.probabilities
        best = best_choices(turn.info)
        if probabilities and best:
            forecasts.append(choice_forecast(probabilities, best))
    return forecasts


def answer_forecasts(trajectory: Trajectory) -> dict[str, list[Forecast]]:
    """The forecasts of a typed reflector, by question, as far as the right answer is known.

    Known are whether the episode succeeded and, in an `Advised` env, the answers of its teacher.
    """
    forecasts: dict[str, list[Forecast]] = {}
    for turn in trajectory.turns:
        for name, shares in turn.decision.answers.items():
            # 1. The right options of a question to the reflector
            if not name.startswith(REFLECTOR_ANSWER):
                continue
            question = name.removeprefix(REFLECTOR_ANSWER)
            right = _right_options(question, turn, trajectory)
            if not right:
                continue

            # 2. Yes or no is an event; the likeliest action is a choice, even of two
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
    """Indices of the right options of a question about the state of `turn`; empty if unknown."""
    if question == LIKELY.name:
        return best_choices(turn.info)
    if question == SUCCEEDS.name:
        if trajectory.reported_success is None:
            return []
        return [0] if trajectory.success else [1]
    options: list[int] = turn.info.get(RIGHT_ANSWERS, {}).get(question, [])
    return options


def read_forecasts(episodes: Iterable[EpisodeRow]) -> dict[str, TaskForecasts]:
    """The forecasts of episodes, by kind and by task. Aborted episodes have none."""
    forecasts: dict[str, TaskForecasts] = {}
    for episode in episodes:
        if episode.is_aborted:
            continue
        for kind, rows in episode.forecasts.items():
            by_task = forecasts.setdefault(kind, {})
            by_task.setdefault(episode.task, []).extend(map(Forecast.read, rows))
    return forecasts


def critic_forecasts(episodes: Iterable[EpisodeRow]) -> TaskForecasts:
    """By task, the critic's forecasts of success, from its values of the first states.

    A value is taken for a probability: 0 at the mean return of the episodes that failed, 1 at that
    of those that succeeded. Empty if no episode failed, or none succeeded.
    """
    # 1. The mean returns of failures and of successes
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

    # 2. The place of each value between the two
    forecasts: dict[str, list[Forecast]] = {}
    for episode, value in with_values:
        probability = (value - failure) / (success - failure)
        probability = min(SUREST, max(1 - SUREST, probability))
        forecast = event_forecast(probability, bool(episode.success))
        forecasts.setdefault(episode.task, []).append(forecast)
    return forecasts


def calibration_row(clusters: ForecastClusters) -> CalibrationRow:
    """The mean scores of all forecasts, their `calibration_error` and their `reliability`."""
    # 1. The numbers of the forecasts, by cluster
    confidences = []
    hits = []
    briers = []
    log_scores = []
    for cluster in clusters:
        confidences.append([forecast.confidence for forecast in cluster])
        hits.append([float(forecast.hit) for forecast in cluster])
        briers.append([forecast.brier for forecast in cluster])
        log_scores.append([forecast.log_score for forecast in cluster])

    # 2. Their means, with intervals
    error, low, high = calibration_error(clusters)
    return CalibrationRow(
        forecasts=sum(map(len, clusters)),
        clusters=len(clusters),
        confidence=_mean(confidences),
        hits=_mean(hits),
        brier=Estimate.of(_mean(briers), amount_interval(briers)),
        log_score=Estimate.of(_mean(log_scores), amount_interval(log_scores)),
        calibration_error=Estimate.of(error, (low, high)),
        bins=tuple(reliability(clusters)),
    )


def _mean(clusters: Sequence[Sequence[float]]) -> float:
    """The mean over the values of all clusters."""
    values = list(chain.from_iterable(clusters))
    return math.fsum(values) / len(values)


def _bin(confidence: float) -> int:
    """The number of the bin with this probability."""
    return min(BINS - 1, int(confidence * BINS))


def calibration_error(clusters: ForecastClusters) -> tuple[float, float, float]:
    """(expected calibration error, low end, high end of its 95 % interval).

    The error is the mean distance, over BINS bins, between the mean probability of a bin and the
    share of its forecasts that came true. Bins are weighted by their forecasts (Naeini et al. 2015,
    AAAI). Few forecasts make the error too large: it is above 0 even if the true one is 0.

    The interval is a t interval with the jackknife's standard error, leaving out one cluster at a
    time.

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

    # 2. The jackknife: the errors without each cluster, and their sum of squares S
    errors_without_C = abs(gaps_B - gaps_CB).sum(axis=1) / (total - counts_C)
    mean = errors_without_C.mean()
    squares = float(((errors_without_C - mean) ** 2).sum())

    # 3. The t interval of C pseudo-values, whose standard error is sqrt((C - 1) / C * S)
    pseudo_values_C = (count - 1) * (mean - errors_without_C)
    low, high = 0.0, 0.0
    if squares:
        low, high = mean_interval([[float(value)] for value in pseudo_values_C])
    return error, max(0.0, error + low), min(1.0, error + high)


def reliability(clusters: ForecastClusters) -> list[ReliabilityBin]:
    """The bins that have forecasts. The interval of the share that came true is by cluster."""
    bins = []
    for number in range(BINS):
        # 1. The forecasts in the bin, by cluster
        in_bin = []
        for cluster in clusters:
            forecasts = [forecast for forecast in cluster if _bin(forecast.confidence) == number]
            if forecasts:
                in_bin.append(forecasts)
        if not in_bin:
            continue

        # 2. Their mean probability, and the share that came true
        count = sum(map(len, in_bin))
        confidences = [[forecast.confidence for forecast in cluster] for cluster in in_bin]
        hits = [[float(forecast.hit) for forecast in cluster] for cluster in in_bin]
        low, high = rate_interval(hits, count)
        bins.append(ReliabilityBin(_mean(confidences), _mean(hits), low, high, count))
    return bins


def calibration_rows(
    episodes: Sequence[EpisodeRow], cluster_of: Mapping[str, str]
) -> dict[str, CalibrationRow]:
    """The scores of the episodes' forecasts, by kind. cluster_of: the cluster of each task."""
    # 1. The forecasts of each kind, by task
    forecasts = read_forecasts(episodes)
    from_critic = critic_forecasts(episodes)
    if from_critic:
        forecasts[BY_CRITIC] = from_critic

    # 2. The scores of each kind, by cluster
    rows = {}
    for kind, by_task in forecasts.items():
        clusters: dict[str, list[Forecast]] = {}
        for task, task_forecasts in by_task.items():
            cluster = cluster_of.get(task, task)
            clusters.setdefault(cluster, []).extend(task_forecasts)
        with_forecasts = [cluster for cluster in clusters.values() if cluster]
        if with_forecasts:
            rows[kind] = calibration_row(with_forecasts)
    return rows


LabelledShares = tuple[Sequence[float], Sequence[int]]
"""A decision: the probability of each option at temperature 1 (K), and the right options' indices.
"""


def log_scores(rows: Sequence[LabelledShares], temperature: float) -> list[float]:
    """The log score of each decision (D) at a temperature, in nats.

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
    """The temperature, from COLDEST to HOTTEST, at which the decisions have the best log score.

    Guo et al. 2017, ICML, section 4.2.

    >>> round(fit_temperature([((0.9, 0.1), (0,)), ((0.9, 0.1), (0,)), ((0.9, 0.1), (1,))]), 3)
    3.17
    """
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        return math.fsum(log_scores(rows, math.exp(log_temperature)))

    ends = math.log(COLDEST), math.log(HOTTEST)
    minimum = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-5})
    # The search finds a minimum inside the range; an end may be better
    candidates = (float(minimum.x), *ends)
    return math.exp(min(candidates, key=loss))
