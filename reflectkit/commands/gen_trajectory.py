"""gen-trajectory: generate demonstrations with reflections from a teacher: correct ones, and ones
with a mistake and its correction.

Problems come from the env itself or from a file (`data.json` in its folder). The oracle teacher
needs no network; with probability `--noise` it makes a deliberate mistake. A chat teacher acts, by
choices or by calls of tools, and comments. With `--actor oracle`, the oracle acts, and the chat
teacher sees the best action and comments without naming it. With `--actor decisions:MODEL` or
`systemone:MODEL`, a decision model acts, its probabilities are kept, and the env's own teacher
comments. `--negatives` adds demonstrations with one mistake each; `--min-reward` leaves out those
that did badly.

With `--states-of` nothing is demonstrated: a player's recorded episodes are replayed, and the
oracle comments on the states that it visited.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from pydantic import model_validator
from typing_extensions import override

from reflectkit.agents.decision_players import CommentedActor, DecisionModel, DecisionPolicy
from reflectkit.agents.scripted import Demonstrator, RandomAgent, Recovery
from reflectkit.chat.client import SPENT, Rejected, client_at
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
from reflectkit.config import Config, flag, non_default, option
from reflectkit.console import Progress, Report, Table, figures_table
from reflectkit.data.demonstrations import Planned, add_demonstrations, read_visits, relabel
from reflectkit.data.problems import TRAINED_SEEDS, Problems, Record, read_records, record_to_json
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
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure, ReflectkitError, refuse
from reflectkit.jsonl import read_json, write_json
from reflectkit.models.refs import ModelKind, ModelRef
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.rollouts.tool_errors import ToolErrors
from reflectkit.runs.run import RunConfig, open_run, write_permission
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
NOT_WITH_STATES_OF = (
    "demonstrations", "noise", "negatives", "level", "teacher", "actor", "min_reward", "dry_run", "max_cost_usd",
    "base_url", "history_tokens", "horizon",
)  # fmt: skip
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
    states_of: Path | None = option(
        None,
        help="An evaluation on training problems, or a file of demonstrations: comment on the states"
        " visited there"
        " (DAgger) and add them to the training split's, in train_visited.json.",
    )
    player: str = option(
        "", help="Whose episodes to take from --states-of, if it has several players."
    )
    states: int = option(0, help="Comment on at most this many of these states; 0: all.", ge=0)
    history_tokens: int = option(HISTORY_TOKENS, help=HISTORY_HELP, ge=0)
    teacher: TeacherConfig = TeacherConfig()
    decisions: DecisionConfig = DecisionConfig()
    rollout: RolloutConfig = RolloutConfig()
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run, self.rollout.horizon, self.teacher.chat)

    @model_validator(mode="after")
    def _check(self) -> Self:
        kind, teacher = self.env.kind, self.teacher
        refuse_uncounted(
            self.env, dry_run=teacher.chat.dry_run, max_cost_usd=teacher.chat.max_cost_usd
        )
        if self.states_of is not None:
            self.env.require_teacher("action", "note", "comment")
            for name in non_default(self, *NOT_WITH_STATES_OF):
                raise ConfigError(
                    f"{flag(name)}: with --states-of nothing is demonstrated; leave it out"
                )
            return self
        for name in non_default(self, "states", "player"):
            raise ConfigError(f"{flag(name)} needs --states-of; leave it out")
        listed = (
            f"env '{self.env.name}' lists its own problems; leave out --task-file {self.task_file}"
        )
        refuse(self.task_file is not None and not self.from_file, listed)
        no_slips = (
            f"env '{self.env.name}' has no negative examples (no slips()); leave out --negatives"
        )
        refuse(self.negatives and not kind.teacher_type.has("slips"), no_slips)
        if self.level:
            check_level(self.env.name, self.level)
        if self.decides:
            refuse(
                not teacher.is_oracle,
                (f"--actor {self.actor} takes no --teacher {teacher.name}; leave one of them out"),
            )
            refuse(
                self.negatives,
                f"--negatives shows mistakes of the oracle, not of {self.actor}; leave it out",
            )
            teacher.chat.check_budget(self.endpoint)
        elif self.actor not in (TEACHER, ORACLE):
            raise ConfigError(
                f"--actor {self.actor!r}: write {TEACHER}, {ORACLE}, decisions:MODEL or"
                " systemone:MODEL"
            )
        lacking = [f"{name}()" for name in DEMONSTRATES if not kind.teacher_type.has(name)]
        other = (
            "add that, or let a chat model act and comment, --teacher openai:MODEL or local:MODEL"
        )
        lacks = f"the teacher of env '{self.env.name}' lacks {' and '.join(lacking)}"
        unable = teacher.is_oracle and lacking and not self.decides
        refuse(unable, f"{lacks}; {other}: its successful episodes are kept")
        if self.oracle_acts:
            self.env.require_teacher()
        elif self.noise:
            raise ConfigError(
                f"--noise is for an oracle that acts, not {self.actor_name}; add --actor oracle"
            )
        return self

    @property
    def oracle_acts(self) -> bool:
        """Whether the env's oracle acts."""
        return self.actor == ORACLE or (self.teacher.is_oracle and not self.decides)

    @property
    def decides(self) -> bool:
        """Whether a decision model acts."""
        return ModelRef.parse(self.actor).kind is ModelKind.DECISION

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
            and (self.task_file or (self.setup.folder / PROBLEMS).exists())
        )


CONFIG = GenTrajectoryConfig


def run(config: GenTrajectoryConfig, progress: Progress) -> Report:
    """Write `data_reflection_negative.json`. Raises ConfigError, also if no episode becomes a
    demonstration, DataError, ApiError, BudgetSpentError, and EnvironmentFailure if every episode
    was aborted.
    """
    if config.states_of is not None:
        return _comment_on_visited(config, config.states_of, progress)
    setup, teacher, kind = config.setup, config.teacher, config.env.kind
    level = config.level or kind.levels[-1]
    source = (config.task_file or setup.folder / PROBLEMS) if config.from_file else None
    records, chosen = _problems(config, level, source)
    tasks = [record.task for record in records]
    negatives = kind.teacher_type.negatives if config.negatives is None else config.negatives
    negatives = 0 if config.decides else negatives
    planned = [("positive", 0, task) for task in chosen]
    planned += [("negative", number, task) for task in chosen for number in range(negatives)]
    oracle: Agent = Demonstrator(kind.teacher_type.noise if config.noise is None else config.noise)
    asks = config.decides or not teacher.is_oracle
    if teacher.chat.dry_run and not asks:
        return Report("gen-trajectory", setup.env_folder, *free_estimate())
    if teacher.chat.dry_run:
        return _dry_run(config, level, planned, oracle, progress)
    write_permission(setup.folder)
    inputs = [*([source] if source else []), *setup.input_files(tasks)]
    with open_run("gen-trajectory", config, inputs) as current, contextlib.ExitStack() as stack:
        if current.done:
            return current.done
        client, agent = None, oracle
        if asks:
            journal, temperature = (
                setup.env_folder / "journal.jsonl",
                0.0 if config.decides else 1.0,
            )
            opened = client_at(teacher.chat, config.endpoint, journal, temperature=temperature)
            client = stack.enter_context(opened)
        if client and config.decides:
            model = DecisionModel(client, rules=not config.decisions.plain_questions)
            agent = CommentedActor(DecisionPolicy(model))
        elif client:
            agent = ChatTeacher(
                client, oracle if config.oracle_acts else None, config.history_tokens
            )
        played = _play(config, level, planned, agent, progress)
        aborted = [trajectory for trajectory in played if trajectory.status is Status.ABORTED]
        usage = {}
        if client:
            unusable = [item for item in aborted if not item.reason.endswith(SPENT)]
            rejected = [
                Rejected(f"{item.task.id}, step {len(item.turns)}", item.reason, "")
                for item in unusable
            ]
            usage = client.call_figures(rejected, setup.folder / "rejected.jsonl", progress)
        demonstrations = {
            record.task.id: list(record.trajectories) for record in records if record.trajectories
        }
        given = sum(map(len, demonstrations.values()))
        low = add_demonstrations(
            demonstrations,
            planned,
            played,
            kind.teacher_type,
            config.endpoint.model if config.decides else teacher.model_name,
            config.min_reward,
            None if config.oracle_acts else setup.maker(level),
            only_successes=config.keeps_successes,
        )
        kept = [item for items in demonstrations.values() for item in items]
        path = setup.folder / RECORDS
        if len(kept) > given:
            if (earlier := _count(path)) > len(kept):
                progress.news(
                    f"{path} had {pluralize(earlier, 'demonstration')}, which these {len(kept)}"
                    " replace"
                )
            full = [Record(task, tuple(demonstrations.get(task.id, ()))) for task in tasks]
            write_json(path, [record_to_json(record) for record in full])
        if client:
            written = f"{pluralize(len(kept), 'demonstration')} in {path}"
            client.stop_if_spent(
                written if len(kept) > given else "no episode has become a demonstration"
            )
        if len(kept) == given:
            raise _nothing_kept(config, played)
        failures = (
            sum(not trajectory.success for trajectory in played) if config.keeps_successes else 0
        )
        if failures or low:
            why = f"a reward of {min(low):.3g} to {max(low):.3g}" if low else "no success"
            progress.news(
                f"{pluralize(len(low) or failures, 'episode')} left out for {why}; see --min-reward"
            )
        if given:
            progress.news(
                f"{pluralize(given, 'demonstration')} of {source} kept along with the new ones"
            )
        notes = [step.note for item in kept for step in item.trajectory]
        positive = [
            trajectory
            for (label, *_), trajectory in zip(planned, played, strict=True)
            if label == "positive"
        ]
        figures: dict[str, Any] = {
            "problems": len(tasks),
            "demonstrations": len(positive),
            **_result_of(positive),
            "negatives": sum(item.negative for item in kept),
            "aborted": len(aborted),
            "steps": len(notes),
            "mistakes": notes.count("mistake"),
            "corrections": notes.count("correction"),
        } | usage
        if config.min_reward is not None:
            figures["below_min_reward"] = len(low)
        current.tables.append(figures_table(f"Demonstrations in {path}", "count", figures))
        if aborted:
            figures["aborted_because"] = {
                trajectory.task.id: trajectory.reason for trajectory in aborted
            }
            cells = tuple(figures["aborted_because"].items())[:MOST_SHOWN]
            current.tables.append(Table("Aborted", ("problem", "reason"), cells))
        if asked := setup.asked(progress):
            figures["asked"] = asked
        return current.finish(figures, [path])


def _problems(
    config: GenTrajectoryConfig, level: str, source: Path | None
) -> tuple[list[Record], list[Task]]:
    """(the problems, with the demonstrations that their file already has; those to demonstrate)."""
    if source is None:
        problems = Problems(config.setup)
        count = max(TRAINED_SEEDS, config.demonstrations or 0)
        tasks = (
            problems.seeds("train", level, count)
            if problems.lists_none
            else config.setup.listed(level)
        )
        records = eligible = [Record(task, ()) for task in tasks]
    else:
        config.setup.require(source)
        taskset, records = config.env.kind.taskset, read_records(source, config.setup.env_name)
        eligible = [
            record for record in records if taskset.at_level(record.task, level) is not None
        ]
        if not eligible:
            at_level(config.env.name, [record.task for record in records], level, source)  # raises
        records = records if taskset.keeps_other_levels else eligible
    most = len(eligible)
    count = config.demonstrations or (most if config.from_file else min(DEMONSTRATIONS, most))
    if count > most:
        raise ConfigError(
            f"--demonstrations is {count}, but level '{level}' has"
            f" {pluralize(most, 'problem')}; lower it"
        )
    chosen = sorted(generator(config.run.seed, "chosen").sample(range(most), count))
    return records, [eligible[index].task for index in chosen]


def _play(
    config: GenTrajectoryConfig, level: str, planned: Planned, teacher: Agent, progress: Progress
) -> list[Trajectory]:
    """An episode for each item of `planned`, in order: positive ones by the teacher, negative ones
    corrected by it.
    """
    seed, make, width = config.run.seed, config.setup.maker(level), config.rollout.width
    if config.teacher.chat.max_cost_usd is not None:  # so that the budget pays for whole episodes
        width = min(width, config.teacher.chat.concurrency)
    parts: dict[str, list[Episode]] = {"positive": [], "negative": []}
    for label, number, task in planned:
        path = ("demonstration", task.id) if label == "positive" else ("negative", number, task.id)
        parts[label].append(Episode(task, derive(seed, *path)))
    played: list[Trajectory] = []
    tool_errors = ToolErrors(progress.news)
    for label, episodes in parts.items():
        agent = teacher if label == "positive" else Recovery(teacher)
        with (
            progress.bar(f"Demonstrations, {label}", len(episodes))
            if episodes
            else contextlib.nullcontext() as bar
        ):

            def on_end(trajectory: Trajectory, bar: Any = bar) -> None:
                tool_errors.see(trajectory)
                bar.advance()

            played += rollout(episodes, make, agent, width=width, on_end=on_end)
    return played


def _result_of(played: Sequence[Trajectory]) -> dict[str, float]:
    """How many of these episodes succeeded, or their mean return where the env does not report
    success.
    """
    counted = [trajectory for trajectory in played if trajectory.status is not Status.ABORTED]
    if counted and not reports_success(
        (trajectory.status, trajectory.reported_success) for trajectory in counted
    ):
        return {"return": fmean(trajectory.total_return for trajectory in counted)}
    return {"solved": sum(trajectory.success for trajectory in counted)}


def _count(path: Path) -> int:
    """How many demonstrations a file has; 0 if there is none, or it cannot be read."""
    with contextlib.suppress(DataError, KeyError, TypeError):
        return sum(len(record["trajectories"]) for record in read_json(path))
    return 0


def _nothing_kept(config: GenTrajectoryConfig, played: Sequence[Trajectory]) -> ReflectkitError:
    """Why no episode became a demonstration, and what to do."""
    ended = [trajectory for trajectory in played if trajectory.status is not Status.ABORTED]
    if not ended:
        return EnvironmentFailure(f"every episode was aborted ({len(played)}): {played[0].reason}")
    none = f"none of {pluralize(len(ended), 'episode')} by {config.actor_name}"
    highest = max(float(config.env.kind.teacher_type.reward_of(trajectory)) for trajectory in ended)
    if config.keeps_successes and not reports_success(
        (one.status, one.reported_success) for one in ended
    ):
        fix = "keep those with enough reward by --min-reward"
        return ConfigError(
            f"{none} succeeded, as far as its env says; the highest reward is {highest:.4g}; {fix}"
        )
    if config.keeps_successes and not any(trajectory.success for trajectory in ended):
        fix = "Keep those with less by --min-reward, or use another teacher"
        return ConfigError(f"{none} succeeded; the highest reward is {highest:.4g}. {fix}")
    if config.min_reward is not None and highest < config.min_reward:
        fix = "Lower it, or use another teacher"
        return ConfigError(
            f"{none} reaches --min-reward {config.min_reward:g}; the highest is {highest:.4g}."
            f" {fix}"
        )
    fix = "use another teacher, or more problems"
    return ConfigError(f"{none} is a demonstration in env '{config.env.name}'; {fix}")


def _comment_on_visited(config: GenTrajectoryConfig, states_of: Path, progress: Progress) -> Report:
    """Write the source's records with the demonstrations of `visited` added, next to the source."""
    source = config.task_file or config.setup.folder / "train.json"
    config.setup.require(source, demonstrated=True)
    records = read_records(source, config.setup.env_name)
    write_permission(config.setup.folder)
    tasks = {record.task.id: record.task for record in records}
    run = states_of.parent if states_of.name == "eval.json" else states_of
    played = run / "episodes.jsonl" if run.is_dir() else run
    with open_run(
        "gen-trajectory", config, [source, played, *config.setup.input_files(tasks.values())]
    ) as current:
        if current.done:
            return current.done
        visits = read_visits(played, config.setup.env_name, config.player)
        visits = generator(config.run.seed, "visits").sample(visits, len(visits))
        with progress.bar("Visited states", config.states or len(visits)) as bar:
            found = relabel(
                visits,
                tasks,
                config.setup.make,
                config.teacher.model_name,
                config.states,
                lambda steps: bar.advance(steps if config.states else 1),
            )
        path = source.with_name(f"{source.stem}_visited.json")
        every = [
            Record(record.task, (*record.trajectories, *found.get(record.task.id, ())))
            for record in records
        ]
        write_json(path, [record_to_json(record) for record in every])
        steps = [step for some in found.values() for item in some for step in item.trajectory]
        figures = {
            "demonstrations": sum(len(record.trajectories) for record in records),
            "episodes": sum(map(len, found.values())),
            "states": len(steps),
            "mistakes": sum(step.note == "mistake" for step in steps),
        }
        current.tables.append(figures_table(f"Visited states in {path}", "count", figures))
        return current.finish(figures, [path])


def _dry_run(
    config: GenTrajectoryConfig, level: str, planned: Planned, oracle: Agent, progress: Progress
) -> Report:
    """The cost of a teacher that acts like the oracle, or at random where there is none."""
    from reflectkit.evals.estimate import PlannedCalls, Still, deciding_alone, estimate

    kind, endpoint = config.env.kind, config.endpoint
    form, acts = (
        kind.action_kind(config.env.settings),
        config.oracle_acts or kind.teacher_type.has(*DEMONSTRATES),
    )
    agent: Agent = RandomAgent() if form == "choice" else Still()
    if acts:
        agent = oracle if config.oracle_acts else Demonstrator(0.0)
    tasks = list({task.id: task for _, _, task in planned}.values())
    if config.decides:
        ask = partial(deciding_alone, endpoint=endpoint, rules=not config.decisions.plain_questions)
        asked = [PlannedCalls(str(endpoint), level, tasks, len(tasks), [endpoint], ask, usual=0)]
        return estimate(
            "gen-trajectory", config.setup, config.teacher.chat, asked, progress, config.run.seed
        )
    positive = PlannedCalls(
        str(endpoint),
        level,
        tasks,
        len(tasks),
        [endpoint],
        lambda seen, context: [
            lesson_asked(seen, context, config.history_tokens, acts=not config.oracle_acts)[0]
        ],
        ANALYSIS_TOKENS + (CALLS_TOKENS if form == "tools" and not config.oracle_acts else 0),
        agent,
        ends=acts,
    )
    asked = [positive]
    if negatives := len(planned) - len(tasks):
        asked.append(replace(positive, episodes=negatives, ends=True, within=Recovery))
    return estimate(
        "gen-trajectory", config.setup, config.teacher.chat, asked, progress, config.run.seed
    )
