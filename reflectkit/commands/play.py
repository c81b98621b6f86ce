"""play: watch an environment or play it yourself, step by step. The player is a person, the oracle,
a rule or a checkpoint.

Each step shows the observation as the players see it, a reflector's comment, the chosen action and
the reward. At a prompt, h lists the commands. Every episode is saved in `episodes.jsonl`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from reflectkit.agents.human import HELP_KEYS, QUIT, Human, action_text, keys_of
from reflectkit.agents.mismatches import playing_mismatches
from reflectkit.agents.player_refs import Player, model_folders, parse_policy, player_files
from reflectkit.agents.players import Players, PlayersSetup
from reflectkit.chat.config import (
    OF_CHAT_MODELS,
    ChatConfig,
    DecisionConfig,
    Endpoint,
    address_in_use,
    key_of,
)
from reflectkit.config import Config, Rule, flag, non_default, option
from reflectkit.console import Progress, Report, Table
from reflectkit.data.episodes import episode_to_json
from reflectkit.data.problems import Problems, read_records
from reflectkit.env import Agent, Context, Env, rules_of
from reflectkit.envs import PROBLEMS, SPLITS, cluster_of
from reflectkit.envs.setup import (
    HORIZON_HELP,
    EnvConfig,
    EnvSetup,
    at_level,
    check_level,
    refuse_uncounted,
)
from reflectkit.errors import ConfigError, EnvironmentFailure, unknown_name
from reflectkit.jsonl import append
from reflectkit.models.refs import TEACHER, ModelRef, resolved
from reflectkit.prompts import ACTION_MARKER, one_line
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.runs.run import RunConfig, open_run
from reflectkit.sampling.config import SamplerConfig
from reflectkit.sampling.engine import PlayerEngineConfig
from reflectkit.seeding import derive, generator
from reflectkit.text import pluralize
from reflectkit.types import (
    AGENT_MARKER,
    Decision,
    Observation,
    Status,
    Task,
    Trajectory,
    Turn,
    reports_success,
)

MOST_SHOWN = 4  # maximum number of choices shown with their probabilities
LEAST_SHOWN = 0.005  # minimum probability of a shown choice
NEXT = "Enter: take it; h: the rules; q: leave > "
Comment = Callable[[Observation, Context], Awaitable[str]]


class Narrator:
    """Shows what `agent` observes, the comments on it, its actions and their rewards.

    wait: wait for a key before each step. stopped: whether the person who watches has quit.
    """

    def __init__(
        self, agent: Agent, comment: Comment | None, progress: Progress, *, wait: bool
    ) -> None:
        self.agent, self.comment, self.progress, self.wait = agent, comment, progress, wait
        self.stopped = False

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The agent's decision."""
        # 1. What the player sees
        person = isinstance(self.agent, Human)
        if context.turns and (context.turns[-1].reward or not observation.replies):
            self.tell_reward(context.turns)
        self.see(f"Step {len(context.turns) + 1}", observation, context.turns)
        if person and not context.turns:
            self.progress.news(f"Keys: {keys_of(context.env)}")

        # 2. The comment
        comment = (
            None if self.comment is None else one_line(await self.comment(observation, context))
        )
        if comment is not None:
            self.progress.news(f"Reflection: {comment}")

        # 3. The action
        decision = await self.agent.decide(observation, context)
        if not person:
            self.progress.news(decision_text(observation, decision, commented=comment is not None))
        if comment is not None or person:
            decision = replace(decision, reflection=comment)

        # 4. A person who watches may stop here
        if self.wait and not decision.truncation_reason and not decision.failure:
            self.stopped = not self._wants_next(context.env)
        return replace(decision, truncation_reason=QUIT) if self.stopped else decision

    def see(self, heading: str, observation: Observation, turns: Sequence[Turn]) -> None:
        """Show the messages of `observation` that were not shown before; the agent's own were, as
        its decisions.
        """
        self.progress.news(f"── {heading} ──")
        # 1. The messages after those that the last observation had, too
        before = turns[-1].observation.messages if turns else ()
        same = 0
        for old, new in zip(before, observation.messages, strict=False):
            if old != new:
                break
            same += 1
        messages = observation.messages[same:]
        if not messages and not observation.replies:
            messages = observation.messages[-1:]

        # 2. Their texts
        lines = []
        for message in messages:
            if message.role != "assistant":
                lines.append(message.entry if observation.replies else message.content)
        if lines:
            self.progress.news("\n".join(lines))

    def tell_reward(self, turns: Sequence[Turn]) -> None:
        """Show the reward of the last of `turns`."""
        total = sum(turn.reward for turn in turns)
        self.progress.news(f"Reward {turns[-1].reward:+.3g}, return so far {total:+.3g}.")

    def tell_end(self, trajectory: Trajectory) -> None:
        """Show the last view and how it ended, unless the env did not end it."""
        if (
            trajectory.final
            and trajectory.status is not Status.ABORTED
            and not trajectory.unexecuted_decision
        ):
            self.tell_reward(trajectory.turns)
            self.see("The end", trajectory.final, trajectory.turns)

    def _wants_next(self, env: Env) -> bool:
        """Whether the person who watches wants the next step."""
        while (answer := self.progress.ask(NEXT)) is not None:
            key = answer.strip().casefold()
            if key in ("", "q"):
                return not key
            self.progress.news(
                rules_of(env) if key in HELP_KEYS else f"{answer.strip()[:60]!r} is no key."
            )
        return False


def decision_text(observation: Observation, decision: Decision, *, commented: bool) -> str:
    """A decision in words: the reflection unless already shown, the probabilities, and the action."""
    lines = []
    if decision.reflection is not None and not commented:
        lines.append(f"Reflection: {one_line(decision.reflection)}")
    if decision.truncation_reason or decision.failure:
        return "\n".join([*lines, str(decision.truncation_reason or decision.failure)])
    # The likeliest choices, unless nearly none of the probability is left
    likely = sorted(enumerate(decision.probabilities), key=lambda item: -item[1])[:MOST_SHOWN]
    shares = [
        f"{100 * share:.0f} % {one_line(observation.choices[index])}"
        for index, share in likely
        if share >= LEAST_SHOWN
    ]
    if shares:
        lines.append("Policy: " + ", ".join(shares))
    marker = AGENT_MARKER if observation.replies else ACTION_MARKER
    # Models begin with a space, as their rows do
    action = action_text(observation, decision.action).lstrip(" ")
    return "\n".join([*lines, f"{marker} {action}"])


EXAMPLES = (
    "reflectkit play --env taxi",
    "reflectkit play --env taxi --teacher --level pickup --seed 7",
    "reflectkit play --env memory --policy oracle --auto",
    "reflectkit play --env taxi"
    " --policy"
    ' "ours=results/taxi-tiny/reflect-rl/checkpoint-36+results/taxi-tiny/reflector/checkpoint-700"',
)
PERSON, ORACLE = "person", "oracle"
NOBODY = (
    "standard input is closed or empty; use a terminal, pipe in the answers, or give --policy"
    " oracle --auto"
)


class PlayConfig(Config):
    """Settings of play."""

    env: EnvConfig
    policy: str = option(
        PERSON,
        help="Who plays: person, oracle, random, a baseline of the env, your own rule"
        " (FILE.py:FUNCTION), a decision model (decisions:MODEL, systemone:MODEL), or"
        " NAME=MODEL[+REFLECTOR]; the reflector may be a chat model (openai:MODEL,"
        " azure:DEPLOYMENT, local:MODEL).",
        essential=True,
    )
    reflector: ModelRef | None = option(
        None,
        help="Reflector that comments for a player without one; a checkpoint or a chat model.",
        essential=True,
    )
    teacher: bool = option(
        False, help="Show the oracle teacher's comment instead of a reflector's.", essential=True
    )
    task_file: Path | None = option(
        None, help="Problems; default: the env's own, or test.json or data.json in its folder."
    )
    level: str = option(
        "", help="Curriculum level; default: the last, or any level in a file.", essential=True
    )
    task: str = option("", help="The problem's id; default: a random one, by --seed.")
    count: int = option(1, help="Number of episodes to play.", ge=1, essential=True)
    auto: bool = option(
        False,
        help="Do not wait for a key between the steps of a player other than a person.",
        essential=True,
    )
    temperature: float = option(
        0.0, help="Sampling temperature of a checkpoint; 0 takes the likeliest action.", ge=0
    )
    max_new_tokens: int = option(
        128, help="Maximum tokens of an answer in environments without enumerated actions.", ge=1
    )
    device: str = option("auto", help="auto, cpu, cuda, …")
    horizon: int = option(0, help=HORIZON_HELP, ge=0)
    sampler: SamplerConfig = SamplerConfig()
    engine: PlayerEngineConfig = PlayerEngineConfig()
    chat: ChatConfig = ChatConfig()
    decisions: DecisionConfig = DecisionConfig()
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run, self.horizon, self.chat)

    @property
    def is_person(self) -> bool:
        """Whether a person plays."""
        return self.player.name == PERSON

    @property
    def players(self) -> PlayersSetup:
        """What the players are made with."""
        return PlayersSetup(
            self, (self.player,), self.env.kind, self.setup.env_folder, self.setup.folder
        )

    @override
    def contradictions(self) -> Iterator[Rule]:
        # 1. Who comments
        if self.level:
            check_level(self.env.name, self.level)
        has_reflector = self.reflector is not None
        both = "--reflector and --teacher both comment; leave one out"
        yield has_reflector and self.teacher, both
        of_checkpoint = "a checkpoint reads its own reflector's comment"
        has_comments = has_reflector or self.teacher
        yield (
            has_comments and self.player.checkpoint is not None,
            f"{of_checkpoint}: write --policy NAME=CHECKPOINT+REFLECTOR",
        )

        # 2. What the environment's teacher can do, and what calls cost
        if self.policy == ORACLE:
            self.env.require_teacher("action")
        if self.teacher or self.player.reflector == TEACHER:
            self.env.require_teacher("comment")
        refuse_uncounted(self.env, dry_run=self.chat.dry_run, max_cost_usd=self.chat.max_cost_usd)
        for endpoint in self.asked_endpoints:
            self.chat.check_budget(endpoint)
        for name in non_default(self, *OF_CHAT_MODELS):
            of_models = f"{flag(name)} is for a chat model as in --policy A=MODEL+openai:MODEL"
            yield not self.asked_endpoints, f"{of_models}; leave it out"

    @property
    def asked_endpoints(self) -> list[Endpoint]:
        """The decision model that plays, and the chat or decision model that comments, if any do."""
        comments = (
            [self.reflector] if self.reflector is not None and self.reflector.is_asked else []
        )
        return [
            self.players.endpoint_of(str(model)) for model in (*self.player.api_models, *comments)
        ]

    @property
    @override
    def environment(self) -> dict[str, str]:
        return address_in_use(self.asked_endpoints)

    @property
    def player(self) -> Player:
        """Who plays."""
        player = parse_policy(self.policy, (PERSON, *self.env.kind.baselines))
        if player.is_asked and not player.decides:
            raise ConfigError(
                f"--policy {self.policy}: chat models play in `reflectkit evaluate`; `view`"
                " shows their episodes"
            )
        return player


CONFIG = PlayConfig


def run(config: PlayConfig, progress: Progress) -> Report:
    """Write `episodes.jsonl`, a line after each episode.

    Raises ConfigError, CheckpointError, DataError, and EnvironmentFailure if all episodes were
    aborted.
    """
    if not config.is_person and not config.auto and not progress.attended:
        raise ConfigError("there is no terminal to wait for keys; add --auto")

    # 1. Resolve: the problems, who plays, and who comments
    session = _resolve(config, progress)
    if config.chat.dry_run:
        return _dry_run(config, session, progress)
    _announce(config, session, progress)

    inputs = _inputs(config, session)
    with (
        open_run("play", config, inputs, again=True) as current,
        contextlib.closing(Players(config.players)) as players,
    ):
        # 2. Build
        narrator = _narrator(config, session, players, progress)
        # 3. Play
        path = current.folder / "episodes.jsonl"
        trajectories = _play(config, session, narrator, path, progress)
        # 4. Report
        if len(trajectories) > 1:
            current.tables.append(_table(config.player.name, trajectories))
        figures = _figures(trajectories)
        players.report(progress)
        if all(trajectory.status is Status.ABORTED for trajectory in trajectories):
            raise EnvironmentFailure(f"no episode was played to its end; see {path}")
        if players.usage:
            figures["asked"] = players.usage
        return current.finish(figures, [path])


@dataclass(frozen=True)
class Session:
    """What is played, and by whom."""

    source: Path | None
    """The file of the problems; None for the env's own."""
    choice: Sequence[Task]
    """The problems to draw from."""
    problems: Sequence[Task]
    """The problem of each episode."""
    player: Player
    """Who plays."""
    commentator: ModelRef | None
    """Who comments for a player without a reflector of its own."""

    @property
    def model_folders(self) -> list[Path]:
        """The folders of the models that play or comment."""
        return model_folders((self.player.policy, self.player.reflector, self.commentator))


def _resolve(config: PlayConfig, progress: Progress) -> Session:
    """The problems, in random order, and the models. Raises ConfigError, CheckpointError, DataError."""
    # 1. The problems
    source, tasks = _problems(config)
    order = list(tasks)
    generator(config.run.seed, "play").shuffle(order)
    problems = [order[number % len(order)] for number in range(config.count)]

    # 2. Who plays, and who comments
    player = config.player.resolved(config.run.data_dir, progress)
    commentator = TEACHER if config.teacher else config.reflector
    commentator = resolved(commentator, config.run.data_dir, progress, reflects=True)
    if player.checkpoint is not None:
        config.sampler.answer_of(player.checkpoint)
    return Session(source, tasks, problems, player, commentator)


def _dry_run(config: PlayConfig, session: Session, progress: Progress) -> Report:
    """What the calls of chat models would cost."""
    from reflectkit.evals.estimate import estimate, planned_calls

    player = session.player
    if not player.api_models:
        player = replace(player, reflector=session.commentator)
    calls = []
    for task in session.problems:
        calls.append(planned_calls(player, config.players, task.level, [task], 1))
    return estimate("play", config.setup, config.chat, calls, progress, config.run.seed)


def _announce(config: PlayConfig, session: Session, progress: Progress) -> None:
    """Say what to know before it begins. Raises ConfigError: the key of a chat model is missing."""
    for endpoint in config.asked_endpoints:
        key_of(endpoint)
    folders = session.model_folders
    for warning in playing_mismatches(config.env, [session.player], folders):
        progress.news(f"warning: {warning}")
    if folders:
        progress.news(f"loading {' and '.join(map(str, folders))}")


def _inputs(config: PlayConfig, session: Session) -> list[Path]:
    """The files that the run reads."""
    setup = config.setup
    inputs = [session.source] if session.source else []
    inputs += [*session.model_folders, *setup.input_files(session.choice)]
    inputs += config.sampler.input_files(setup.folder)
    inputs += player_files([session.player])
    return inputs


def _narrator(
    config: PlayConfig, session: Session, players: Players, progress: Progress
) -> Narrator:
    """The player, made by `players`, and the comments. Raises CheckpointError, ConfigError."""
    agent: Any = Human(progress) if config.is_person else players.agent(session.player)
    comment = None
    if session.commentator:
        comment = players.reflector(session.commentator).remark
    waits = not config.is_person and not config.auto
    return Narrator(agent, comment, progress, wait=waits)


def _play(
    config: PlayConfig, session: Session, narrator: Narrator, path: Path, progress: Progress
) -> list[Trajectory]:
    """Play the problems until somebody quits, and append each episode to `path`.

    Raises ConfigError if a person is to play and there are no answers.
    """
    person = narrator.agent if isinstance(narrator.agent, Human) else None
    trajectories: list[Trajectory] = []
    for number, task in enumerate(session.problems):
        # 1. The episode
        progress.news(f"{config.env.name}, level {task.level}, task {task.id}")
        seed = derive(config.run.seed, "play", task.id, number)
        trajectory = _episode(Episode(task, seed), config.setup, narrator)
        has_ended = trajectory.status is not Status.ABORTED
        says_nothing = person is not None and not person.has_answered
        if has_ended and says_nothing and not progress.attended:
            raise ConfigError(NOBODY)

        # 2. How it ended
        narrator.tell_end(trajectory)
        progress.news(_ending(trajectory))
        trajectories.append(trajectory)
        cluster = cluster_of(config.env.name, task)
        append(path, [episode_to_json(config.player.name, trajectory, cluster=cluster)])
        if narrator.stopped or (person is not None and person.has_quit):
            break
    return trajectories


def _episode(episode: Episode, setup: EnvSetup, agent: Agent) -> Trajectory:
    """One episode, in an env of its level."""
    env = setup.make(setup.horizon_at(episode.task.level))
    (trajectory,) = rollout([episode], lambda: env, agent)
    return trajectory


def _table(name: str, trajectories: Sequence[Trajectory]) -> Table:
    """The outcome of each episode of player `name`."""
    rows = []
    for trajectory in trajectories:
        steps = len(trajectory.turns)
        total_return = f"{trajectory.total_return:.3g}"
        rows.append((trajectory.task.id, _outcome(trajectory), total_return, str(steps)))
    return Table(f"Episodes of {name}", ("task", "outcome", "return", "steps"), tuple(rows))


def _figures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Figures of all episodes: successes, if they are reported, steps and the mean return."""
    figures: dict[str, Any] = {"episodes": len(trajectories)}
    outcomes = [(trajectory.status, trajectory.reported_success) for trajectory in trajectories]
    if reports_success(outcomes):
        figures["successes"] = sum(trajectory.success for trajectory in trajectories)
    total_return = sum(trajectory.total_return for trajectory in trajectories)
    figures["steps"] = sum(len(trajectory.turns) for trajectory in trajectories)
    figures["return"] = total_return / len(trajectories)
    return figures


def _problems(config: PlayConfig) -> tuple[Path | None, Sequence[Task]]:
    """(file of the problems, problems to draw from)."""
    kind, setup, source, tasks = config.env.kind, config.setup, config.task_file, list[Task]()
    problems, level = Problems(setup), config.level or kind.levels[-1]
    if source is None and setup.taskset.has("tasks"):
        tasks = setup.listed(level)
    elif source is None and problems.by_seed:
        # One that is named may be held out
        splits = SPLITS if config.task else SPLITS[:1]
        tasks = [task for split in splits for task in problems.tasks(split, level)]
    else:
        # From a file: the given one, the split's test problems, or all problems
        places = [setup.folder / name for name in ("test.json", PROBLEMS)]
        source = source or next((place for place in places if place.is_file()), None)
        if source is None and kind.taskset.has("example"):
            return None, [
                kind.taskset.example(
                    config.level or kind.levels[0], derive(config.run.seed, "example")
                )
            ]
        source = source or places[-1]
        setup.require(source)
        tasks = [record.task for record in read_records(source, setup.env_name)]
        if config.level:
            tasks = at_level(config.env.name, tasks, config.level, source)
    if config.task and config.task not in (names := [task.id for task in tasks]):
        raise unknown_name(f"task of {source or config.env.name}", config.task, names)
    return source, [task for task in tasks if config.task in ("", task.id)]


def _outcome(trajectory: Trajectory) -> str:
    if trajectory.status is Status.TRUNCATED and not trajectory.success:
        return trajectory.reason or "out of steps"
    if trajectory.status is Status.ABORTED:
        return f"aborted: {trajectory.reason}"
    if trajectory.reported_success is None:
        return "ended"
    return "success" if trajectory.success else "no success"


def _ending(trajectory: Trajectory) -> str:
    outcome = _outcome(trajectory)
    penalty = trajectory.truncation_penalty + sum(
        turn.info.get("truncation_penalty", 0.0) for turn in trajectory.turns
    )
    unplayed = f", {penalty:+.3g} of it for the steps not taken" if penalty else ""
    steps = pluralize(len(trajectory.turns), "step")
    return (
        f"{outcome[:1].upper()}{outcome[1:]}: return {trajectory.total_return:+.3g} in"
        f" {steps}{unplayed}."
    )
