"""What an evaluation with chat models would ask and cost, without asking: random play shows the states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from reflectkit.agents.players import Player, PlayersSetup, is_chat
from reflectkit.agents.scripted import RandomAgent
from reflectkit.chat.client import ASKED_AGAIN, PROMPT_MARGIN, THINKING_TOKENS, Request, written_limit
from reflectkit.chat.config import ChatConfig, Endpoint
from reflectkit.chat.players import request_of
from reflectkit.chat.templates import ANSWER_TOKENS, playing_request, reflecting_request
from reflectkit.console import Progress, Report, Table
from reflectkit.env import Context
from reflectkit.envs.setup import EnvSetup
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.seeding import derive
from reflectkit.tools import use_of
from reflectkit.types import Decision, Observation, Task

SAMPLED = 32  # problems of a level that random play looks at, for comments
ANSWER = 90  # tokens that a chat model writes per step, roughly
LONG = " ".join(["x"] * ANSWER_TOKENS)
"""What models are taken to have written before."""
TITLE = (
    "Estimate from random play, if every episode runs to its horizon; at most: the longest prompt, three times a step"
)
COLUMNS = ("calls", "prompt tokens", "US dollars", "at most")
Asking = Callable[[Observation, Context], Sequence[Request]]
"""What the models are asked in a state, in the order of their endpoints."""


class _Rehearsal:
    """Plays at random, or calls nothing, and keeps what the models would be asked."""

    def __init__(self, ask: Asking, *, still: bool) -> None:
        self.ask, self.still, self.requests = ask, still, list[Sequence[Request]]()

    async def decide(self, observation: Observation, context: Context) -> Decision:
        self.requests.append(self.ask(observation, context))
        decision = Decision(use_of(())) if self.still else await RandomAgent().decide(observation, context)
        return replace(decision, answer=LONG, reflection=LONG)


def estimate(
    setup: EnvSetup,
    players: PlayersSetup,
    matches: Iterable[tuple[Player, str, Sequence[Task]]],
    progress: Progress,
    *,
    seed: int,
    repeats: int,
    width: int,
) -> Report:
    """Estimated requests of the chat models and their cost, with every episode played to its horizon. matches: player,
    level and problems.
    """
    rows, calls = [], 0
    for player, level, tasks in matches:
        endpoints = [players.endpoint_of(part) for part in player.asked]
        usual = setup.kind.methods[player.method] // 2 if player.method else ANSWER
        ask, still = _asked_by(player, players.history_tokens), bool(player.method)
        costs = _cost(setup, players.chat, level, tasks, endpoints, ask, progress, seed, width, usual, still=still)
        totals = [cost * repeats for cost in costs]
        calls += round(totals[0])
        rows.append((player.name, level, *_cells(totals, players.chat, endpoints)))
    table = Table(TITLE, ("policy", "level", *COLUMNS), tuple(rows))
    return Report("evaluate", setup.env_folder, {"calls": calls}, (), (table,))


def estimate_comments(
    stage: str,
    setup: EnvSetup,
    chat: ChatConfig,
    endpoint: Endpoint,
    parts: Iterable[tuple[str, Sequence[Task], float]],
    progress: Progress,
    *,
    seed: int,
) -> Report:
    """Likewise of a chat model that comments for a trained policy, where no state comes twice. parts: level, problems,
    and number of episodes of them.
    """
    totals = [0.0] * 4
    for level, tasks, count in parts:
        some = tasks[:SAMPLED]
        costs = _cost(setup, chat, level, some, [endpoint], _comment_alone, progress, seed)
        totals = [total + cost * count / len(some) for total, cost in zip(totals, costs, strict=True)]
    table = Table(TITLE, ("reflector", *COLUMNS), ((str(endpoint), *_cells(totals, chat, [endpoint])),))
    calls, tokens, usd, bound = totals
    figures = {"calls": round(calls), "prompt_tokens": round(tokens), "usd": usd, "most_usd": bound}
    return Report(stage, setup.env_folder, figures, (), (table,))


def _comment_alone(seen: Observation, context: Context) -> list[Request]:
    return [reflecting_request(seen, Context(0, context.env))]


def _asked_by(player: Player, history_tokens: int) -> Asking:
    if is_chat(player.reflector) and not player.chat:
        return _comment_alone

    def ask(seen: Observation, context: Context) -> list[Request]:
        if player.method:
            return [request_of(player.method, context)]
        if len(player.asked) == 1:
            return [playing_request(seen, context, None, history_tokens)]
        played = playing_request(seen, context, LONG, history_tokens)
        return [played, reflecting_request(seen, context, history_tokens)]

    return ask


def _cost(
    setup: EnvSetup,
    chat: ChatConfig,
    level: str,
    tasks: Sequence[Task],
    endpoints: Sequence[Endpoint],
    ask: Asking,
    progress: Progress,
    seed: int,
    width: int = 1,
    usual: int = ANSWER,
    *,
    still: bool = False,
) -> list[float]:
    """[calls, prompt tokens, US dollars, at most] of an episode of each task. usual: tokens of an answer.

    At most, each call has the longest prompt of the level, with what its earlier answers can add, and is repeated as
    often as unusable answers allow.
    """
    totals = [0.0] * 4
    if not endpoints:
        return totals
    rehearsal = _Rehearsal(ask, still=still)
    episodes = [Episode(task, derive(seed, "evaluate", task.id, 0)) for task in tasks]
    with progress.bar(f"random play ({level})", len(episodes)) as bar:
        rollout(episodes, setup.maker(level), rehearsal, width=width, on_end=lambda _: bar.advance())
    horizon, steps_of = setup.horizon_at(level), setup.kind.taskset.episode_steps
    steps = sum(min(horizon, steps_of(task) or horizon) for task in tasks)
    for endpoint, requests in zip(endpoints, zip(*rehearsal.requests, strict=True), strict=True):
        price, thought = chat.prices_at(endpoint), THINKING_TOKENS if endpoint.thinks else 0
        longest = max(requests, key=lambda request: request.prompt_tokens)
        read = steps * fmean(request.prompt_tokens for request in requests)
        most = (longest.prompt_tokens + horizon * longest.max_tokens) * PROMPT_MARGIN
        bound = (1 + ASKED_AGAIN) * steps * price.cost(most, written_limit(endpoint, longest))
        cost = (steps, read, price.cost(read, steps * (usual + thought)), bound)
        totals = [total + part for total, part in zip(totals, cost, strict=True)]
    return totals


def _cells(totals: Sequence[float], chat: ChatConfig, endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
    calls, tokens, usd, bound = totals
    dollars = (f"{usd:.4f}", f"{bound:.4f}")
    if not all(chat.prices_at(endpoint).known for endpoint in endpoints):
        dollars = ("unknown; give --price-in and --price-out", "unknown")
    return str(round(calls)), str(round(tokens)), *dollars
