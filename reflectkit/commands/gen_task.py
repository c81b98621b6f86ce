"""gen-task: generate the problems of an env that does not list its own: conversations (memory),
games (alfworld), or questions about the files of filtered repositories (auto_explore), with one
output file per repository.

Each question comes from a teacher, with its answer and the path to the file. The oracle teacher
needs no network. Chat teachers are asked once per file, and once more which files of the folder
answer the questions. Questions that no file or several files answer are dropped (`--no-check` keeps
all). Answers are kept in `journal.jsonl`; nothing is paid twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from reflectkit.chat.client import client_at
from reflectkit.chat.config import TeacherConfig, free_estimate
from reflectkit.commands import Traits
from reflectkit.config import Config, NoSettings, Rule, chosen_by, option
from reflectkit.console import Progress, Report, Table
from reflectkit.data.problems import Record, record_to_json
from reflectkit.data.questioning import (
    Material,
    QuestionSettings,
    ask_oracle,
    ask_teacher,
    estimate_questions,
    read_material,
)
from reflectkit.envs import ENVS, env_class
from reflectkit.envs.auto_explore.questions import FileQuestion, found_by_words, to_json
from reflectkit.envs.problems import ProblemGenerator
from reflectkit.envs.setup import EnvSetup, check_explores
from reflectkit.errors import DataError
from reflectkit.jsonl import write_json
from reflectkit.registry import code_files, resolve
from reflectkit.runs.run import RunConfig, open_run, write_permission
from reflectkit.text import pluralize

EXAMPLES = (
    "reflectkit gen-task --teacher oracle",
    "reflectkit gen-task --teacher openai:gpt-4o-mini --dry-run",
    "reflectkit gen-task --teacher openai:gpt-4o-mini --max-cost-usd 2",
    "reflectkit gen-task --teacher local:qwen2.5-7b-instruct --base-url http://localhost:1234/v1",
    "reflectkit gen-task --env memory --instances 400 --long-instances 300",
    "reflectkit gen-task --env memory --parquet memalpha/train.parquet",
    "reflectkit gen-task --env memory --text my/books --chunk-tokens 1024",
    "reflectkit gen-task --env alfworld --instances 180",
    (
        'reflectkit gen-task --env alfworld --games "pick_and_place_simple-Tomato-*-Microwave"'
        " --instances 40"
    ),
    "reflectkit gen-task --env alfworld --games-dir alfworld_data",
    "reflectkit gen-task --env tau --domain retail",
)


def _generator(env: str) -> type[ProblemGenerator] | None:
    """The generator of the env's problems; None if a teacher writes them."""
    name = env_class(env).taskset.problem_generator
    return resolve("problem generator", name, {}) if name else None


def _settings(env: str) -> type[Config]:
    """The settings of the env's generator, or of questions about files."""
    if generator := _generator(env):
        return generator.Settings
    return QuestionSettings if env_class(env).taskset.repositories_folder else NoSettings


TRAITS = Traits(writes_data=True)


class GenTaskConfig(Config):
    """Settings of gen-task."""

    env: str = option(
        "auto_explore", help="Environment of the problems; for its settings: --env NAME --help."
    )
    settings: Any = chosen_by("env", settings=_settings, names=lambda: ENVS)
    teacher: TeacherConfig = TeacherConfig()
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup(self.env, self.run.data_dir)

    @override
    def contradictions(self) -> Iterator[Rule]:
        generator = self.generator
        if generator is None:
            check_explores("gen-task", self.env)
            return
        no_teacher = f"{generator.noun} are generated without a teacher; leave out the flag"
        yield not self.teacher.is_oracle, f"--teacher {self.teacher.name}: {no_teacher}"

    @property
    def generator(self) -> type[ProblemGenerator] | None:
        """The generator of the env's problems; None if a teacher writes them."""
        return _generator(self.env)


CONFIG = GenTaskConfig


def run(config: GenTaskConfig, progress: Progress) -> Report:
    """Write `tasks/<repository>.json`, or what the env's generator makes: `data.json`, and others
    next to it.

    Raises
    ------
    DataError, ConfigError, ApiError, BudgetSpentError.
    """
    if config.teacher.chat.dry_run and config.teacher.is_oracle:
        return Report("gen-task", config.setup.env_folder, *free_estimate())
    if config.generator:
        return _generate(config, config.generator, progress)
    return _ask(config, progress)


def _ask(config: GenTaskConfig, progress: Progress) -> Report:
    """Write questions about the files of the filtered repositories."""
    # 1. The repositories
    settings: QuestionSettings = config.settings
    repos = settings.repos_dir or config.setup.repos_folder
    folders = _repositories(repos)
    target, journal = config.setup.env_folder / "tasks", config.setup.env_folder / "journal.jsonl"

    # 2. What it would cost
    if config.teacher.chat.dry_run:
        material = read_material(folders, settings, progress)
        figures, table = estimate_questions(config.teacher, material, settings, journal)
        return Report("gen-task", config.setup.env_folder, figures, (), (table,))
    write_permission(target)
    with open_run("gen-task", config, folders) as current:
        if current.done:
            return current.done

        # 3. The questions
        material = read_material(folders, settings, progress)
        figures = {}
        client = None
        if config.teacher.is_oracle:
            questions = ask_oracle(material, settings.per_file, progress)
        else:
            with client_at(config.teacher.chat, config.teacher.endpoint, journal) as client:
                answers = ask_teacher(client, material, settings, progress)
            questions = answers.questions
            figures = client.call_figures(answers.rejected, target / "rejected.jsonl", progress)
            figures["dropped"] = dict(answers.dropped)

        # 4. A file for each repository, also where the budget ended
        outputs = _write_questions(questions, material, target)
        if client is not None:
            file_count = pluralize(len(material.all_files), "file")
            progress_text = f"{answers.answered} of {file_count} asked about"
            client.stop_if_spent(f"{progress_text}; the questions are in {target}")
        # filter-task would read files of an earlier run
        for name in material.files:
            path = target / f"{name}.json"
            if path not in outputs:
                path.unlink(missing_ok=True)

        # 5. What is left of the questions, and why
        unusable = figures.get("rejected", 0)
        passed = {**({"no usable answer": unusable} if unusable else {}), **material.passed}
        if not questions:
            reasons = {**figures.get("dropped", {}), **passed}
            counts = ", ".join(f"{reason}: {count}" for reason, count in reasons.items())
            fix = "see --min-tokens, --no-check and --teacher"
            if client is not None:
                fix += f"; the answers are kept in {journal}: delete it to ask again"
            raise DataError(repos, f"no question is left: {counts}; {fix}")
        table, found_count = _question_table(questions, material, settings.max_level, target)
        figures |= {
            "questions": len(questions),
            "files": len(material.all_files),
            "passed_over": dict(material.passed),
            "found_by_words": found_count,
        }
        current.tables.append(table)
        if figures.get("dropped"):
            current.tables.append(_reasons("Questions dropped", "questions", figures["dropped"]))
        if passed:
            current.tables.append(_reasons("Files passed over", "files", passed))
        return current.finish(figures, outputs)


def _repositories(folder: Path) -> list[Path]:
    """The filtered repositories in `folder`. Raises DataError if there are none."""
    repositories = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and not path.name.startswith("."):
            repositories.append(path)
    if not repositories:
        raise DataError(
            folder, "has no repositories; run `reflectkit filter-repo` first, or give --repos-dir"
        )
    return repositories


def _write_questions(
    questions: Sequence[FileQuestion],
    material: Material,
    target: Path,
) -> list[Path]:
    """Write a file in `target` for each repository with questions. Returns the files."""
    outputs = []
    for name in material.files:
        records = [to_json(question) for question in questions if question.root == name]
        if records:
            path = target / f"{name}.json"
            write_json(path, records)
            outputs.append(path)
    return outputs


def _question_table(
    questions: Sequence[FileQuestion],
    material: Material,
    max_level: int,
    target: Path,
) -> tuple[Table, int]:
    """(the numbers of questions by repository and depth, how many of all are found by words)."""
    rows = []
    total = 0
    levels = range(max_level + 1)
    for name, files in material.files.items():
        # 1. The questions at each depth
        part = [question for question in questions if question.root == name]
        counts = [sum(question.n_level == level for question in part) for level in levels]

        # 2. Those that their words find
        found_count = found_by_words(part, {file.path: file.text for file in files})
        total += found_count
        share = f"{100 * found_count / len(part):.0f} %" if part else ""
        rows.append((name, *map(str, (len(files), len(part), *counts)), share))
    depths = [f"depth {level}" for level in levels]
    headings = ("repository", "files", "questions", *depths, "found by words")
    return Table(f"Questions in {target}", headings, tuple(rows)), total


def _reasons(title: str, noun: str, counts: Mapping[str, int]) -> Table:
    """A table of reasons, with the number of `noun` for each."""
    lines = tuple((reason, str(count)) for reason, count in counts.items())
    return Table(title, ("reason", noun), lines)


def _generate(
    config: GenTaskConfig, generator: type[ProblemGenerator], progress: Progress
) -> Report:
    """Write the problems of the env's generator."""
    # 1. The generator, and what it reads
    maker = generator(config.settings, config.setup.env_folder, config.run.seed)
    inputs = maker.inputs()
    for folder in (*maker.outputs(), config.setup.folder):
        write_permission(folder)
    code = [*config.setup.code_files, *code_files([type(maker).__module__])]
    with open_run("gen-task", config, [*inputs, *code]) as current:
        if current.done:
            return current.done

        # 2. Its problems
        generated = maker.generate(progress)
        outputs = []
        for name, tasks in generated.tasks.items():
            path = config.setup.folder / f"{name}.json"
            if tasks:
                write_json(path, [record_to_json(Record(task, ())) for task in tasks])
                outputs.append(path)
            else:
                path.unlink(missing_ok=True)  # of an earlier run
        current.tables += generated.tables
        return current.finish(generated.figures, [*outputs, *generated.outputs])
