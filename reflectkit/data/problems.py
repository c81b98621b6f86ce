"""Problems, and records of them with their demonstrations: in files, split, and from an env's own
list or seeds.

A record is a task with its demonstrations, with the original toolkit's field names: `{id, env,
level, group, data, trajectories: [{model_name, info, seed, trajectory: [{reflection, cmd,
note}]}]}`. `info` is "positive0", "positive1", … Only decisions are stored; the env reproduces the
observations. A step of an episode that another player played has `best` where its action was a
mistake: the teacher's.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from reflectkit.console import Progress
from reflectkit.envs import ENVS, PROBLEMS, SPLITS, env_class, split_of
from reflectkit.envs.python_classes import class_in, env_text
from reflectkit.envs.setup import EnvSetup, at_level
from reflectkit.errors import ConfigError, DataError
from reflectkit.files import is_there
from reflectkit.jsonl import dumps, lone_surrogate, read_json_list
from reflectkit.seeding import generator
from reflectkit.types import Observation, Status, Task, Trajectory, from_json, to_json

if TYPE_CHECKING:
    from reflectkit.rollouts.episode import Episode

SHARES = (7, 2, 1)
Note = Literal["positive", "mistake", "correction"]
EXPLORE = "auto_explore"
"""The env whose records have the original's fields."""
VISITED = "visited"
"""What `info` begins with in episodes of other players."""
FIRST_SEED = {"train": 0, "validate": 1_000_000, "test": 2_000_000}
SEEDS = 1_000_000
"""Seeds of a split."""
TRAINED_SEEDS = 1000
"""Training problems that are dealt at once, where each seed is a problem."""
HELD_OUT_SEEDS = 100
FEWEST = 3
"""Problems of a split below which nothing is held out."""
COMPARED = 3
"""Number of seeds whose episodes are compared, and of the sequences of actions that each is played
with.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One decision. note: "positive", "mistake" or "correction". best: the teacher's action, if
    this one was another player's mistake and the action is chosen from a list. probabilities: of
    all actions, if a decision model acted.
    """

    reflection: str
    cmd: str
    note: Note = "positive"
    best: str = ""
    probabilities: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode of a teacher, or of another player with the teacher's comments.

    model_name: the teacher. info: which of the task's demonstrations it is: "positive0",
    "negative1", "visited0", … seed: the episode's. filename: the file given as the answer, in envs
    that ask for one.
    """

    model_name: str
    info: str
    seed: int
    trajectory: tuple[Step, ...]
    filename: str = ""

    @property
    def negative(self) -> bool:
        """Whether it shows a mistake and its correction; only the correction is used for training."""
        return self.info.startswith("negative")

    @property
    def visited(self) -> bool:
        """Whether another player than the teacher acted."""
        return self.info.startswith(VISITED)


@dataclass(frozen=True, slots=True)
class Record:
    """A task and its demonstrations. A task without any is for RL and evaluation."""

    task: Task
    trajectories: tuple[Demonstration, ...]


@dataclass(frozen=True, slots=True)
class _File:
    trajectories: tuple[Demonstration, ...] = ()


def from_trajectory(trajectory: Trajectory, model_name: str, info: str) -> Demonstration:
    """A finished episode as a demonstration."""
    steps = []
    for turn in trajectory.turns:
        # The note is that of the teacher or the marker
        note, shares = cast(Note, turn.decision.note or "positive"), turn.decision.probabilities
        steps.append(
            Step(turn.decision.reflection or "", turn.action_text, note, probabilities=shares)
        )
    answer = trajectory.turns[-1].info.get("answer", "") if trajectory.turns else ""
    return Demonstration(model_name, info, trajectory.seed, tuple(steps), str(answer))


def record_to_json(record: Record) -> dict[str, Any]:
    """The record as one flat JSON object; a question has the original's fields."""
    # Empty fields are left out, as in the original's files
    demonstrations = [to_json(item) for item in record.trajectories]
    for item in demonstrations:
        if not item["filename"]:
            del item["filename"]
        for step in item["trajectory"]:
            for name in ("best", "probabilities"):
                if not step[name]:
                    del step[name]
    if record.task.env == EXPLORE:
        from reflectkit.envs.auto_explore import questions

        return questions.to_record(record.task, demonstrations)
    flat: dict[str, Any] = to_json(record.task)
    return flat | {"trajectories": demonstrations}


def read_records(path: Path, env: str) -> list[Record]:
    """Every record of `path`, checked.

    Raises DataError: naming the record and field; also for records of another env and duplicate
    ids.
    """
    records: list[Record] = []
    ids: set[str] = set()
    content = env_class(env).taskset.content if env in ENVS else None

    # 1. The text and its form
    for number, value in enumerate(read_json_list(path)):
        where = f"{path}, record {number}"
        if lone_surrogate(json.dumps(value, ensure_ascii=False)):
            raise DataError(
                where,
                "a text contains half a surrogate pair, which is not valid Unicode; fix the text",
            )
        if env == EXPLORE:
            from reflectkit.envs.auto_explore import questions

            value = questions.from_record(value, where)

        # 2. The task and its demonstrations
        task = from_json(Task, value, path=where)
        demonstrations = from_json(_File, value, path=where).trajectories
        if task.env != env:
            raise DataError(
                where, f"belongs to env '{task.env}', but --env is '{env}'", field="env"
            )
        if content is not None:
            _check_content(content, task, where)

        # 3. Each task once
        if task.id in ids:
            merged = (
                "; `reflectkit filter-task` merges questions that are there twice"
                if env == EXPLORE
                else ""
            )
            raise DataError(where, f"duplicate id {task.id!r}{merged}", field="id")
        ids.add(task.id)
        records.append(Record(task, demonstrations))
    return records


def _check_content(content: type[Any], task: Task, where: str) -> None:
    """Raises DataError, naming `where` and the field, if the data of `task` are not a `content`."""
    try:
        from_json(content, task.data, path=where)
    except DataError as error:
        field_name = f"data.{error.field}" if error.field else "data"
        raise DataError(where, error.message, field=field_name) from None


def split_groups(
    strata: Mapping[str, Hashable], generator: random.Random, shares: Sequence[int] = SHARES
) -> dict[str, str]:
    """A split name for each group, in `shares` within each stratum.

    Parameters
    ----------
    strata: group → the stratum it is balanced in (e.g. whether it has demonstrations).

    Within a stratum, the counts are the shares rounded by the largest remainder method.
    """
    assigned: dict[str, str] = {}
    members: dict[Hashable, list[str]] = {}
    # In an order that does not depend on the file's
    for group in sorted(strata):
        members.setdefault(strata[group], []).append(group)
    for stratum in sorted(members, key=repr):
        groups = members[stratum]
        generator.shuffle(groups)
        start = 0
        for name, count in zip(SPLITS, apportion(len(groups), shares), strict=True):
            assigned |= dict.fromkeys(groups[start : start + count], name)
            start += count
    return assigned


def apportion(total: int, shares: Sequence[int]) -> list[int]:
    """`total` in whole parts proportional to `shares` (Hamilton's method); ties go to the earlier
    part.

    >>> apportion(300, (7, 2, 1)), apportion(4, (7, 2, 1))
    ([210, 60, 30], [3, 1, 0])
    """
    # Everyone gets the whole part, and the largest remainders one more
    exact = [total * share / sum(shares) for share in shares]
    counts = [int(value) for value in exact]
    by_remainder = sorted(
        range(len(shares)), key=lambda index: (counts[index] - exact[index], index)
    )
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def levels_by_group(tasks: Iterable[Task]) -> dict[str, tuple[str, ...]]:
    """The levels of each group's problems: the strata of an env's own list, so that each level is
    divided alike.
    """
    levels: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        levels[task.group] = tuple(sorted({*levels.get(task.group, ()), task.level}))
    return levels


@dataclass(frozen=True)
class Problems:
    """The problems of an env. A split has a file if one was given, or if the env's folder has files
    of splits.

    Otherwise the env's own list is split 7:2:1 by group, always in the same way; a level with too
    few has all of its problems in each split. An env without a list has a problem for each seed:
    `reset` gets that seed. Its training problems have no end (`dealt`).
    """

    setup: EnvSetup
    files: Mapping[str, Path] = field(default_factory=dict)
    """Files that the user gave, by split."""

    @property
    def lists_none(self) -> bool:
        """Whether the env neither lists its problems nor has a file of them."""
        taskset = self.setup.taskset
        makes = taskset.problem_generator or taskset.repositories_folder
        return not (taskset.has("tasks") or makes or is_there(self.setup.folder / PROBLEMS))

    @property
    def by_seed(self) -> bool:
        """Whether there is a problem for each seed."""
        return self.lists_none and not self._has_files

    @property
    def _has_files(self) -> bool:
        return bool(self.files or self.split_files)

    @property
    def split_files(self) -> list[Path]:
        """The files of splits in the env's folder."""
        paths = (self.setup.folder / f"{split}.json" for split in SPLITS)
        return [path for path in paths if is_there(path)]

    def file(self, split: str) -> Path | None:
        """The file of `split`, which may be missing; None if its problems come from the env itself."""
        if self.files:
            return self.files[split]
        if self.by_seed or (self.setup.taskset.has("tasks") and not self._has_files):
            return None
        return self.setup.folder / f"{split}.json"

    def tasks(self, split: str, level: str, option: str = "--level", seeds: int = 0) -> list[Task]:
        """The problems of `split` at `level`.

        option: the flag that chooses another level. seeds: how many problems to make of seeds; 0:
        the first 1,000 for training, otherwise 100. Raises DataError, with the commands to run
        first, for a missing file.
        """
        # From a file, from the list, or a problem for each seed
        path, name = self.file(split), self.setup.env_name
        if path is not None:
            self.setup.require(path)
            return at_level(
                self.setup.env,
                [record.task for record in read_records(path, name)],
                level,
                path,
                option,
            )
        if not self.by_seed:
            return self._own[level][split]
        return self.seeds(split, level, seeds)

    def seeds(self, split: str, level: str, count: int = 0, start: int = 0) -> list[Task]:
        """The problems of `split` at `level` of an env without a list, one per seed, without the
        first `start`; see `tasks`. Raises ConfigError for more than a split has.
        """
        count = count or (TRAINED_SEEDS if split == "train" else HELD_OUT_SEEDS)
        if start + count > SEEDS:
            raise ConfigError(
                f"{count:,} problems are more than the {SEEDS:,} seeds of a split; ask for fewer"
            )
        name, prefix = self.setup.env_name, "seed" if len(self.setup.kind.levels) == 1 else level
        first = FIRST_SEED[split] + start
        return [
            Task(f"{prefix}-{n}", name, level, f"seed-{n}", {"seed": n})
            for n in range(first, first + count)
        ]

    def dealt(self, level: str, turn: int) -> list[Task]:
        """The training problems at `level` after `tasks`, as many in each `turn` from 1: those of
        seeds that no file of a split has, or the same again for an env with a list or a file that
        the user gave.
        """
        # As many as at first
        first_deal = self.tasks("train", level)
        if not self.is_endless(level):
            return first_deal
        turns = (SEEDS - self._fresh_seed) // len(first_deal)
        return self.seeds(
            "train", level, len(first_deal), self._fresh_seed + (turn - 1) % turns * len(first_deal)
        )

    def is_endless(self, level: str) -> bool:
        """Whether training never runs out of problems at `level`."""
        first_deal = self.tasks("train", level)
        return self.lists_none and not self.files and self._fresh_seed + len(first_deal) <= SEEDS

    @cached_property
    def _fresh_seed(self) -> int:
        """The first seed above those of all problems in the files of splits; `SEEDS` if one of them
        has no seed. Without files, that after the first deal.
        """
        if self.by_seed:
            return TRAINED_SEEDS
        # A file of other problems leaves no seed to deal
        fresh = 0
        for path in self.split_files:
            for record in read_records(path, self.setup.env_name):
                seed = record.task.data.get("seed")
                fresh = max(fresh, seed + 1 if isinstance(seed, int) else SEEDS)
        return fresh

    def levels_with(
        self, split: str, levels: Sequence[str], progress: Progress, option: str = "--level"
    ) -> list[str]:
        """Those of `levels` at which `split` has problems; the others are reported. Raises
        DataError if none has.
        """
        with_problems: list[str] = []
        empty: list[tuple[str, DataError]] = []
        # A level may be missing in the split, if another is there
        for level in levels:
            try:
                self.tasks(split, level, option)
                with_problems.append(level)
            except DataError as error:
                empty.append((level, error))
        if not with_problems:
            raise empty[0][1]
        for level, reason in empty:
            progress.news(f"level '{level}' is left out: {reason}")
        return with_problems

    def holds_out(self, level: str) -> bool:
        """Whether problems from the env itself are held out from training at `level`: not if too
        few groups are listed, or the env ignores its seed. A program gets its seed, and may hide
        what follows from it.
        """
        if self.by_seed:
            return self.setup.env.startswith("program:") or not self._ignores_seed(level)
        return self._own[level]["train"] != self._own[level]["test"]

    @cached_property
    def _own(self) -> dict[str, dict[str, list[Task]]]:
        """The env's list, by level and split."""
        # 1. The list, by level
        by_level = {level: self.setup.listed(level) for level in self.setup.kind.levels}
        parts = {level: {split: list[Task]() for split in SPLITS} for level in by_level}
        free = [
            task
            for tasks in by_level.values()
            for task in tasks
            if not split_of(self.setup.env, task)
        ]

        # 2. The split of each group, for those that come with none
        split_of_group = split_groups(levels_by_group(free), generator(0, "split"))

        # 3. The problems; a level with too few is not divided
        for level, tasks in by_level.items():
            for task in tasks:
                parts[level][split_of(self.setup.env, task) or split_of_group[task.group]].append(
                    task
                )
            if min(map(len, parts[level].values())) < FEWEST:
                parts[level] = dict.fromkeys(SPLITS, tasks)
        return parts

    def source(self, split: str) -> str:
        """Where the problems of `split` come from, for messages."""
        first = FIRST_SEED[split]
        seeds = f", seeds from {first:,}" if self.by_seed else ""
        return str(self.file(split) or f"env '{env_text(self.setup.env)}'{seeds}")

    def _ignores_seed(self, level: str) -> bool:
        """Whether the same actions give the same episodes with each seed, or one seed begins in
        several ways. False where actions were refused.
        """
        # 1. The same seeds with several sequences of actions
        episodes = _compared_episodes(self.tasks("train", level, seeds=COMPARED))
        trajectories = self._played(level, episodes, width=1)
        again = self._played(level, [*reversed(episodes[:COMPARED])], width=1)

        # 2. One seed that begins in two ways
        for first, second in zip(trajectories, reversed(again), strict=False):
            if _beginning(first) != _beginning(second):
                return True

        # 3. Episodes that were not played as they were to be tell nothing
        for trajectory in trajectories:
            has_refusal = any(turn.info.get("refused") for turn in trajectory.turns)
            if trajectory.status is Status.ABORTED or has_refusal:
                return False

        # 4. Seeds that make no difference
        histories = [_history(trajectory) for trajectory in trajectories]
        with_first_seed = [histories[place - place % COMPARED] for place in range(len(histories))]
        return histories == with_first_seed

    def disturbance(self, level: str, tasks: Sequence[Task]) -> str:
        """That episodes of the user's own class change one another when they are played at the
        same time, as they do if a list in the class has their state, or that one goes another way
        when it is played again; empty if neither is so.

        tasks: of `level`; the first few are played.
        """
        is_own = class_in(self.setup.env) or self.setup.class_file is not None
        if not is_own or self.setup.kind.max_concurrency == 1:
            return ""
        episodes = _compared_episodes(tasks)
        one_by_one = self._histories(level, episodes, width=1)
        if one_by_one == self._histories(level, episodes, width=2):
            return ""
        name = env_text(self.setup.env)
        if one_by_one != self._histories(level, episodes, width=1):
            return (
                f"env '{name}': an episode that is played again goes another way; draw from"
                " random.Random(seed) alone, and keep nothing in the class from one episode to the next"
            )
        return (
            f"env '{name}': episodes that are played at the same time change"
            " one another; make its lists and dicts in reset or __init__, not in the class, or write"
            " max_concurrency = 1 in the class"
        )

    def _histories(self, level: str, episodes: Sequence[Episode], width: int) -> dict[Any, str]:
        """A digest of what a player saw and got in each of `episodes`, which are not kept: their
        texts may be long. width: see `_played`.
        """
        histories: dict[Any, str] = {}

        def note(trajectory: Trajectory) -> None:
            history = hashlib.sha256()
            for part in _history(trajectory):
                history.update(repr(part).encode("utf-8", "surrogatepass"))
            histories[trajectory.task.id, trajectory.seed] = history.hexdigest()

        self._played(level, episodes, width, note)
        return histories

    def _played(
        self,
        level: str,
        episodes: Sequence[Episode],
        width: int,
        on_end: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """The `episodes`, played with random actions. width: how many at a time. on_end: called
        with each trajectory instead of returning them.
        """
        from reflectkit.agents.scripted import InTurns
        from reflectkit.rollouts.episode import rollout

        maker = self.setup.maker(level)
        return rollout(episodes, maker, InTurns(), width=width, on_end=on_end, keep=on_end is None)


def _compared_episodes(tasks: Sequence[Task]) -> list[Episode]:
    """Episodes of the first `tasks`, each with several sequences of actions."""
    from reflectkit.rollouts.episode import Episode

    return [Episode(task, seed) for seed in range(COMPARED) for task in tasks[:COMPARED]]


def _history(trajectory: Trajectory) -> list[Any]:
    """What a player saw and got."""
    return [trajectory.final, *((turn.observation, turn.reward) for turn in trajectory.turns)]


def _beginning(trajectory: Trajectory) -> Observation | None:
    """The first observation; None if no episode began."""
    return trajectory.turns[0].observation if trajectory.turns else trajectory.final


def digest_of(tasks: Sequence[Task]) -> str:
    """A digest of problems that come from no file."""
    return hashlib.sha256(dumps([to_json(task) for task in tasks]).encode()).hexdigest()


def draw_problems(clusters: Sequence[str], count: int, seed: int) -> list[int]:
    """The places of `count` problems (0: all), given each one's cluster: a random one of each, then
    a second one, …
    """
    # The second problem of a cluster comes after the first of every other
    order = generator(seed, "problems").sample(range(len(clusters)), len(clusters))
    counts: Counter[str] = Counter()
    rank = {}
    for place in order:
        rank[place] = counts[clusters[place]]
        counts[clusters[place]] += 1
    return sorted(sorted(order, key=rank.__getitem__)[: count or None])
