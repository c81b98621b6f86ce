"""visited: comment on the states that a player visited in recorded episodes on training problems.

One round of DAgger (Ross, Gordon and Bagnell 2011, AISTATS 15:627): imitation learning knows only the states that its
teacher visits; DAgger adds those that the learner visits, labelled by the teacher. Each step has the oracle's comment;
where the player was wrong, the policy's row shows the oracle's action instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from reflectkit.agents.scripted import Marker
from reflectkit.commands import Traits
from reflectkit.config import Config, Rule, flag, option
from reflectkit.console import Progress, Report, figures_table
from reflectkit.data.episodes import read_episodes
from reflectkit.data.problems import VISITED, Demonstration, Note, Record, Step, read_records, record_to_json
from reflectkit.env import Context, Env, teacher_of
from reflectkit.envs.setup import EnvConfig, EnvSetup
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure
from reflectkit.jsonl import write_json
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.runs.run import RunConfig, open_run, write_permission
from reflectkit.seeding import generator
from reflectkit.types import Decision, Observation, Status, Task

EXAMPLES = (
    "reflectkit evaluate --env taxi --policy random --task-file data/taxi/train.json --name taxi/visits",
    "reflectkit research.visited --env taxi --states-of results/taxi/visits --states 500",
    "reflectkit gen-sft --env taxi --task-file data/taxi/train_visited.json --out-dir data/taxi/dagger",
)
TRAITS = Traits(writes_data=True)


class VisitedConfig(Config):
    """Settings of visited."""

    env: EnvConfig
    states_of: Path = option(help="An evaluation on training problems, or a file of demonstrations.")
    task_file: Path | None = option(
        None, help="Records to which the demonstrations are added; default: train.json in the env's data folder."
    )
    player: str = option("", help="Whose episodes to take, if there are several players.")
    states: int = option(0, help="Comment on at most this many states; 0: all.", ge=0)
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run)

    @override
    def contradictions(self) -> Iterator[Rule]:
        self.env.require_teacher("action", "note", "comment")
        yield from ()


CONFIG = VisitedConfig


def run(config: VisitedConfig, progress: Progress) -> Report:
    """Write the records with the new demonstrations added, as `train_visited.json` next to them."""
    # 1. The records and the episodes
    setup = config.setup
    source = config.task_file or setup.folder / "train.json"
    setup.require(source, demonstrated=True)
    records = read_records(source, setup.env_name)
    write_permission(setup.folder)
    tasks = {record.task.id: record.task for record in records}
    states_of = config.states_of.parent if config.states_of.name == "eval.json" else config.states_of
    episodes = states_of / "episodes.jsonl" if states_of.is_dir() else states_of

    with open_run("visited", config, [source, episodes, *setup.input_files(tasks.values())]) as current:
        if current.done:
            return current.done

        # 2. The demonstrations of drawn episodes
        visits = read_visits(episodes, setup.env_name, config.player)
        visits = generator(config.run.seed, "visits").sample(visits, len(visits))
        with progress.bar("Visited states", config.states or len(visits)) as bar:
            new = relabel(
                visits, tasks, setup.make, "oracle", config.states,
                lambda steps: bar.advance(steps if config.states else 1),
            )  # fmt: skip

        # 3. All records, with them
        target = source.with_name(f"{source.stem}_visited.json")
        every = [Record(each.task, (*each.trajectories, *new.get(each.task.id, ()))) for each in records]
        write_json(target, [record_to_json(record) for record in every])
        steps = [step for group in new.values() for item in group for step in item.trajectory]
        figures = {
            "demonstrations": sum(len(record.trajectories) for record in records),
            "episodes": sum(map(len, new.values())),
            "states": len(steps),
            "mistakes": sum(step.note == "mistake" for step in steps),
        }
        current.tables.append(figures_table(f"Visited states in {target}", "count", figures))
        return current.finish(figures, [target])


Visit = tuple[str, int, tuple[Step, ...]]
"""A recorded episode: its task's id, its seed, and its actions as steps without comments."""


def read_visits(path: Path, env: str, player: str) -> list[Visit]:
    """The episodes of an episodes.jsonl, or the demonstrations in a JSON file.

    player: whose; empty if there is one. Raises DataError: the file is malformed, or has no episode that can be
    replayed. ConfigError: there are several players, or none of that name.
    """
    visits: list[Visit] = []
    if path.suffix == ".json":
        for record in read_records(path, env):
            for item in record.trajectories:
                steps = tuple(Step("", step.cmd) for step in item.trajectory)
                visits.append((record.task.id, item.seed, steps))
    else:
        episodes = [episode for episode in read_episodes(path) if episode.status != Status.ABORTED.value]
        names = list(dict.fromkeys(episode.name for episode in episodes))
        if player and player not in names:
            raise ConfigError(f"{flag('player')} {player}: {path} has only {', '.join(names)}")
        if not player and len(names) > 1:
            raise ConfigError(f"{path} has episodes of {', '.join(names)}; choose one with {flag('player')}")
        for episode in episodes:
            if player not in ("", episode.name):
                continue
            actions = [turn.said for turn in episode.turns]
            if not episode.seed.isdecimal() or None in actions:
                what = f"an episode of {episode.task} has no seed, or a turn without its action"
                raise DataError(path, what)
            steps = tuple(Step("", text or "") for text in actions)
            visits.append((episode.task, int(episode.seed), steps))
    visits = [visit for visit in visits if visit[2]]
    if not visits:
        raise DataError(path, "has no episode with an action")
    return visits


class Relabel(Marker):
    """Replays an episode of any player, with the oracle teacher's comment on each state that it visits.

    best: the text of the oracle's action in each state; empty in envs whose actions are not chosen from a list.
    """

    def __init__(self, steps: Sequence[Any], where: str) -> None:
        super().__init__(steps, where)
        self.best: list[str] = []

    @override
    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The next recorded step. Raises DataError, and ConfigError for an env without an oracle."""
        teacher = teacher_of(context.env, "action", "note", "comment")
        comment = teacher.comment(generator(context.seed, "demonstrator"))
        best: Any = teacher.action()
        choices = observation.choices
        self.best.append(choices[best] if choices and isinstance(best, int) else "")
        return replace(await super().decide(observation, context), reflection=comment)


def relabel(
    visits: Sequence[Visit],
    tasks: Mapping[str, Task],
    make: Callable[[int], Env],
    model_name: str,
    states: int,
    on_end: Callable[[int], None],
) -> dict[str, list[Demonstration]]:
    """Demonstrations of `visits` by task id, in that order, until they have `states` steps (0: all).

    Each step has the oracle's comment on its state; where the action was a mistake, also the oracle's action, if
    actions are chosen from a list. A demonstration ends where the episode comes back to a state.

    make: an env with that horizon. on_end: called with the steps of each. Raises DataError: a visit's task is not among
    `tasks`, or the env does not offer a recorded action. EnvironmentFailure: the env failed.
    """
    demonstrations: dict[str, list[Demonstration]] = {}
    total = 0
    for task, seed, actions in visits:
        if states and total >= states:
            break
        if task not in tasks:
            raise DataError(task, "is not among the training problems; evaluate with --task-file train.json")

        # 1. The episode again
        agent = Relabel(actions, f"episode of {task}")
        (trajectory,) = rollout([Episode(tasks[task], seed)], partial(make, len(actions)), agent, width=1)
        if trajectory.status is Status.ABORTED:
            raise EnvironmentFailure(f"{task}: {trajectory.reason}")

        # 2. Its steps up to the first state that it was in before
        texts = [turn.observation.text for turn in trajectory.turns]
        steps: list[Step] = []
        turns = zip(trajectory.turns, agent.mistakes(), agent.best, strict=True)
        for number, (turn, is_mistake, best) in enumerate(turns):
            is_full = states and total + len(steps) == states
            if texts[number] in texts[:number] or is_full:
                break
            after_mistake = bool(steps) and steps[-1].note == "mistake"
            note: Note = "mistake" if is_mistake else "correction" if after_mistake else "positive"
            comment = turn.decision.reflection or ""
            steps.append(Step(comment, turn.action_text, note, best if is_mistake else ""))
        before = demonstrations.setdefault(task, [])
        before.append(Demonstration(model_name, f"{VISITED}{len(before)}", seed, tuple(steps)))
        total += len(steps)
        on_end(len(steps))
    return demonstrations
