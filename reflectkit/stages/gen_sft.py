"""gen-sft: the five SFT files, from the training split's demonstrations, replayed through the env and the one renderer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectkit.agents.scripted import Replay
from reflectkit.core.config import fraction, one_of, option
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError, DataError
from reflectkit.core.jsonl import write_jsonl
from reflectkit.core.rollout import Episode, rollout
from reflectkit.core.runs import Report, Table, open_run, write_permission
from reflectkit.core.seeding import derive, generator
from reflectkit.core.types import Trajectory
from reflectkit.data.sft import FILES, Lesson, lessons, mismatched, plain_row, policy_row, reflection_row
from reflectkit.data.trajectories import demonstration_steps, read_records
from reflectkit.envs import make
from reflectkit.stages.common import EnvConfig

EXAMPLES = (
    "reflectkit gen-sft --env taxi",
    "reflectkit gen-sft --env taxi --comments both --reflect-load-dir results/4_sft/checkpoint-700 --out-dir data/taxi/both",
)
COMMENTS = ("teacher", "reflector", "both")


@dataclass(frozen=True)
class Config(EnvConfig):
    """Settings of gen-sft."""

    task_file: Path | None = option(None, help="Records to learn from; default: train.json in the env's data folder.")
    out_dir: Path | None = option(None, help="Folder for the five files; default: the env's data folder.")
    comments: str = option("teacher", help="Whose comments the policy's rows show: teacher, reflector, or both (a row each).")
    reflect_load_dir: Path | None = option(None, help="The reflector's checkpoint, for --comments reflector or both.")
    mismatch: float = option(0.0, help="Share of the policy's rows that show another step's comment, so that it is checked.")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("comments", self.comments, COMMENTS)
        fraction("mismatch", self.mismatch)
        if (self.comments == "teacher") != (self.reflect_load_dir is None):
            raise ConfigError(
                f"--comments {self.comments} " + ("takes no" if self.reflect_load_dir else "needs") + " --reflect-load-dir"
            )


def run(config: Config, progress: Progress) -> Report:
    """Write sft, sft_reflection, sft_policy and the last two's `_positive` variants, one prompt and completion a line."""
    source = config.task_file or config.folder / "train.json"
    target = config.out_dir or config.folder
    write_permission(target)
    reflector = [config.reflect_load_dir] if config.reflect_load_dir else []
    with open_run("gen-sft", config, [source, *reflector]) as current:
        if current.done:
            return current.done
        steps = lessons(_replayed(config, source, progress))
        if not steps:
            raise DataError(source, "no record has a demonstration; make some with `reflectkit gen-trajectory`")
        right = [step for step in steps if step.note != "mistake"]
        positive = [step for step in steps if step.note == "positive"]
        own = _reflector_comments(config, right, progress)
        rows: dict[str, list[dict[str, str]]] = {
            "sft": [plain_row(step) for step in right],
            "sft_reflection": [reflection_row(step) for step in steps],
            "sft_policy": _policy_rows(config, right, own),
            "sft_reflection_positive": [reflection_row(step) for step in positive],
            "sft_policy_positive": _policy_rows(config, positive, own),
        }
        outputs, figures = [], {}
        for name in FILES:
            path = target / f"{name}.jsonl"
            figures[name] = write_jsonl(path, rows[name])
            outputs.append(path)
        table = Table(f"SFT rows in {target}", ("file", "rows"), tuple((f"{n}.jsonl", str(figures[n])) for n in FILES))
        current.tables.append(table)
        return current.finish(figures, outputs)


def _replayed(config: Config, source: Path, progress: Progress) -> list[Trajectory]:
    """Every demonstration, played again as it was recorded. Raises DataError where the env disagrees with the record."""
    records = read_records(source, config.env_name)
    trajectories = []
    with progress.bar("Replaying demonstrations", len(records)) as bar:
        for record in records:
            for demonstration in record.trajectories:
                where = f"{source}, task '{record.task.id}'"
                if not demonstration.trajectory:
                    raise DataError(where, "a demonstration without steps", field="trajectories.trajectory")
                steps = demonstration_steps(demonstration)
                horizon = len(steps)
                episode = Episode(record.task, demonstration.seed)
                (played,) = rollout([episode], lambda n=horizon: make(config.env, n), Replay(steps, where), width=1)  # type: ignore[misc]
                if len(played.turns) < horizon:
                    raise DataError(where, f"the episode ends at step {len(played.turns)} of {horizon} recorded")
                trajectories.append(played)
            bar.advance()
    return trajectories


def _reflector_comments(config: Config, steps: list[Lesson], progress: Progress) -> dict[str, str]:
    """What the trained reflector itself says about each step, by the step's text; empty for teacher's comments alone."""
    if config.reflect_load_dir is None:
        return {}
    from reflectkit.agents.two_player import Reflector
    from reflectkit.models.load import load_player

    reflector = Reflector(load_player(config.reflect_load_dir, "reflection"))
    own: dict[str, str] = {}
    with progress.bar("The reflector comments", len(steps)) as bar:
        for start in range(0, len(steps), reflector.batch):
            part = steps[start : start + reflector.batch]
            comments = reflector.comment([step.observation for step in part], ())
            own |= {step.observation.text: comment for step, comment in zip(part, comments, strict=True)}
            bar.advance(len(part))
    return own


def _policy_rows(config: Config, steps: list[Lesson], own: dict[str, str]) -> list[dict[str, str]]:
    sources = {
        "teacher": [step.reflection for step in steps],
        "reflector": [own.get(step.observation.text, "") for step in steps],
    }
    rows: list[dict[str, str]] = []
    for name in ("teacher", "reflector"):
        if config.comments in (name, "both") and steps:
            chance = generator(derive(config.seed, "mismatch"), name)
            shown = mismatched(sources[name], config.mismatch, chance)
            rows += [policy_row(step, comment) for step, comment in zip(steps, shown, strict=True)]
    return rows
