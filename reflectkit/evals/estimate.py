"""What chat models would be asked and cost, without asking: others play in their place, to show the states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from reflectkit.agents.decision_players import deciding_request, further_questions, options_of
from reflectkit.agents.player_refs import Player
from reflectkit.agents.players import PlayersSetup
from reflectkit.agents.scripted import RandomAgent
from reflectkit.chat.client import THINKING_TOKENS, Request
from reflectkit.chat.config import ChatConfig, Endpoint
from reflectkit.chat.players import request_of
from reflectkit.chat.templates import ANSWER_TOKENS, playing_request, reflecting_request
from reflectkit.console import Bar, Progress, Report, Table
from reflectkit.env import Agent, Context
from reflectkit.envs.setup import EnvSetup
from reflectkit.errors import EnvironmentFailure
from reflectkit.evals.config import EvaluateConfig
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.seeding import derive
from reflectkit.tools import use_of
from reflectkit.types import Decision, Observation, Status, Task, ToolUse, Trajectory

SAMPLED = 32  # problems of a level that are enough to look at, where each is played often
ANSWER = 90  # tokens that a chat model writes per step, roughly
LONG = " ".join(["x"] * ANSWER_TOKENS)
"""What models are taken to have written before."""
LIKELY_STEPS, LIKELY_LENGTH, LIKELY_CALLS = 2, 2, 1.1
"""By which the steps, the length of the answers and the calls per step may exceed what is expected, as a rule."""
TITLE = "Estimate from play without the models; --max-cost-usd sets a limit"


@dataclass(frozen=True)
class PlannedCalls:
    """What is asked on a level.

    name: of who plays. tasks: those to look at. episodes: how many are played. ask: the requests about a state, one for
    each of the endpoints. usual: tokens of an answer. agent: plays in their place. ends: whether its episodes are as
    long as theirs; otherwise each is taken to run to its horizon. within: makes the player, who asks them at some steps
    only.
    """

    name: str
    level: str
    tasks: Sequence[Task]
    episodes: float
    endpoints: Sequence[Endpoint]
    ask: Callable[[Observation, Context], Sequence[Request]]
    usual: int = ANSWER
    agent: Agent = RandomAgent()
    ends: bool = False
    within: Callable[[Agent], Agent] = lambda agent: agent


def comment_alone(seen: Observation, context: Context) -> list[Request]:
    """What a chat model that comments for a trained policy is asked."""
    return [reflecting_request(seen, Context(0, context.env))]


def deciding_alone(
    seen: Observation, context: Context, endpoint: Endpoint, *, rules: bool, comments: bool = False
) -> list[Request]:
    """What a decision model is asked. comments: whether it comments for a policy."""
    more = further_questions(context.env) if comments else []
    return [
        deciding_request(
            seen, context, endpoint, options_of(seen, endpoint), rules=rules, more=more
        )
    ]


def planned_calls(
    player: Player, players: PlayersSetup, level: str, tasks: Sequence[Task], repeats: int
) -> PlannedCalls:
    """What the chat models of `player` are asked where each of the tasks is played `repeats` times."""

    endpoints = [players.endpoint_of(part) for part in player.api_models]

    def ask(seen: Observation, context: Context) -> list[Request]:
        if endpoints and endpoints[0].decides:
            rules = not players.config.decisions.plain_questions
            return deciding_alone(
                seen, context, endpoints[0], rules=rules, comments=not player.decides
            )
        if player.method:
            return [request_of(player.method, context)]
        if not player.is_chat:  # a checkpoint acts, and the chat model comments
            return comment_alone(seen, context)
        comment = LONG if len(player.api_models) > 1 else None
        played = playing_request(seen, context, comment, players.history_tokens)
        return (
            [played, reflecting_request(seen, context, players.history_tokens)]
            if comment
            else [played]
        )

    usual = players.kind.methods[player.method] // 2 if player.method else ANSWER
    usual = 0 if endpoints and endpoints[0].decides else usual
    agent = Still() if player.method else RandomAgent()
    return PlannedCalls(
        player.name, level, tasks, len(tasks) * repeats, endpoints, ask, usual, agent
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

    def __init__(self, asked: PlannedCalls) -> None:
        self.asked, self.requests = asked, list[Sequence[Request]]()

    async def decide(self, observation: Observation, context: Context) -> Decision:
        self.requests.append(self.asked.ask(observation, context))
        decision = await self.asked.agent.decide(observation, context)
        return replace(decision, answer=LONG, reflection=LONG)


def cost_of_playing(
    config: EvaluateConfig, tasks: Mapping[str, Sequence[Task]], progress: Progress
) -> Report:
    """What evaluate would ask chat models, and the cost (--dry-run). tasks: the problems by level."""
    planned = []
    for player in config.players:
        for level, level_tasks in tasks.items():
            planned.append(
                planned_calls(player, config.players_setup, level, level_tasks, config.eval_reps)
            )
    return estimate("evaluate", config.setup, config.chat, planned, progress, config.run.seed)


def _ended(bar: Bar, _: Trajectory) -> None:
    bar.advance()


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
    rows: dict[tuple[str, str], list[float]] = {}
    unknown = set()
    for part in parts:
        totals = rows.setdefault((part.name, part.level), [0.0] * 4)
        if not part.endpoints:
            continue
        rehearsal = _Rehearsal(part)
        episodes = [Episode(task, derive(seed, "evaluate", task.id, 0)) for task in part.tasks]
        with progress.bar(f"play without the models ({part.level})", len(episodes)) as bar:
            player = part.within(rehearsal)
            trial = rollout(
                episodes, setup.maker(part.level), player, width=1, on_end=partial(_ended, bar)
            )
        if not rehearsal.requests and any(one.status is not Status.ABORTED for one in trial):
            continue
        if not rehearsal.requests:
            raise EnvironmentFailure(f"every episode was aborted ({len(trial)}): {trial[0].reason}")
        horizon, steps_of = setup.horizon_at(part.level), setup.kind.taskset.episode_steps
        steps = (
            fmean(min(horizon, steps_of(task) or horizon) for task in part.tasks) * part.episodes
        )
        played = len(rehearsal.requests) / len(part.tasks) * part.episodes if part.ends else steps
        for endpoint, requests in zip(
            part.endpoints, zip(*rehearsal.requests, strict=True), strict=True
        ):
            price, thought = chat.prices_at(endpoint), THINKING_TOKENS if endpoint.thinks else 0
            longest = max(request.prompt_tokens for request in requests)
            read = played * fmean(request.prompt_tokens for request in requests)
            more = max(0.0, min(LIKELY_STEPS * played, steps) - played)
            likely_read = read + more * longest
            likely_written = (played + more) * (LIKELY_LENGTH * part.usual + thought)
            likely = LIKELY_CALLS * price.cost(likely_read, likely_written)
            cost = (played, read, price.cost(read, played * (part.usual + thought)), likely)
            totals[:] = [total + amount for total, amount in zip(totals, cost, strict=True)]
            unknown |= set() if price.known else {part.name}
    cells = []
    for (name, level), (calls, tokens, *prices) in rows.items():
        dollars = [f"{usd:.4f}" for usd in prices]
        if name in unknown:
            dollars = ["unknown; give --price-in and --price-out", "unknown"]
        cells.append((name, level, f"{calls:.0f}", f"{tokens:.0f}", *dollars))
    columns = ("policy", "level", "calls", "prompt tokens", "US dollars", "likely below")
    calls, tokens, usd, likely = (sum(column) for column in zip(*rows.values(), strict=True))
    figures = {
        "calls": round(calls),
        "prompt_tokens": round(tokens),
        "usd": usd,
        "likely_usd": likely,
    }
    return Report(stage, setup.env_folder, figures, (), (Table(TITLE, columns, tuple(cells)),))
