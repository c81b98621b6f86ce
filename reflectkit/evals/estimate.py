"""Estimates of the requests to chat models and their cost, without a request (`--dry-run`).

An agent without a model plays in their place. The requests about the states that it visits are
counted, not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from reflectkit.agents.decision_players import deciding_request, further_questions, options_of
from reflectkit.agents.player_refs import Player
from reflectkit.agents.players import PlayersSetup
from reflectkit.agents.scripted import RandomAgent
from reflectkit.chat.client import THINKING_TOKENS, Request
from reflectkit.chat.config import ChatConfig, Endpoint, Prices
from reflectkit.chat.players import request_of
from reflectkit.chat.templates import ANSWER_TOKENS, playing_request, reflecting_request
from reflectkit.console import Progress, Report, Table
from reflectkit.env import Agent, Context
from reflectkit.envs.setup import EnvSetup
from reflectkit.errors import EnvironmentFailure
from reflectkit.evals.config import EvaluateConfig
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.seeding import derive
from reflectkit.tools import use_of
from reflectkit.types import Decision, Observation, Status, Task, ToolUse

SAMPLE_SIZE = 32
"""Problems of a level that are played for the estimate, if each would be played often."""
ANSWER_LENGTH = 90
"""About how many tokens a chat model writes per step."""
LONG_TEXT = " ".join(["x"] * ANSWER_TOKENS)
"""A text of the maximum length, in place of each answer and comment of a model."""
LIKELY_STEPS, LIKELY_LENGTH, LIKELY_CALLS = 2, 2, 1.1
"""Factors by which steps, the length of answers and the calls per step rarely exceed the estimate.
"""
TITLE = "Estimate from play without the models; --max-cost-usd sets a limit"


@dataclass(frozen=True)
class PlannedCalls:
    """The requests that a player would make at a level."""

    name: str
    """The name of the player."""
    level: str
    tasks: Sequence[Task]
    """The problems that are played for the estimate."""
    episodes: float
    """The number of episodes that the player would play."""
    endpoints: Sequence[Endpoint]
    """The models that the player asks."""
    ask: Callable[[Observation, Context], Sequence[Request]]
    """The requests about a state, one for each of the endpoints."""
    answer_tokens: int = ANSWER_LENGTH
    """Tokens of an answer."""
    agent: Agent = RandomAgent()
    """The agent that plays in place of the models."""
    has_real_length: bool = False
    """Whether the agent's episodes are as long as the models' would be. Otherwise each is taken to
    run to its horizon.
    """
    wrap: Callable[[Agent], Agent] = lambda agent: agent
    """Makes a player that asks the models only at some steps."""


def comment_requests(observation: Observation, context: Context) -> list[Request]:
    """The request to a chat model that comments for a trained policy."""
    return [reflecting_request(observation, Context(0, context.env))]


def decision_requests(
    observation: Observation,
    context: Context,
    endpoint: Endpoint,
    *,
    rules: bool,
    comments: bool = False,
) -> list[Request]:
    """The request to a decision model.

    rules: see `deciding_request`. comments: whether the model comments for a policy.
    """
    more = further_questions(context.env) if comments else []
    options = options_of(observation, endpoint)
    request = deciding_request(
        observation,
        context,
        endpoint,
        options,
        rules=rules,
        more=more,
    )
    return [request]


def planned_calls(
    player: Player,
    setup: PlayersSetup,
    level: str,
    tasks: Sequence[Task],
    repeats: int,
) -> PlannedCalls:
    """The requests to the chat models of `player`, if it plays each task `repeats` times."""
    endpoints = [setup.endpoint_of(model) for model in player.api_models]
    is_decision_model = bool(endpoints) and endpoints[0].decides
    tokens = setup.history_tokens

    def ask(observation: Observation, context: Context) -> list[Request]:
        # 1. A decision model, which acts or comments
        if is_decision_model:
            return decision_requests(
                observation,
                context,
                endpoints[0],
                rules=not setup.config.decisions.plain_questions,
                comments=not player.decides,
            )
        # 2. A method of the env
        if player.method:
            return [request_of(player.method, context)]
        # 3. A chat model that comments for a checkpoint
        if not player.is_asked:
            return comment_requests(observation, context)
        # 4. A chat model that acts, without or with the comments of another one
        if len(endpoints) == 1:
            return [playing_request(observation, context, None, tokens)]
        acting = playing_request(observation, context, LONG_TEXT, tokens)
        return [acting, reflecting_request(observation, context, tokens)]

    answer_tokens = ANSWER_LENGTH
    if is_decision_model:
        answer_tokens = 0  # it answers with probabilities
    elif player.method:
        answer_tokens = setup.kind.methods[player.method] // 2
    return PlannedCalls(
        name=player.name,
        level=level,
        tasks=tasks,
        episodes=len(tasks) * repeats,
        endpoints=endpoints,
        ask=ask,
        answer_tokens=answer_tokens,
        agent=Idle() if player.method else RandomAgent(),
    )


class Idle:
    """An agent that calls no tool, and answers in one word."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """An empty list of calls, or the word."""
        if observation.tools and not observation.replies:
            return Decision(use_of(()))
        return Decision(ToolUse("done") if observation.replies else "done")


class _Rehearsal:
    """An agent that plays in place of the models, and collects the requests they would get."""

    def __init__(self, calls: PlannedCalls) -> None:
        self.calls = calls
        self.requests: list[Sequence[Request]] = []

    async def decide(self, observation: Observation, context: Context) -> Decision:
        self.requests.append(self.calls.ask(observation, context))
        decision = await self.calls.agent.decide(observation, context)
        return replace(decision, answer=LONG_TEXT, reflection=LONG_TEXT)


def cost_of_playing(
    config: EvaluateConfig,
    tasks: Mapping[str, Sequence[Task]],
    progress: Progress,
) -> Report:
    """The estimate for evaluate (`--dry-run`). tasks: the problems by level."""
    setup = config.players_setup
    planned = []
    for player in config.players:
        for level, level_tasks in tasks.items():
            planned.append(planned_calls(player, setup, level, level_tasks, config.eval_reps))
    return estimate(
        "evaluate",
        config.setup,
        config.chat,
        planned,
        progress,
        config.run.seed,
    )


def estimate(
    stage: str,
    setup: EnvSetup,
    chat: ChatConfig,
    parts: Iterable[PlannedCalls],
    progress: Progress,
    seed: int,
) -> Report:
    """The estimated number of requests to chat models, their cost, and a cost that is rarely
    exceeded.

    This higher cost is of episodes with twice the steps, up to the horizon. Their answers have
    twice the length, and one in ten is asked for again. Only --max-cost-usd is a limit that
    always holds. parts: the requests of all players and levels.
    """
    # 1. The totals of each player and level: calls, prompt tokens, and two costs in US dollars
    rows: dict[tuple[str, str], list[float]] = {}
    unknown_prices = set()
    for part in parts:
        totals = rows.setdefault((part.name, part.level), [0.0] * 4)
        if not part.endpoints:
            continue
        rehearsal = _rehearse(part, setup, progress, seed)
        if not rehearsal.requests:
            continue
        for index, endpoint in enumerate(part.endpoints):
            prices = chat.prices_at(endpoint)
            requests = [at_step[index] for at_step in rehearsal.requests]
            costs = _costs(part, setup, endpoint, requests, prices)
            totals[:] = [total + cost for total, cost in zip(totals, costs, strict=True)]
            if not prices.known:
                unknown_prices.add(part.name)

    # 2. A table with a row for each
    cells = []
    for (name, level), (calls, tokens, *costs_usd) in rows.items():
        dollars = [f"{usd:.4f}" for usd in costs_usd]
        if name in unknown_prices:
            dollars = ["unknown; give --price-in and --price-out", "unknown"]
        cells.append((name, level, f"{calls:.0f}", f"{tokens:.0f}", *dollars))
    columns = ("policy", "level", "calls", "prompt tokens", "US dollars", "likely below")

    # 3. The sums over all rows
    calls, tokens, usd, likely = (sum(column) for column in zip(*rows.values(), strict=True))
    figures = {
        "calls": round(calls),
        "prompt_tokens": round(tokens),
        "usd": usd,
        "likely_usd": likely,
    }
    return Report(stage, setup.env_folder, figures, (), (Table(TITLE, columns, tuple(cells)),))


def _rehearse(
    part: PlannedCalls,
    setup: EnvSetup,
    progress: Progress,
    seed: int,
) -> _Rehearsal:
    """Play one episode of each task, and collect the requests.

    Raises EnvironmentFailure if all episodes were aborted.
    """
    rehearsal = _Rehearsal(part)
    episodes = [Episode(task, derive(seed, "evaluate", task.id, 0)) for task in part.tasks]
    with progress.bar(f"play without the models ({part.level})", len(episodes)) as bar:
        trajectories = rollout(
            episodes,
            setup.maker(part.level),
            part.wrap(rehearsal),
            width=1,
            on_end=lambda _: bar.advance(),
        )
    aborted = [trajectory for trajectory in trajectories if trajectory.status is Status.ABORTED]
    if not rehearsal.requests and len(aborted) == len(trajectories):
        raise EnvironmentFailure(f"every episode was aborted ({len(aborted)}): {aborted[0].reason}")
    return rehearsal


def _costs(
    part: PlannedCalls,
    setup: EnvSetup,
    endpoint: Endpoint,
    requests: Sequence[Request],
    prices: Prices,
) -> tuple[float, float, float, float]:
    """(calls, prompt tokens, US dollars, US dollars that are rarely exceeded) of an endpoint.

    requests: those to this endpoint in one episode of each task.
    """
    # 1. The expected number of calls, and the largest possible one
    horizon = setup.horizon_at(part.level)
    steps_of = setup.kind.taskset.episode_steps
    task_steps = fmean(min(horizon, steps_of(task) or horizon) for task in part.tasks)
    most_calls = task_steps * part.episodes
    calls = most_calls
    if part.has_real_length:
        calls = len(requests) / len(part.tasks) * part.episodes

    # 2. The expected cost
    thoughts = THINKING_TOKENS if endpoint.thinks else 0
    prompt_tokens = calls * fmean(request.prompt_tokens for request in requests)
    usd = prices.cost(prompt_tokens, calls * (part.answer_tokens + thoughts))

    # 3. A cost that is rarely exceeded: more steps with the longest prompts, and longer answers
    longest_prompt = max(request.prompt_tokens for request in requests)
    more_calls = max(0.0, min(LIKELY_STEPS * calls, most_calls) - calls)
    likely_prompt_tokens = prompt_tokens + more_calls * longest_prompt
    likely_length = LIKELY_LENGTH * part.answer_tokens + thoughts
    likely_answer_tokens = (calls + more_calls) * likely_length
    likely_usd = LIKELY_CALLS * prices.cost(likely_prompt_tokens, likely_answer_tokens)
    return calls, prompt_tokens, usd, likely_usd
