"""Checks the data of a recipe before its first training: what a later step would stop at after minutes or hours.

All settings are read. Every split has the levels that are trained or evaluated on. The longest row fits the model, and
so do the longest prompts of an environment whose prompts grow with folders. All problems are reported at once, with the
flags that fix them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reflectkit.agents.scripted import Demonstrator
from reflectkit.core.config import Config, build, flat, option, with_values
from reflectkit.core.console import Progress
from reflectkit.core.errors import CheckpointError, ConfigError, ReflectkitError
from reflectkit.core.folders import RunConfig
from reflectkit.core.jsonl import read_json
from reflectkit.core.prompts import policy_prompt
from reflectkit.core.reports import Report
from reflectkit.core.rollout import Episode, rollout
from reflectkit.core.seeding import derive
from reflectkit.core.types import Task
from reflectkit.data.trajectories import read_records
from reflectkit.models.hub import PACKAGED, TINY, hub_options, looks_local
from reflectkit.stages import config_class, evaluate, sft, traits
from reflectkit.stages.recipes.ablations import references
from reflectkit.stages.recipes.schedule import Job
from reflectkit.stages.recipes.workers import CHECKS
from reflectkit.stages.shared.environments import RECORDS, model_source
from reflectkit.stages.shared.players import WITHOUT_MODEL, is_chat, parse_policy

BLOCK = 64  # a suggested --max-length is a multiple of it
MADE = ("data_dir", "out_dir")
"""The settings of steps that say where what they make lies, besides its folder among the results."""
ROOM = 1.1  # of a suggested --max-length over the longest prompt, for walks that are not the shortest


class ChecksConfig(Config):
    """What is checked."""

    steps: tuple[dict[str, Any], ...] = option(
        (), help="name, stage and values of each step; ready: its data are made."
    )
    flags: dict[str, str] = option({}, help="The recipe's flag that sets STEP.SETTING or STAGE.SETTING.")
    run: RunConfig = RunConfig()


Fix = tuple[str, str, str, Any]


@dataclass(frozen=True)
class Problem:
    """text: what is wrong. fix: (step, stage, setting, value) that fixes it. otherwise: another such way."""

    text: str
    fix: Fix | None = None
    otherwise: Fix | None = None


@dataclass(frozen=True)
class Step:
    """A step of the recipe, with its settings."""

    name: str
    stage: str
    values: Mapping[str, Any]
    config: Any
    ready: bool
    """Whether the data that it reads are made."""


def with_checks(jobs: Sequence[Job], flags: Mapping[str, str]) -> list[Job]:
    """`jobs`, with a job for each seed that checks the data once they are made; training waits for it."""
    result: list[Job] = []
    for prefix in dict.fromkeys(job.prefix for job in jobs):
        part = [job for job in jobs if job.prefix == prefix]
        later: set[str] = set()
        for job in part:
            if traits(job.stage).trains or job.after & later:
                later.add(job.name)
        data = frozenset(job.name for job in part if job.name not in later)
        makers = {job.name for job in part if traits(job.stage).writes_data}
        if not later or not data:
            result += part
            continue
        steps = tuple(
            {
                "name": job.name.removeprefix(prefix),
                "stage": job.stage,
                "values": dict(job.values),
                "ready": not job.after & makers & later,
            }
            for job in part
        )
        shared = {name: part[0].values[name] for name in ("data_dir", "results_dir", "seed")}
        check = Job(prefix + CHECKS, CHECKS, {"steps": steps, "flags": dict(flags), **shared}, data, prefix)
        for job in part:
            if job.name in later and check not in result:
                result.append(check)
            trains = traits(job.stage).trains
            result.append(replace(job, after=job.after | {check.name}) if trains else job)
    return result


def check_settings(jobs: Sequence[Job]) -> None:
    """Raises ConfigError, naming the step, if one has a setting with a wrong value, or needs a model that no step makes
    and that is nowhere.
    """
    names = {
        (job.values["results_dir"], name)
        for job in jobs
        for name in (job.name.removeprefix(job.prefix), job.values["name"])
    }
    made = {Path(folder) / name for folder, name in names}  # as `_placed` refers to them, and as they are
    made |= {Path(job.values[name]) for job in jobs for name in MADE if job.values.get(name)}
    for job in jobs:
        name = job.name.removeprefix(job.prefix)
        config = _settings(name, job.stage, job.values)
        try:
            for model in _models(config):
                if not made.intersection((Path(model), *Path(model).parents)):
                    _check_model(model)
        except ReflectkitError as error:
            raise ConfigError(f"step '{name}': {error}") from None


def _models(config: Any) -> list[str]:
    """The models that a step loads, as they are written."""
    settings = flat(config)
    loaded = [settings.get(name) for name in ("load_dir", "reflect_load_dir", "model")]
    for text in config.policy if isinstance(config, evaluate.EvaluateConfig) else ():
        _, *players = parse_policy(text, config.baselines, config.env.kind.methods)
        loaded += players
    none = (*map(str, WITHOUT_MODEL), *TINY, *PACKAGED)
    return [str(model) for model in loaded if model and str(model) not in none and not is_chat(Path(model))]


def _check_model(model: str) -> None:
    """Raises ReflectkitError unless `model` exists, or can be fetched."""
    hub_options(model)
    if looks_local(model) and not Path(model).exists():
        raise ConfigError(f"{model} does not exist, and no step makes it; write {{STEP}} for what a step makes")


def run(config: ChecksConfig, progress: Progress) -> Report:
    """Check every step. Raises ConfigError with all problems and their fixes."""
    steps = {one["name"]: _step(one) for one in config.steps}
    problems: list[Problem] = []
    with progress.bar("Checking the data", len(steps)) as bar:
        readers: dict[str, tuple[Any, int]] = {}
        needed: list[tuple[int, str, Step]] = []  # tokens, of what, of which SFT step
        for step in steps.values():
            if step.stage == "sft" and step.ready:
                _measure_rows(step, steps, readers, needed, progress)
            elif step.stage in ("rlft", "evaluate") and step.ready:
                tasks = _tasks(step, steps, problems)
                _measure_prompts(step, steps, tasks, readers, needed, problems)
            bar.advance()
    problems += _too_long(needed, readers)
    if problems:
        raise ConfigError(_explained(list({one.text: one for one in problems}.values()), config.flags or {}))
    return Report(CHECKS, config.run.results_dir, {})


def _step(one: Mapping[str, Any]) -> Step:
    ready = one["ready"] and not references(str(one["values"].get("task_file") or ""))
    return Step(one["name"], one["stage"], one["values"], _settings(one["name"], one["stage"], one["values"]), ready)


def _settings(name: str, stage: str, values: Mapping[str, Any]) -> Any:
    """The settings of a step; a checkpoint that another step makes has that step's name there. Raises ConfigError."""
    place = f"step '{name}'"
    try:
        return build(config_class(stage), {key: _placed(one, values) for key, one in values.items()}, place)
    except ReflectkitError as error:
        raise ConfigError(str(error) if place in str(error) else f"{place}: {error}") from None


def _placed(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        names = {name: str(values["results_dir"] / name) for name in references(value)}
        return value.format(**names, data=values["data_dir"], results=values["results_dir"])
    return [_placed(part, values) for part in value] if isinstance(value, list | tuple) else value


# ----------------------------------------------------------------------------------------------------------- the splits


def _tasks(step: Step, steps: Mapping[str, Step], problems: list[Problem]) -> dict[str, list[Task]]:
    """The problems of each level that the step plays; what is missing is added to `problems`."""
    config = step.config
    if step.stage == "evaluate":
        source = config.task_file or config.setup.folder / evaluate.HELD_OUT
        levels = list(dict.fromkeys(config.level)) or [config.setup.kind.levels[-1]]
    else:
        source = config.task_file or config.setup.folder / "train.json"
        levels = list(
            dict.fromkeys(level for names in config.curriculum.stages(config.setup.kind.levels[-1]) for level in names)
        )
    if not source.is_file():
        return {}  # evaluate plays all problems that the env lists; rlft says what is missing
    splitter = next(
        (one for one in steps.values() if one.stage == "split" and source.parent == one.config.setup.folder), None
    )
    by_question = _by_question(splitter)
    if read_json(source) == []:
        count = len({task.group for task in _all_tasks(splitter)}) if splitter and by_question else 0
        repositories = "one repository" if count == 1 else f"{count} repositories"
        why = f"{repositories} cannot be split 7:2:1" if count else "there are too few to split them 7:2:1"
        problems.append(Problem(f"{source}, which step '{step.name}' plays, has no problems: {why}", by_question))
        return {}
    tasks = [record.task for record in read_records(source, config.setup.env_name)]
    at_level = config.setup.kind.at_level if config.setup.kind.has("at_level") else lambda task, _: task
    by_level = {level: [task for task in tasks if at_level(task, level)] for level in levels}
    if missing := [level for level, part in by_level.items() if not part]:
        there = ", ".join(sorted({task.level for task in tasks}))
        names = ", ".join(sorted({task.group for task in tasks})[:3])
        text = f"step '{step.name}' plays level {', '.join(missing)}, and {source} ({names}) has only {there}"
        rest = [level for level in levels if level not in missing]
        without: Fix = (step.name, step.stage, "level" if step.stage == "evaluate" else "curriculum", rest)
        everywhere = {task.level for task in _all_tasks(splitter)} if splitter else set()
        if not everywhere.issuperset(missing):
            by_question = None  # no other split has that level either
        if rest and (step.stage == "evaluate" or not by_question):
            problems.append(Problem(text, without, by_question))
        else:
            problems.append(Problem(text, by_question))
    return by_level


def _by_question(splitter: Step | None) -> Fix | None:
    """The change to a split by question; None if there is no split by repository."""
    if splitter is None or (splitter.config.by or splitter.config.setup.kind.split_by[0]) != "repo":
        return None
    return (splitter.name, splitter.stage, "by", "question")


def _all_tasks(splitter: Step) -> list[Task]:
    source = splitter.config.task_file or splitter.config.setup.folder / RECORDS
    return [record.task for record in read_records(source, splitter.config.setup.env_name)]


# ---------------------------------------------------------------------------------------------------------- the lengths


def _measure_rows(
    step: Step,
    steps: Mapping[str, Step],
    readers: dict[str, tuple[Any, int]],
    needed: list[tuple[int, str, Step]],
    progress: Progress,
) -> None:
    """Add the step's tokenizer to `readers`, and its longest row to `needed`. A finished step is left out."""
    base = _referenced(step.values.get("model"), steps)
    if base is not None:
        if base.name not in readers:
            return
        tokenizer, context = readers[base.name]
    else:
        config = with_values(step.config, model=model_source(step.config.model, step.config.run.data_dir, progress))
        if sft.is_finished(config):
            return
        tokenizer, context = sft.reader(config)
    readers[step.name] = tokenizer, min(context, step.config.max_length)
    tokens, line, source = sft.longest_row(step.config, tokenizer)
    needed.append((tokens, f"the row in line {line} of {source}", step))


def _measure_prompts(
    step: Step,
    steps: Mapping[str, Step],
    tasks: Mapping[str, list[Task]],
    readers: Mapping[str, tuple[Any, int]],
    needed: list[tuple[int, str, Step]],
    problems: list[Problem],
) -> None:
    """Add the longest prompt on the oracle's way through each problem to `needed`, for every policy that plays."""
    from reflectkit.models.labels import trie
    from reflectkit.models.tokens import choice_ids, prompt_ids

    config = step.config
    if not config.setup.kind.repositories_folder or config.setup.kind.chat_settings:
        return
    players = [step.values.get("load_dir")] if step.stage == "rlft" else list(step.values.get("policy") or ())
    trained = {one.name: one for text in players if (one := _first_trained(text, steps)) and one.name in readers}
    if not trained:
        return
    one_a_file = {config.setup.kind.cluster(task): (level, task) for level, part in tasks.items() for task in part}
    shown: list[tuple[Any, str | None, Task]] = []
    for level in dict.fromkeys(level for level, _ in one_a_file.values()):
        episodes = [
            Episode(task, derive(config.run.seed, "check", task.id)) for at, task in one_a_file.values() if at == level
        ]
        for played in rollout(episodes, config.setup.maker(level), Demonstrator(0.0), width=config.rollout.width):
            shown += [(turn.observation, turn.decision.reflection, played.task) for turn in played.turns]
    for sft_step in trained.values():
        tokenizer, _ = readers[sft_step.name]
        commented = sft_step.config.role == "policy"
        longest, where, form = 0, "", sft.answer_form(sft_step.config)
        for observation, comment, task in shown:
            try:
                read = trie(choice_ids(tokenizer, observation.choices, form)).depth if observation.choices else 0
                prompt = policy_prompt(observation, comment if commented else None, form)
            except (CheckpointError, ConfigError) as error:
                problems.append(Problem(f"step '{step.name}': {error}"))
                break
            tokens = len(prompt_ids(tokenizer, prompt)) + read
            if tokens > longest:
                longest, where = tokens, f"a prompt of {task.group} in step '{step.name}'"
        needed.append((longest, where, sft_step))


def _first_trained(text: Any, steps: Mapping[str, Step]) -> Step | None:
    """The SFT step that the first player in `text`, "{a}" or "NAME={a}+{b}", starts from."""
    step = _referenced(text.partition("+")[0] if isinstance(text, str) else None, steps)
    while step is not None and step.stage != "sft":
        step = _referenced(step.values.get("load_dir"), steps)
    return step


def _referenced(value: Any, steps: Mapping[str, Step]) -> Step | None:
    names = references(value) if isinstance(value, str) else set()
    return steps.get(next(iter(names))) if len(names) == 1 else None


def _too_long(needed: Sequence[tuple[int, str, Step]], readers: Mapping[str, tuple[Any, int]]) -> list[Problem]:
    """One problem for what does not fit, the worst of it."""
    over = [(tokens, what, step) for tokens, what, step in needed if tokens > readers[step.name][1]]
    if not over:
        return []
    tokens, what, step = max(over, key=lambda entry: entry[0])
    text = f"{what} has {tokens:,} tokens, and the model of step '{step.name}' reads {readers[step.name][1]:,}"
    fitting = -(-max(entry[0] for entry in needed) * ROOM // BLOCK) * BLOCK
    if step.config.model in TINY or step.values.get("model", "").startswith("{"):
        return [Problem(text, ("", "sft", "max_length", int(fitting)))]
    return [Problem(f"{text}; use a model with a longer context, or lower --prompt-tokens and --result-tokens")]


# ---------------------------------------------------------------------------------------------------------- the message


def _explained(problems: Sequence[Problem], flags: Mapping[str, str]) -> str:
    """All problems and what to add to the command, on one line."""
    several = len(problems) > 1
    texts = [f"({number}) {one.text}" if several else one.text for number, one in enumerate(problems, 1)]
    line = f"nothing was trained yet: {'; '.join(texts)}"
    if fixes := list(dict.fromkeys(_as_flag(one.fix, flags) for one in problems if one.fix)):
        line += f"; add {' '.join(fixes)}"
    if others := list(dict.fromkeys(_as_flag(one.otherwise, flags) for one in problems if one.otherwise)):
        line += f" (or instead of a level, {' '.join(others)})"
    return line


def _as_flag(fix: tuple[str, str, str, Any], flags: Mapping[str, str]) -> str:
    """The flag of `run` for a fix: the recipe's own, or --set."""
    step, stage, setting, value = fix
    for target in (f"{step}.{setting}", f"{stage}.{setting}", f"defaults.{setting}"):
        if target in flags:
            return f"{flags[target]} {','.join(value) if isinstance(value, list) else value}"
    text = json.dumps(value) if isinstance(value, list) else value
    return f"--set '{step or stage}.{setting}={text}'"
