"""What an evaluation with chat models would ask and cost, without asking."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from reflectkit.agents.players import PlayersSetup, is_chat
from reflectkit.agents.scripted import RandomAgent
from reflectkit.chat.client import ASKED_AGAIN, PROMPT_MARGIN, THINKING_TOKENS, Request, written_limit
from reflectkit.chat.config import ChatConfig
from reflectkit.chat.endpoints import Endpoint
from reflectkit.chat.players import MethodRehearsal
from reflectkit.chat.templates import ANSWER_TOKENS, history_cost, playing_request, reflecting_request
from reflectkit.console import Progress, Report, Table
from reflectkit.env import Agent, Context
from reflectkit.envs.setup import EnvSetup
from reflectkit.evals.evaluate import Match
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.seeding import derive
from reflectkit.text import count_tokens
from reflectkit.types import Task, Trajectory, Turn

SAMPLED = 32  # problems of a level that random play looks at, for comments
ANSWER = 90  # tokens that a chat model writes per step, roughly


def estimate(
    setup: EnvSetup,
    players: PlayersSetup,
    matches: Sequence[Match],
    progress: Progress,
    *,
    seed: int,
    repeats: int,
    width: int,
) -> Report:
    """Estimated requests of the chat models and their cost, with every episode played to its horizon.

    The expectation takes each state to be as long as the first; the upper bound takes the longest that random play
    meets in the same problem. What a method wrote before is taken to be half as long as an answer may be; at most, as
    long.
    """
    rows, total_calls, chat = [], 0, players.chat
    random_play: dict[str, list[Trajectory]] = {}

    def played(match: Match, agent: Agent, what: str) -> list[Trajectory]:
        """An episode of each problem by `agent`, except those whose engine fails at once, which cause no requests."""
        episodes = [Episode(task, derive(seed, "evaluate", task.id, 0)) for task in match.tasks]
        with progress.bar(f"{what} ({match.level})", len(episodes)) as bar:
            done = rollout(episodes, setup.maker(match.level), agent, width=width, on_end=lambda _: bar.advance())
        return [trajectory for trajectory in done if trajectory.turns]

    for match in matches:
        player = match.player
        comments, endpoints = is_chat(player.reflector), [players.endpoint_of(part) for part in player.asked]
        if endpoints and player.method:
            rehearsal = MethodRehearsal(player.method)
            played(match, rehearsal, player.name)
            most, later = setup.kind.methods[player.method], len(rehearsal.requests) - len(match.tasks)
            cost = _method_cost(rehearsal.requests, later, most, endpoints[0], chat)
        else:
            if endpoints and match.level not in random_play:
                random_play[match.level] = played(match, RandomAgent(), "random play")
            episodes = random_play[match.level] if endpoints else []
            history = None if comments else players.history_tokens
            cost = _cost(setup, chat, match.level, endpoints, episodes, history)
        calls, tokens, usd, bound = cost[0] * repeats, *(figure * repeats for figure in cost[1:])
        total_calls += calls
        known = all(chat.prices_at(endpoint).known for endpoint in endpoints)
        rows.append((player.name, match.level, *_cells(calls, tokens, usd, bound, known=known)))
    columns = ("policy", "level", "calls", "prompt tokens", "US dollars", "at most")
    title = (
        "Estimate if every episode runs to its horizon; at most: each call three times, at full length, on states as"
        " long as the longest of random play"
    )
    table = Table(title, columns, tuple(rows))
    return Report("evaluate", setup.env_folder, {"calls": total_calls}, (), (table,))


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
    """Estimated requests and cost of a chat model that comments for a trained policy. parts: level, problems, and
    number of episodes of them.

    Likewise, from random play in some of the problems; equal states are counted each time.
    """
    totals = [0.0] * 4
    for level, tasks, count in parts:
        episodes = [Episode(task, derive(seed, "evaluate", task.id, 0)) for task in tasks[:SAMPLED]]
        with progress.bar(f"random play ({level})", len(episodes)) as bar:
            make = setup.maker(level)
            played = rollout(episodes, make, RandomAgent(), on_end=lambda _, bar=bar: bar.advance())  # type: ignore[misc]
        begun = [trajectory for trajectory in played if trajectory.turns]
        cost = _cost(setup, chat, level, [endpoint], begun)
        totals = [total + count / max(1, len(begun)) * figure for total, figure in zip(totals, cost, strict=True)]
    calls, tokens, usd, bound = totals
    title = "Estimate if every episode runs to its horizon and no state comes twice; at most: each call three times"
    columns = ("reflector", "calls", "prompt tokens", "US dollars", "at most")
    known = chat.prices_at(endpoint).known
    table = Table(title, columns, ((str(endpoint), *_cells(calls, tokens, usd, bound, known=known)),))
    figures = {"calls": round(calls), "prompt_tokens": round(tokens), "usd": usd, "most_usd": bound}
    return Report(stage, setup.env_folder, figures, (), (table,))


def _cells(calls: float, tokens: float, usd: float, bound: float, *, known: bool) -> tuple[str, ...]:
    dollars = (f"{usd:.4f}", f"{bound:.4f}") if known else ("unknown; give --price-in and --price-out", "unknown")
    return str(round(calls)), str(round(tokens)), *dollars


def _cost(
    setup: EnvSetup,
    chat: ChatConfig,
    level: str,
    endpoints: Sequence[Endpoint],
    episodes: Sequence[Trajectory],
    history_tokens: int | None = None,
) -> tuple[int, int, float, float]:
    """(calls, prompt tokens, US dollars, at most) of chat models that play, or comment on, these episodes.
    history_tokens: of earlier turns in a request; None: the first model comments for a trained policy.
    """
    comments = history_tokens is None
    env: Any = setup.maker(level)() if endpoints else None
    calls = tokens = 0
    usd = bound = 0.0
    for trajectory in episodes:
        steps = min(env.steps, setup.kind.taskset.episode_steps(trajectory.task) or env.steps)
        grown = _growth(trajectory.turns)

        def earlier(request: Request, written: int, steps: int = steps, grown: int = grown) -> int:
            """Prompt tokens of the earlier turns in all steps, of which each wrote so many tokens."""
            if history_tokens is None or grown:
                return (grown + (0 if comments else written)) * (steps * (steps - 1) // 2)
            return sum(history_cost(request, turns, written, history_tokens) for turns in range(1, steps))

        asked = len(endpoints), comments
        usual = _longest_requests(env, trajectory.turns[:1], ANSWER, *asked)
        longest = _longest_requests(env, trajectory.turns[: 1 if grown else None], ANSWER_TOKENS, *asked)
        in_a_turn = 0  # the most tokens that this model and those before it write; a reflector sees the actions
        for endpoint, request, most in zip(endpoints, usual, longest, strict=True):
            in_a_turn += most.max_tokens
            price, thought = chat.prices_at(endpoint), THINKING_TOKENS if endpoint.thinks else 0
            read = steps * request.prompt_tokens + earlier(request, ANSWER)
            read_most = (steps * most.prompt_tokens + earlier(most, in_a_turn)) * PROMPT_MARGIN
            calls, tokens = calls + steps, tokens + read
            usd += price.cost(read, steps * (ANSWER + thought))
            bound += (1 + ASKED_AGAIN) * price.cost(read_most, steps * written_limit(endpoint, most))
    return calls, tokens, usd, bound


def _method_cost(
    requests: Sequence[Request], later: int, most: int, endpoint: Endpoint, chat: ChatConfig
) -> tuple[int, int, float, float]:
    """Likewise of a method, whose usual answer is half as long as the `most` it may be. later: number of requests that
    show the answer before.
    """
    calls, price = len(requests), chat.prices_at(endpoint)
    read = sum(request.prompt_tokens for request in requests)
    tokens, most_tokens = read + later * most // 2, read + later * most
    thought = THINKING_TOKENS if endpoint.thinks else 0
    usd = price.cost(tokens, calls * (most // 2 + thought))
    bound = (1 + ASKED_AGAIN) * price.cost(
        most_tokens * PROMPT_MARGIN, sum(written_limit(endpoint, request) for request in requests)
    )
    return calls, tokens, usd, bound


def _growth(turns: Sequence[Turn]) -> int:
    """The most tokens that a conversation has grown by in a turn; 0 if it is none, so that what is shown of earlier
    turns depends on --history-tokens.
    """
    tokens = [count_tokens(turn.observation.text) for turn in turns if turn.observation.replies]
    return max((after - before for before, after in itertools.pairwise(tokens)), default=len(tokens))


def _longest_requests(
    env: Any, turns: Sequence[Turn], comment_tokens: int, clients: int, comments: bool
) -> list[Request]:
    """The longest requests caused by `turns`, without earlier turns: the player's, and the reflector's if any."""
    context, seen = Context(0, env), [turn.observation for turn in turns]
    comment = " ".join(["x"] * comment_tokens) if clients > 1 else None
    requests = [[reflecting_request(observation, context) for observation in seen]]
    if not comments:
        requests = [[playing_request(observation, context, comment) for observation in seen], *requests]
    return [max(of_client, key=lambda request: request.prompt_tokens) for of_client in requests[:clients]]
