"""States that a player visited, with the oracle teacher's comments on them: one round of DAgger.

Imitation learning knows only the states that its teacher visits; DAgger (Ross, Gordon and Bagnell 2011, AISTATS 15:627)
adds those that the learner visits, labelled by the teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectkit.agents.scripted import Relabel
from reflectkit.config import flag
from reflectkit.data.episodes import read_episodes
from reflectkit.data.trajectories import VISITED, Demonstration, Note, Step, read_records
from reflectkit.env import Env
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure
from reflectkit.rollout.episode import Episode, rollout
from reflectkit.types import Status, Task


@dataclass(frozen=True, slots=True)
class Visit:
    """A recorded episode: its task's id, its seed, and the actions' texts in order."""

    task: str
    seed: int
    actions: tuple[str, ...]


def read_visits(path: Path, env: str, player: str) -> list[Visit]:
    """The episodes of an episodes.jsonl, or the demonstrations in a JSON file.

    player: whose episodes; "" if there is one.

    Raises
    ------
    DataError: the file is malformed, or has no episode that can be replayed. ConfigError: there are several players,
    or none of that name.
    """
    if path.suffix == ".json":
        records = read_records(path, env)
        visits = [
            Visit(record.task.id, one.seed, tuple(step.cmd for step in one.trajectory))
            for record in records
            for one in record.trajectories
        ]
    else:
        played = [one for one in read_episodes(path) if one.status != Status.ABORTED.value]
        names = list(dict.fromkeys(one.name for one in played))
        if player and player not in names:
            raise ConfigError(f"{flag('player')} {player}: {path} has only {', '.join(names)}")
        if not player and len(names) > 1:
            raise ConfigError(f"{path} has episodes of {', '.join(names)}; choose one with {flag('player')}")
        visits = []
        for one in played:
            if player in ("", one.name):
                said = [turn.said for turn in one.turns]
                if not one.seed.isdecimal() or None in said:
                    raise DataError(path, f"an episode of {one.task} has no seed, or a turn without its action")
                visits.append(Visit(one.task, int(one.seed), tuple(text or "" for text in said)))
    visits = [visit for visit in visits if visit.actions]
    if not visits:
        raise DataError(path, "has no episode with an action")
    return visits


def relabel(
    visit: Visit, task: Task, make: Callable[[int], Env], model_name: str, info: str, most: int
) -> Demonstration:
    """The first steps of `visit`, at most `most`, with the oracle's reflection on each state; where the action was a
    mistake, also the oracle's action, if actions are chosen from a list.

    It ends where the episode comes back to what it has already shown. make: an env with that horizon.

    Raises
    ------
    DataError: the env does not offer a recorded action. EnvironmentFailure: the env failed.
    """
    agent = Relabel([{"reflection": "", "cmd": text, "note": ""} for text in visit.actions], f"episode of {visit.task}")
    (played,) = rollout([Episode(task, visit.seed)], lambda: make(len(visit.actions)), agent, width=1)
    if played.status is Status.ABORTED:
        raise EnvironmentFailure(f"{visit.task}: {played.reason}")
    shown = [turn.observation.text for turn in played.turns]
    steps: list[Step] = []
    for number, (turn, wrong, best) in enumerate(zip(played.turns, agent.mistakes(), agent.best, strict=True)):
        if number == most or shown[number] in shown[:number]:
            break
        before = bool(steps) and steps[-1].note == "mistake"
        note: Note = "mistake" if wrong else "correction" if before else "positive"
        steps.append(Step(turn.decision.reflection or "", turn.action_text, note, best if wrong else ""))
    return Demonstration(model_name, info, visit.seed, tuple(steps))


def visited(
    visits: Sequence[Visit],
    tasks: dict[str, Task],
    make: Callable[[int], Env],
    model_name: str,
    states: int,
    on_end: Callable[[int], None],
) -> dict[str, list[Demonstration]]:
    """Demonstrations of `visits` by task id, in that order, until they have `states` steps (0: all).

    on_end: called with the steps of each.

    Raises
    ------
    DataError: a visit's task is not among `tasks`; and as `relabel`.
    """
    found: dict[str, list[Demonstration]] = {}
    total = 0
    for visit in visits:
        if states and total >= states:
            break
        if visit.task not in tasks:
            raise DataError(visit.task, "is not among the training problems; evaluate with --task-file train.json")
        own = found.setdefault(visit.task, [])
        info = f"{VISITED}{len(own)}"
        most = states - total if states else len(visit.actions)
        own.append(relabel(visit, tasks[visit.task], make, model_name, info, most))
        total += len(own[-1].trajectory)
        on_end(len(own[-1].trajectory))
    return found
