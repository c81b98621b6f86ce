"""What chat models would be asked and cost, without asking: others play in their place, to show the states."""

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

SAMPLED = 32  # problems of a level that are enough to look at, where each is played often
ANSWER = 90  # tokens that a chat model writes per step, roughly
LONG = " ".join(["x"] * ANSWER_TOKENS)
"""What models are taken to have written before."""
LIKELY_STEPS, LIKELY_LENGTH, LIKELY_CALLS = 2, 2, 1.1
"""By which the steps, the length of the answers and the calls per step may exceed what is expected, as a rule."""
TITLE = "Estimate from play without the models; --max-cost-usd sets a limit"


@dataclass(frozen=True)
class PlannedCalls:
    """What is asked on a level."""

    name: str
    """Of who plays."""
    level: str
    tasks: Sequence[Task]
    """Those to look at."""
    episodes: float
    """How many are played."""
    endpoints: Sequence[Endpoint]
    ask: Callable[[Observation, Context], Sequence[Request]]
    """The requests about a state, one for each of the endpoints."""
    usual: int = ANSWER
    """Tokens of an answer."""
    agent: Agent = RandomAgent()
    """Plays in their place."""
    ends: bool = False
    """Whether its episodes are as long as theirs; otherwise each is taken to run to its horizon."""
    within: Callable[[Agent], Agent] = lambda agent: agent
    """Makes the player, who asks them at some steps only."""


def comment_alone(observation: Observation, context: Context) -> list[Request]:
    """What a chat model that comments for a trained policy is asked."""
    return [reflecting_request(observation, Context(0, context.env))]


def deciding_alone(
    observation: Observation,
    context: Context,
    endpoint: Endpoint,
    *,
    rules: bool,
    comments: bool = False,
) -> list[Request]:
    """What a decision model is asked. comments: whether it comments for a policy."""
    more = further_questions(context.env) if comments else []
    options = options_of(observation, endpoint)
    return [
        deciding_request(
            observation,
            context,
            endpoint,
            options,
            rules=rules,
            more=more,
        )
    ]


def planned_calls(
    player: Player,
    setup: PlayersSetup,
    level: str,
    tasks: Sequence[Task],
    repeats: int,
) -> PlannedCalls:
    """What the chat models of `player` are asked where each of the tasks is played `repeats` times."""
    endpoints = [setup.endpoint_of(model) for model in player.api_models]
    decides = bool(endpoints) and endpoints[0].decides
    tokens = setup.history_tokens

    def ask(observation: Observation, context: Context) -> list[Request]:
        if decides:
            rules = not setup.config.decisions.plain_questions
            comments = not player.decides
            return deciding_alone(
                observation, context, endpoints[0], rules=rules, comments=comments
            )
        if player.method:
            return [request_of(player.method, context)]
        if not player.is_asked:  # a checkpoint acts, and the chat model comments
            return comment_alone(observation, context)
        if len(endpoints) == 1:
            return [playing_request(observation, context, None, tokens)]
        acting = playing_request(observation, context, LONG, tokens)
        return [acting, reflecting_request(observation, context, tokens)]

    answer_tokens = ANSWER
    if decides:
        answer_tokens = 0  # it answers with probabilities
    elif player.method:
        answer_tokens = setup.kind.methods[player.method] // 2
    return PlannedCalls(
        player.name,
        level,
        tasks,
        len(tasks) * repeats,
        endpoints,
        ask,
        answer_tokens,
        Still() if player.method else RandomAgent(),
    )


class Still:
    """Calls nothing, and answers in one word."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """No call, or the word."""
        if observation.tools and not observation.replies:
            return Decision(use_of(()))
        return Decision(ToolUse("done") if observation.replies else "done")


class _Rehearsal:
    """Plays in place of the models, and keeps what they would be asked."""

    def __init__(self, calls: PlannedCalls) -> None:
        self.calls = calls
        self.requests: list[Sequence[Request]] = []

    async def decide(self, observation: Observation, context: Context) -> Decision:
        self.requests.append(self.calls.ask(observation, context))
        decision = await self.calls.agent.decide(observation, context)
        return replace(decision, answer=LONG, reflection=LONG)


def cost_of_playing(
    config: EvaluateConfig,
    tasks: Mapping[str, Sequence[Task]],
    progress: Progress,
) -> Report:
    """What evaluate would ask chat models, and the cost (--dry-run). tasks: the problems by level."""
    planned = []
    for player in config.players:
        for level, level_tasks in tasks.items():
            planned.append(
                planned_calls(player, config.players_setup, level, level_tasks, config.eval_reps)
            )
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
    """Estimated requests of the chat models, their cost, and what the cost is likely below.

    That is what episodes of twice the steps cost, though of no more than the horizon, with answers of twice the length,
    of which every tenth is asked for again. A limit that holds is --max-cost-usd.
    """
    # 1. The totals of each player and level
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

    # 2. The table
    cells = []
    for (name, level), (calls, tokens, *costs_usd) in rows.items():
        dollars = [f"{usd:.4f}" for usd in costs_usd]
        if name in unknown_prices:
            dollars = ["unknown; give --price-in and --price-out", "unknown"]
        cells.append((name, level, f"{calls:.0f}", f"{tokens:.0f}", *dollars))
    columns = ("policy", "level", "calls", "prompt tokens", "US dollars", "likely below")

    # 3. The sums
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
    """The requests of one episode of each task, one after the other. Raises EnvironmentFailure if all were aborted."""
    rehearsal = _Rehearsal(part)
    episodes = [Episode(task, derive(seed, "evaluate", task.id, 0)) for task in part.tasks]
    with progress.bar(f"play without the models ({part.level})", len(episodes)) as bar:
        trajectories = rollout(
            episodes,
            setup.maker(part.level),
            part.within(rehearsal),
            width=1,
            on_end=lambda _: bar.advance(),
        )
    aborted = [each for each in trajectories if each.status is Status.ABORTED]
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
    """(calls, prompt tokens, US dollars, dollars that the cost is likely below) of an endpoint. requests: its own, of
    an episode of each task.
    """
    # 1. The calls of all episodes, and how many there can be
    horizon = setup.horizon_at(part.level)
    steps_of = setup.kind.taskset.episode_steps
    task_steps = fmean(min(horizon, steps_of(task) or horizon) for task in part.tasks)
    most_calls = task_steps * part.episodes
    calls = len(requests) / len(part.tasks) * part.episodes if part.ends else most_calls

    # 2. What is expected
    thoughts = THINKING_TOKENS if endpoint.thinks else 0
    prompt_tokens = calls * fmean(request.prompt_tokens for request in requests)
    usd = prices.cost(prompt_tokens, calls * (part.usual + thoughts))

    # 3. What is likely not exceeded: more steps, whose prompts are the longest, and longer answers
    longest = max(request.prompt_tokens for request in requests)
    more = max(0.0, min(LIKELY_STEPS * calls, most_calls) - calls)
    likely_prompt_tokens = prompt_tokens + more * longest
    likely_answer_tokens = (calls + more) * (LIKELY_LENGTH * part.usual + thoughts)
    likely_usd = LIKELY_CALLS * prices.cost(likely_prompt_tokens, likely_answer_tokens)
    return calls, prompt_tokens, usd, likely_usd
