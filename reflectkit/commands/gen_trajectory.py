"""gen-trajectory: generate demonstrations with reflections from a teacher: correct ones, and ones
with a mistake and its correction.

Problems come from the env itself or from a file (`data.json` in its folder). The oracle teacher
needs no network; with probability `--noise` it makes a deliberate mistake. A chat teacher acts, by
choices or by calls of tools, and comments. With `--actor oracle`, the oracle acts, and the chat
teacher sees the best action and comments without naming it. With `--actor decisions:MODEL` or
`systemone:MODEL`, a decision model acts, its probabilities are kept, and the env's own teacher
comments. `--negatives` adds demonstrations with one mistake each; `--min-reward` leaves out those
that did badly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from typing_extensions import override

from reflectkit.agents.decision_players import CommentedActor, DecisionModel, DecisionPolicy
from reflectkit.agents.scripted import Demonstrator, RandomAgent, Recovery
from reflectkit.chat.client import SPENT, ChatClient, Rejected, client_at
from reflectkit.chat.config import (
    HISTORY_HELP,
    HISTORY_TOKENS,
    ORACLE,
    DecisionConfig,
    Endpoint,
    TeacherConfig,
    address_in_use,
    free_estimate,
    parse_endpoint,
)
from reflectkit.chat.players import ChatTeacher, lesson_asked
from reflectkit.commands import Traits
from reflectkit.config import Config, Rule, option
from reflectkit.console import Bar, Progress, Report, Table, figures_table
from reflectkit.data.demonstrations import Planned, add_demonstrations
from reflectkit.data.problems import (
    TRAINED_SEEDS,
    Demonstration,
    Problems,
    Record,
    read_records,
    record_to_json,
)
from reflectkit.env import DEMONSTRATES, Agent
from reflectkit.envs import PROBLEMS, RECORDS
from reflectkit.envs.setup import (
    EnvConfig,
    EnvSetup,
    RolloutConfig,
    at_level,
    check_level,
    refuse_uncounted,
)
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure, ReflectkitError
from reflectkit.evals.estimate import Idle, PlannedCalls, decision_requests, estimate
from reflectkit.files import is_there
from reflectkit.jsonl import read_json, write_json
from reflectkit.models.refs import ModelRef
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.rollouts.tool_errors import ToolErrors
from reflectkit.runs.run import Run, RunConfig, open_run
from reflectkit.seeding import derive, generator
from reflectkit.text import pluralize
from reflectkit.types import Status, Task, Trajectory, reports_success

TEACHER = "teacher"
DEMONSTRATIONS = 57  # a 7:2:1 split then trains on 40
EXAMPLES = (
    "reflectkit gen-trajectory --env taxi --demonstrations 57 --noise 0.2",
    "reflectkit gen-trajectory --env auto_explore --negatives 2",
    "reflectkit gen-trajectory --env auto_explore --teacher openai:gpt-4o-mini --dry-run",
    (
        "reflectkit gen-trajectory --env memory --level short --teacher openai:gpt-4o-mini"
        " --min-reward 1.8"
    ),
    (
        "reflectkit gen-trajectory --env taxi --actor oracle --teacher openai:gpt-4o-mini"
        " --max-cost-usd 2"
    ),
)
MOST_SHOWN = 10  # aborted episodes that are printed; the report has all
ANALYSIS_TOKENS = 90  # that a teacher writes per step
CALLS_TOKENS = 300  # and of calls


TRAITS = Traits(writes_data=True)


class GenTrajectoryConfig(Config):
    """Settings of gen-trajectory."""

    env: EnvConfig
    task_file: Path | None = option(
        None,
        help="Problems, for envs that do not list their own; default: data.json in its folder.",
    )
    level: str = option(
        "",
        help="Curriculum level of the problems; default: the env's last, which is the full task.",
        essential=True,
    )
    demonstrations: int | None = option(
        None,
        help="Number of problems to demonstrate; default: 57, or all if they come from a file.",
        ge=1,
        essential=True,
    )
    actor: str = option(
        TEACHER,
        help="Who acts: teacher; oracle with comments by a chat teacher, which sees the best action;"
        " or a decision"
        " model (decisions:MODEL, systemone:MODEL), with comments by the environment's teacher,"
        " if it has one.",
    )
    noise: float | None = option(
        None,
        help=(
            "Probability that a step of the oracle is a mistake; default: the env's own, usually"
            " 0.2."
        ),
        ge=0,
        le=1,
        essential=True,
    )
    negatives: int | None = option(
        None,
        help="Demonstrations with a mistake per problem; default: the env's own, usually 0.",
        ge=0,
    )
    min_reward: float | None = option(
        None,
        help="Keep only demonstrations with at least this reward: the return; in memory the mean of"
        " the chunks'"
        " rewards, r1 + r2 + β r3 + γ r4. Default: all; of a chat model in an env that marks no"
        " mistakes, successes.",
        essential=True,
    )
    history_tokens: int = option(HISTORY_TOKENS, help=HISTORY_HELP, ge=0)
    teacher: TeacherConfig = TeacherConfig()
    decisions: DecisionConfig = DecisionConfig()
    rollout: RolloutConfig = RolloutConfig()
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run, self.rollout.horizon, self.teacher.chat)

    @override
    def contradictions(self) -> Iterator[Rule]:
        env, teacher, chat = self.env.name, self.teacher, self.teacher.chat
        teacher_type = self.env.kind.teacher_type

        # 1. The problems
        refuse_uncounted(self.env, dry_run=chat.dry_run, max_cost_usd=chat.max_cost_usd)
        lists_own = f"env '{env}' lists its own problems; leave out --task-file {self.task_file}"
        yield self.task_file is not None and not self.from_file, lists_own
        no_slips = f"env '{env}' has no negative examples (no slips()); leave out --negatives"
        yield self.negatives and not teacher_type.has("slips"), no_slips
        if self.level:
            check_level(env, self.level)

        # 2. A decision model that acts
        decides = self.decides
        no_teacher = (
            f"--actor {self.actor} takes no --teacher {teacher.name}; leave one of them out"
        )
        yield decides and not teacher.is_oracle, no_teacher
        slips = f"--negatives shows mistakes of the oracle, not of {self.actor}; leave it out"
        yield decides and self.negatives, slips
        if decides:
            chat.check_budget(self.endpoint)
        names = f"{TEACHER}, {ORACLE}, decisions:MODEL or systemone:MODEL"
        is_unknown = not decides and self.actor not in (TEACHER, ORACLE)
        yield is_unknown, f"--actor {self.actor!r}: write {names}"

        # 3. The environment's own teacher
        missing = [f"{name}()" for name in DEMONSTRATES if not teacher_type.has(name)]
        lacks = f"the teacher of env '{env}' lacks {' and '.join(missing)}; add that, or let"
        models = "--teacher openai:MODEL or local:MODEL: its successful episodes are kept"
        is_needed = teacher.is_oracle and not decides
        yield is_needed and missing, f"{lacks} a chat model act and comment, {models}"
        if self.oracle_acts:
            self.env.require_teacher()
        noise = "--noise is for an oracle that acts, not"
        yield (
            self.noise and not self.oracle_acts,
            f"{noise} {self.actor_name}; add --actor oracle",
        )

    @property
    def oracle_acts(self) -> bool:
        """Whether the env's oracle acts."""
        return self.actor == ORACLE or (self.teacher.is_oracle and not self.decides)

    @property
    def decides(self) -> bool:
        """Whether a decision model acts."""
        return ModelRef.parse(self.actor).decides

    @property
    def asks_model(self) -> bool:
        """Whether a decision model or a chat model is asked."""
        return self.decides or not self.teacher.is_oracle

    @property
    def target(self) -> Path:
        """The file of the demonstrations."""
        return self.setup.folder / RECORDS

    @property
    def endpoint(self) -> Endpoint:
        """Of the decision model that acts, or of the chat teacher. Raises ConfigError."""
        if not self.decides:
            return self.teacher.endpoint
        return parse_endpoint(
            self.actor, self.teacher.chat.base_url, "--actor", "teacher, oracle, ", decides=True
        )

    @property
    def actor_name(self) -> str:
        """The decision model that acts, or the teacher."""
        return self.actor if self.decides else self.teacher.name

    @property
    @override
    def environment(self) -> dict[str, str]:
        return address_in_use([self.endpoint] if self.decides else [])

    @property
    def keeps_successes(self) -> bool:
        """Whether only successful episodes are kept: nothing else says what was right."""
        return (
            not self.oracle_acts
            and self.min_reward is None
            and not self.env.kind.teacher_type.has("note")
        )

    @property
    def from_file(self) -> bool:
        """Whether the env's problems come from a file, such as `gen-task` writes."""
        kind = self.env.kind
        if not self.setup.taskset.has("tasks"):
            return self.task_file is not None or not Problems(self.setup).lists_none
        return bool(
            kind.taskset.problem_generator
            and (self.task_file or is_there(self.setup.folder / PROBLEMS))
        )


CONFIG = GenTrajectoryConfig


def run(config: GenTrajectoryConfig, progress: Progress) -> Report:
    """Write `data_reflection_negative.json`. Raises ConfigError, also if no episode becomes a
    demonstration, DataError, ApiError, BudgetSpentError, and EnvironmentFailure if every episode
    was aborted.
    """
    # 1. Resolve: the problems, and what is played on each
    plan = _resolve(config)
    if config.teacher.chat.dry_run:
        return _dry_run(config, plan, progress)

    config.setup.claim_folder()
    with open_run("gen-trajectory", config, _inputs(config, plan)) as current:
        if current.done:
            return current.done
        # 2. Build: who acts, and who is asked
        with _client(config) as client:
            agent = _agent(config, client)

            # 3. The episodes, and the demonstrations that they become
            episodes = _play(config, plan, agent, progress)
            call_figures = _call_figures(config, client, episodes, progress)
            harvest = _harvest(config, plan, episodes)

            # 4. Their file, also where the budget ended
            _write(config, plan, harvest, client, progress)

            # 5. Report
            _tell_omissions(config, plan, harvest, progress)
            return _report(config, plan, harvest, call_figures, current, progress)


@dataclass(frozen=True)
class Plan:
    """What is demonstrated."""

    level: str
    """Of the problems."""
    source: Path | None
    """The file of the problems; None for the env's own list."""
    records: Sequence[Record]
    """All problems, with the demonstrations that their file already has."""
    episodes: Planned
    """What is played, in order."""


@dataclass(frozen=True)
class Harvest:
    """What became of the episodes."""

    episodes: Sequence[Trajectory]
    """All of them, in the order of the plan."""
    demonstrations: Mapping[str, Sequence[Demonstration]]
    """By task: those that the problems came with, and then the new ones."""
    earlier_count: int
    """The number of those that the problems came with."""
    low_rewards: Sequence[float]
    """The rewards of episodes below --min-reward."""

    @cached_property
    def every(self) -> list[Demonstration]:
        """The demonstrations of all tasks."""
        return [item for items in self.demonstrations.values() for item in items]

    @property
    def has_new(self) -> bool:
        """Whether an episode became a demonstration."""
        return len(self.every) > self.earlier_count


def _resolve(config: GenTrajectoryConfig) -> Plan:
    """The problems, and the episodes to play on them. Raises ConfigError, DataError."""
    setup = config.setup
    level = config.level or config.env.kind.levels[-1]
    source = None
    if config.from_file:
        source = config.task_file or setup.folder / PROBLEMS
    records, tasks = _problems(config, level, source)
    return Plan(level, source, records, _planned(config, tasks))


def _inputs(config: GenTrajectoryConfig, plan: Plan) -> list[Path]:
    """The files that the run reads."""
    tasks = [record.task for record in plan.records]
    return [*([plan.source] if plan.source else []), *config.setup.input_files(tasks)]


def _planned(config: GenTrajectoryConfig, tasks: Sequence[Task]) -> Planned:
    """What is played: a positive demonstration of each of `tasks`, and then the negative ones."""
    negatives = config.negatives
    if negatives is None:
        negatives = config.env.kind.teacher_type.negatives
    if config.decides:
        negatives = 0
    planned = [("positive", 0, task) for task in tasks]
    for task in tasks:
        planned += [("negative", number, task) for number in range(negatives)]
    return planned


def _aborted(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """The ABORTED ones of `episodes`."""
    return [episode for episode in episodes if episode.status is Status.ABORTED]


def _client(config: GenTrajectoryConfig) -> AbstractContextManager[ChatClient | None]:
    """The client of the model that is asked, which keeps its answers in a journal; None if none is."""
    if not config.asks_model:
        return contextlib.nullcontext()
    journal = config.setup.env_folder / "journal.jsonl"
    temperature = 0.0 if config.decides else 1.0
    return client_at(config.teacher.chat, config.endpoint, journal, temperature=temperature)


def _oracle(config: GenTrajectoryConfig) -> Agent:
    """The env's oracle, which makes mistakes with probability --noise."""
    default = config.env.kind.teacher_type.noise
    return Demonstrator(default if config.noise is None else config.noise)


def _agent(config: GenTrajectoryConfig, client: ChatClient | None) -> Agent:
    """Who acts: the oracle alone, or with the model that `client` asks."""
    if client is None:
        return _oracle(config)
    if config.decides:
        model = DecisionModel(client, rules=not config.decisions.plain_questions)
        return CommentedActor(DecisionPolicy(model))
    actor = _oracle(config) if config.oracle_acts else None
    return ChatTeacher(client, actor, config.history_tokens)


def _call_figures(
    config: GenTrajectoryConfig,
    client: ChatClient | None,
    episodes: Sequence[Trajectory],
    progress: Progress,
) -> dict[str, Any]:
    """Figures of the calls that `client` made; empty without one. Answers that ended an episode go
    into `rejected.jsonl`.
    """
    if client is None:
        return {}
    unusable = []
    for episode in _aborted(episodes):
        if not episode.reason.endswith(SPENT):
            place = f"{episode.task.id}, step {len(episode.turns)}"
            unusable.append(Rejected(place, episode.reason, ""))
    return client.call_figures(unusable, config.setup.folder / "rejected.jsonl", progress)


def _harvest(config: GenTrajectoryConfig, plan: Plan, episodes: Sequence[Trajectory]) -> Harvest:
    """The demonstrations that the problems came with, and those that `episodes` become."""
    # 1. Those that the problems came with
    demonstrations: dict[str, list[Demonstration]] = {}
    for record in plan.records:
        if record.trajectories:
            demonstrations[record.task.id] = list(record.trajectories)
    earlier_count = sum(map(len, demonstrations.values()))

    # 2. The new ones
    low_rewards = add_demonstrations(
        demonstrations,
        plan.episodes,
        episodes,
        config.env.kind.teacher_type,
        config.endpoint.model if config.decides else config.teacher.model_name,
        config.min_reward,
        None if config.oracle_acts else config.setup.maker(plan.level),
        only_successes=config.keeps_successes,
    )
    return Harvest(episodes, demonstrations, earlier_count, low_rewards)


def _tell_omissions(
    config: GenTrajectoryConfig, plan: Plan, harvest: Harvest, progress: Progress
) -> None:
    """Say how many episodes were left out and why, and how many demonstrations were there before."""
    # 1. Episodes that were left out
    low_rewards = harvest.low_rewards
    failures = sum(not episode.success for episode in harvest.episodes)
    if low_rewards:
        count = pluralize(len(low_rewards), "episode")
        why = f"a reward of {min(low_rewards):.3g} to {max(low_rewards):.3g}"
        progress.news(f"{count} left out for {why}; see --min-reward")
    elif config.keeps_successes and failures:
        count = pluralize(failures, "episode")
        progress.news(f"{count} left out for no success; see --min-reward")

    # 2. Demonstrations that were there before
    if harvest.earlier_count:
        count = pluralize(harvest.earlier_count, "demonstration")
        progress.news(f"{count} of {plan.source} kept along with the new ones")


def _report(
    config: GenTrajectoryConfig,
    plan: Plan,
    harvest: Harvest,
    call_figures: Mapping[str, Any],
    current: Run,
    progress: Progress,
) -> Report:
    """The figures and tables of the run. call_figures: of the model that was asked."""
    # 1. The demonstrations
    figures = {"problems": len(plan.records), **_figures(plan, harvest), **call_figures}
    if config.min_reward is not None:
        figures["below_min_reward"] = len(harvest.low_rewards)
    title = f"Demonstrations in {config.target}"
    current.tables.append(figures_table(title, "count", figures))

    # 2. Aborted episodes
    reasons = {episode.task.id: episode.reason for episode in _aborted(harvest.episodes)}
    if reasons:
        figures["aborted_because"] = reasons
        cells = tuple(reasons.items())[:MOST_SHOWN]
        current.tables.append(Table("Aborted", ("problem", "reason"), cells))

    # 3. The chat models that the env asks
    usage_of_env = config.setup.asked(progress)
    if usage_of_env:
        figures["asked"] = usage_of_env
    return current.finish(figures, [config.target])


def _figures(plan: Plan, harvest: Harvest) -> dict[str, Any]:
    """Figures of the episodes, and of all demonstrations that there are now."""
    positive = []
    for (label, *_), episode in zip(plan.episodes, harvest.episodes, strict=True):
        if label == "positive":
            positive.append(episode)
    notes = [step.note for item in harvest.every for step in item.trajectory]
    return {
        "demonstrations": len(positive),
        **_result_of(positive),
        "negatives": sum(item.negative for item in harvest.every),
        "aborted": len(_aborted(harvest.episodes)),
        "steps": len(notes),
        "mistakes": notes.count("mistake"),
        "corrections": notes.count("correction"),
    }


def _write(
    config: GenTrajectoryConfig,
    plan: Plan,
    harvest: Harvest,
    client: ChatClient | None,
    progress: Progress,
) -> None:
    """Write the records with their demonstrations, if there are new ones.

    Raises BudgetSpentError if the budget of `client` ended, and if nothing is new what
    `_nothing_to_write` says.
    """
    # 1. The file
    state = "no episode has become a demonstration"
    if harvest.has_new:
        _write_records(config.target, plan.records, harvest.demonstrations, progress)
        state = f"{pluralize(len(harvest.every), 'demonstration')} in {config.target}"

    # 2. What stopped short
    if client is not None:
        client.stop_if_spent(state)
    if not harvest.has_new:
        raise _nothing_to_write(config, harvest.episodes)


def _write_records(
    path: Path,
    records: Sequence[Record],
    demonstrations: Mapping[str, Sequence[Demonstration]],
    progress: Progress,
) -> None:
    """Write the records with these demonstrations, by task."""
    before, now = _count(path), sum(map(len, demonstrations.values()))
    if before > now:
        count = pluralize(before, "demonstration")
        progress.news(f"{path} had {count}, which these {now} replace")
    lines = []
    for record in records:
        items = tuple(demonstrations.get(record.task.id, ()))
        lines.append(record_to_json(Record(record.task, items)))
    write_json(path, lines)


def _problems(
    config: GenTrajectoryConfig, level: str, source: Path | None
) -> tuple[list[Record], list[Task]]:
    """(the problems, with the demonstrations that their file already has; those to demonstrate)."""
    # 1. All problems, and those of the level
    if source is None:
        problems = Problems(config.setup)
        if problems.lists_none:
            count = max(TRAINED_SEEDS, config.demonstrations or 0)
            tasks = problems.seeds("train", level, count)
        else:
            tasks = config.setup.listed(level)
        records = at_this_level = [Record(task, ()) for task in tasks]
    else:
        config.setup.require(source)
        taskset, records = config.env.kind.taskset, read_records(source, config.setup.env_name)
        at_this_level = []
        for record in records:
            if taskset.at_level(record.task, level) is not None:
                at_this_level.append(record)
        if not at_this_level:
            at_level(config.env.name, [record.task for record in records], level, source)  # raises
        if not taskset.keeps_other_levels:
            records = at_this_level

    # 2. Those to demonstrate
    most = len(at_this_level)
    default = most if config.from_file else min(DEMONSTRATIONS, most)
    count = config.demonstrations or default
    if count > most:
        problems_there = f"level '{level}' has {pluralize(most, 'problem')}"
        raise ConfigError(f"--demonstrations is {count}, but {problems_there}; lower it")
    places = sorted(generator(config.run.seed, "chosen").sample(range(most), count))
    return records, [at_this_level[place].task for place in places]


def _play(
    config: GenTrajectoryConfig, plan: Plan, teacher: Agent, progress: Progress
) -> list[Trajectory]:
    """An episode for each item of the plan, in order: positive ones by the teacher, negative ones
    corrected by it.
    """
    seed, make, width = config.run.seed, config.setup.maker(plan.level), config.rollout.width
    if config.teacher.chat.max_cost_usd is not None:  # the budget then pays for whole episodes
        width = min(width, config.teacher.chat.concurrency)
    # The seed of an episode does not depend on the others
    parts: dict[str, list[Episode]] = {"positive": [], "negative": []}
    for label, number, task in plan.episodes:
        path = ("demonstration", task.id) if label == "positive" else ("negative", number, task.id)
        parts[label].append(Episode(task, derive(seed, *path)))
    trajectories: list[Trajectory] = []
    tool_errors = ToolErrors(progress.news)
    for label, episodes in parts.items():
        if not episodes:
            continue
        # The oracle makes a mistake first, and the teacher goes on from there
        agent = teacher if label == "positive" else Recovery(teacher)
        with progress.bar(f"Demonstrations, {label}", len(episodes)) as bar:

            def on_end(trajectory: Trajectory, bar: Bar = bar) -> None:
                tool_errors.see(trajectory)
                bar.advance()

            trajectories += rollout(episodes, make, agent, width=width, on_end=on_end)
    return trajectories


def _result_of(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """How many of these episodes succeeded, or their mean return where the env does not report
    success.
    """
    whole = [episode for episode in episodes if episode.status is not Status.ABORTED]
    if whole and not _report_success(whole):
        return {"return": fmean(episode.total_return for episode in whole)}
    return {"solved": sum(episode.success for episode in whole)}


def _report_success(episodes: Sequence[Trajectory]) -> bool:
    return reports_success((episode.status, episode.reported_success) for episode in episodes)


def _count(path: Path) -> int:
    """How many demonstrations a file has; 0 if there is none, or it cannot be read."""
    with contextlib.suppress(DataError, KeyError, TypeError):
        return sum(len(record["trajectories"]) for record in read_json(path))
    return 0


def _nothing_to_write(
    config: GenTrajectoryConfig, episodes: Sequence[Trajectory]
) -> ReflectkitError:
    """Why no episode became a demonstration, and what to do."""
    whole = [episode for episode in episodes if episode.status is not Status.ABORTED]
    if not whole:
        reason = episodes[0].reason
        return EnvironmentFailure(f"every episode was aborted ({len(episodes)}): {reason}")
    none = f"none of {pluralize(len(whole), 'episode')} by {config.actor_name}"
    highest = max(float(config.env.kind.teacher_type.reward_of(episode)) for episode in whole)
    if config.keeps_successes and not _report_success(whole):
        what = f"{none} succeeded, as far as its env says; the highest reward is {highest:.4g}"
        return ConfigError(f"{what}; keep those with enough reward by --min-reward")
    if config.keeps_successes and not any(episode.success for episode in whole):
        what = f"{none} succeeded; the highest reward is {highest:.4g}"
        return ConfigError(f"{what}. Keep those with less by --min-reward, or use another teacher")
    if config.min_reward is not None and highest < config.min_reward:
        what = f"{none} reaches --min-reward {config.min_reward:g}; the highest is {highest:.4g}"
        return ConfigError(f"{what}. Lower it, or use another teacher")
    what = f"{none} is a demonstration in env '{config.env.name}'"
    return ConfigError(f"{what}; use another teacher, or more problems")


def _dry_run(config: GenTrajectoryConfig, plan: Plan, progress: Progress) -> Report:
    """The cost of a teacher that acts like the oracle, or at random where there is none."""
    if not config.asks_model:
        return Report("gen-trajectory", config.setup.env_folder, *free_estimate())
    tasks = list({task.id: task for _, _, task in plan.episodes}.values())
    planned = _decisions(config, plan, tasks) if config.decides else _lessons(config, plan, tasks)
    chat, seed = config.teacher.chat, config.run.seed
    return estimate("gen-trajectory", config.setup, chat, planned, progress, seed)


def _decisions(
    config: GenTrajectoryConfig,
    plan: Plan,
    tasks: Sequence[Task],
) -> list[PlannedCalls]:
    """The calls of a decision model that acts in `tasks`."""
    endpoint = config.endpoint
    rules = not config.decisions.plain_questions
    calls_of = partial(decision_requests, endpoint=endpoint, rules=rules)
    return [
        PlannedCalls(
            str(endpoint), plan.level, tasks, len(tasks), [endpoint], calls_of, answer_tokens=0
        )
    ]


def _lessons(
    config: GenTrajectoryConfig,
    plan: Plan,
    tasks: Sequence[Task],
) -> list[PlannedCalls]:
    """The calls of a chat teacher in `tasks`, in the states of a player that needs no model."""
    # 1. The player
    kind, endpoint = config.env.kind, config.endpoint
    form = kind.action_kind(config.env.settings)
    has_oracle = config.oracle_acts or kind.teacher_type.has(*DEMONSTRATES)
    agent: Agent = RandomAgent() if form == "choice" else Idle()
    if has_oracle:
        agent = _oracle(config) if config.oracle_acts else Demonstrator(0.0)

    # 2. The calls in right episodes
    writes_calls = form == "tools" and not config.oracle_acts
    tokens = ANALYSIS_TOKENS + (CALLS_TOKENS if writes_calls else 0)
    acts = not config.oracle_acts
    positive = PlannedCalls(
        str(endpoint),
        plan.level,
        tasks,
        len(tasks),
        [endpoint],
        lambda observation, context: [
            lesson_asked(observation, context, config.history_tokens, acts=acts)[0]
        ],
        tokens,
        agent,
        has_real_length=has_oracle,
    )

    # 3. And in those with mistakes
    negative_count = len(plan.episodes) - len(tasks)
    if not negative_count:
        return [positive]
    negative = replace(positive, episodes=negative_count, has_real_length=True, wrap=Recovery)
    return [positive, negative]
