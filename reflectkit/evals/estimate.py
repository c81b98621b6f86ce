"""What an evaluation with chat models would ask and cost, without asking."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from reflectkit.agents.players import chat_parts, is_chat, method_of
from reflectkit.agents.scripted import RandomAgent
from reflectkit.chat.client import ASKED_AGAIN, PROMPT_MARGIN, THINKING_TOKENS, Request, written_limit
from reflectkit.chat.endpoints import Endpoint
from reflectkit.chat.players import MethodRehearsal
from reflectkit.chat.templates import ANSWER_TOKENS, history_cost, playing_request, reflecting_request
from reflectkit.console import Progress, Report, Table
from reflectkit.env import Agent, Context
from reflectkit.rollout.episode import Episode, rollout
from reflectkit.seeding import derive
from reflectkit.text import count_tokens
from reflectkit.types import Task, Trajectory, Turn

SAMPLED = 32  # problems of a level that random play looks at, for comments
ANSWER = 90  # tokens that a chat model writes per step, roughly


def estimate(config: Any, matches: Sequence[Any], progress: Progress) -> Report:  # evaluate's settings and matches
    """Estimated requests of the chat models and their cost, with every episode played to its horizon.

    The expectation takes each state to be as long as the first; the upper bound takes the longest that random play
    meets in the same problem. What a method wrote before is taken to be half as long as an answer may be; at most, as
    long.
    """
    rows, total_calls = [], 0
    random_play: dict[str, list[Trajectory]] = {}
    for match in matches:
        comments = is_chat(match.reflector)
        parts = [str(match.reflector)] if comments else chat_parts(match.name, config.env.kind.methods)
        endpoints = [config.players.endpoint_of(part) for part in parts]
        method, _ = method_of(match.name, config.env.kind.methods)
        if endpoints and not method and match.level not in random_play:
            random_play[match.level] = _played(config, match, RandomAgent(), "random play", progress)
        prices = [config.chat.prices_at(endpoint) for endpoint in endpoints]
        if endpoints and method:
            calls, tokens, usd, bound = _method_cost(config, match, method, endpoints[0], progress)
        elif comments:
            calls, tokens, usd, bound = comments_cost(config, match.level, endpoints[0], random_play[match.level])
            calls, tokens = calls * config.eval_reps, tokens * config.eval_reps
            usd, bound = usd * config.eval_reps, bound * config.eval_reps
        else:
            episodes = random_play[match.level] if endpoints else []
            calls, tokens, usd, bound = _players_cost(config, match, endpoints, episodes)
        total_calls += calls
        priced = all(price.known for price in prices)
        dollars = (f"{usd:.4f}", f"{bound:.4f}") if priced else ("unknown; give --price-in and --price-out", "unknown")
        rows.append((match.name, match.level, str(calls), str(tokens), *dollars))
    columns = ("policy", "level", "calls", "prompt tokens", "US dollars", "at most")
    title = (
        "Estimate if every episode runs to its horizon; at most: each call three times, at full length, on states as"
        " long as the longest of random play"
    )
    return Report(
        "evaluate", config.setup.env_folder, {"calls": total_calls}, (), (Table(title, columns, tuple(rows)),)
    )


def _players_cost(
    config: Any, match: Any, endpoints: Sequence[Endpoint], episodes: Sequence[Trajectory]
) -> tuple[int, int, float, float]:
    """(calls, prompt tokens, US dollars, at most) of chat models that play, or comment on, these episodes."""
    env: Any = config.setup.maker(match.level)() if endpoints else None
    prices = [config.chat.prices_at(endpoint) for endpoint in endpoints]
    calls = tokens = 0
    usd = bound = 0.0
    for trajectory in episodes:
        steps = min(env.steps, config.env.kind.taskset.episode_steps(trajectory.task) or env.steps)
        grown = _growth(trajectory.turns)
        usual = _longest_requests(env, trajectory.turns[:1], len(endpoints), ANSWER)
        longest = _longest_requests(env, trajectory.turns[: 1 if grown else None], len(endpoints), ANSWER_TOKENS)
        # the most tokens that this model and those before it write; a reflector sees the player's actions
        in_a_turn = 0
        for endpoint, price, one, other in zip(endpoints, prices, usual, longest, strict=True):
            in_a_turn += other.max_tokens
            read, most_read = (
                steps * request.prompt_tokens
                + sum(
                    turns * (grown + written) if grown else history_cost(request, turns, written, config.history_tokens)
                    for turns in range(1, steps)
                )
                for request, written in ((one, ANSWER), (other, in_a_turn))
            )
            thought = THINKING_TOKENS if endpoint.thinks else 0
            calls += steps * config.eval_reps
            tokens += read * config.eval_reps
            usd += config.eval_reps * price.cost(read, steps * (ANSWER + thought))
            written_most = steps * written_limit(endpoint, other)
            bound += config.eval_reps * (1 + ASKED_AGAIN) * price.cost(most_read * PROMPT_MARGIN, written_most)
    return calls, tokens, usd, bound


def estimate_comments(
    stage: str, config: Any, endpoint: Endpoint, parts: Iterable[tuple[str, Sequence[Task], float]], progress: Progress
) -> Report:
    """Estimated requests and cost of a chat model that comments for a trained policy. parts: level, problems, and
    number of episodes of them.

    Likewise, from random play in some of the problems; equal states are counted each time.
    """
    price, totals = config.chat.prices_at(endpoint), [0.0] * 4
    for level, tasks, count in parts:
        episodes = [Episode(task, derive(config.run.seed, "evaluate", task.id, 0)) for task in tasks[:SAMPLED]]
        with progress.bar(f"random play ({level})", len(episodes)) as bar:
            make = config.setup.maker(level)
            played = rollout(episodes, make, RandomAgent(), on_end=lambda _, bar=bar: bar.advance())  # type: ignore[misc]
        cost = comments_cost(config, level, endpoint, played)
        scale = count / max(1, sum(bool(trajectory.turns) for trajectory in played))
        totals = [total + scale * figure for total, figure in zip(totals, cost, strict=True)]
    calls, tokens, usd, bound = totals
    dollars = (f"{usd:.4f}", f"{bound:.4f}") if price.known else ("unknown; give --price-in and --price-out", "unknown")
    title = "Estimate if every episode runs to its horizon and no state comes twice; at most: each call three times"
    columns = ("reflector", "calls", "prompt tokens", "US dollars", "at most")
    table = Table(title, columns, ((str(endpoint), str(round(calls)), str(round(tokens)), *dollars),))
    figures = {"calls": round(calls), "prompt_tokens": round(tokens), "usd": usd, "most_usd": bound}
    return Report(stage, config.setup.env_folder, figures, (), (table,))


def comments_cost(
    config: Any, level: str, endpoint: Endpoint, episodes: Sequence[Trajectory]
) -> tuple[int, int, float, float]:
    """Likewise of a chat model that comments on these episodes for a trained policy, without earlier turns."""
    env, price = config.setup.maker(level)(), config.chat.prices_at(endpoint)
    thought = THINKING_TOKENS if endpoint.thinks else 0
    calls = tokens = 0
    usd = bound = 0.0
    for trajectory in episodes:
        if not trajectory.turns:
            continue
        steps = min(env.steps, config.env.kind.taskset.episode_steps(trajectory.task) or env.steps)
        requests = [reflecting_request(turn.observation, Context(0, env)) for turn in trajectory.turns]
        grown = _growth(trajectory.turns)
        longest = requests[0] if grown else max(requests, key=lambda request: request.prompt_tokens)
        more = grown * steps * (steps - 1) // 2
        read = steps * requests[0].prompt_tokens + more
        calls, tokens = calls + steps, tokens + read
        usd += price.cost(read, steps * (ANSWER + thought))
        most_read = (steps * longest.prompt_tokens + more) * PROMPT_MARGIN
        bound += (1 + ASKED_AGAIN) * price.cost(most_read, steps * written_limit(endpoint, longest))
    return calls, tokens, usd, bound


def _method_cost(
    config: Any, match: Any, method: str, endpoint: Endpoint, progress: Progress
) -> tuple[int, int, float, float]:
    """Likewise of a method, whose usual answer is half as long as it may be; each shows the one before it."""
    rehearsal = MethodRehearsal(method)
    _played(config, match, rehearsal, match.name, progress)
    requests, price, most = rehearsal.requests, config.chat.prices_at(endpoint), config.env.kind.methods[method]
    calls, read = len(requests), sum(request.prompt_tokens for request in requests)
    later = calls - len(match.tasks)
    tokens, most_tokens = read + later * most // 2, read + later * most
    thought = THINKING_TOKENS if endpoint.thinks else 0
    usd = price.cost(tokens, calls * (most // 2 + thought))
    bound = (1 + ASKED_AGAIN) * price.cost(
        most_tokens * PROMPT_MARGIN, sum(written_limit(endpoint, request) for request in requests)
    )
    return tuple(config.eval_reps * figure for figure in (calls, tokens, usd, bound))


def _played(config: Any, match: Any, agent: Agent, what: str, progress: Progress) -> list[Trajectory]:
    """An episode of each problem by `agent`, except those whose engine fails at once, which cause no requests."""
    episodes = [Episode(task, derive(config.run.seed, "evaluate", task.id, 0)) for task in match.tasks]
    with progress.bar(f"{what} ({match.level})", len(episodes)) as bar:
        played = rollout(
            episodes, config.setup.maker(match.level), agent, width=config.rollout.width, on_end=lambda _: bar.advance()
        )
    return [trajectory for trajectory in played if trajectory.turns]


def _growth(turns: Sequence[Turn]) -> int:
    """The most tokens that a conversation has grown by in a turn; 0 if it is none, so that what is shown of earlier
    turns depends on --history-tokens.
    """
    tokens = [count_tokens(turn.observation.text) for turn in turns if turn.observation.replies]
    return max((after - before for before, after in itertools.pairwise(tokens)), default=len(tokens))


def _longest_requests(env: Any, turns: Sequence[Turn], clients: int, comment_tokens: int) -> list[Request]:
    """The longest requests caused by `turns`, without earlier turns: the player's, and the reflector's if any."""
    context = Context(0, env)
    comment = " ".join(["x"] * comment_tokens) if clients > 1 else None
    seen = [turn.observation for turn in turns]
    requests = [
        [playing_request(one, context, comment) for one in seen],
        [reflecting_request(one, context) for one in seen],
    ]
    return [max(of_one, key=lambda request: request.prompt_tokens) for of_one in requests[:clients]]
