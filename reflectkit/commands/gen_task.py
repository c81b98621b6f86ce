"""gen-task: generate the problems of an env that does not list its own: conversations (memory), games (alfworld), or
questions about the files of filtered repositories (auto_explore), with one output file per repository.

Each question comes from a teacher, with its answer and the path to the file. The oracle teacher needs no network.
Chat teachers are asked once per file, and once more which files of the folder answer the questions. Questions that no
file or several files answer are dropped (`--no-check` keeps all). Answers are kept in `journal.jsonl`, so that nothing
is paid twice.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from reflectkit.chat.config import TeacherConfig, call_figures, free_estimate, stop_if_spent
from reflectkit.commands import Traits
from reflectkit.config import Config, NoSettings, chosen_by, option
from reflectkit.console import Progress, Report, Table
from reflectkit.data.oracle import ask
from reflectkit.data.overlap import found_by_words
from reflectkit.data.questioning import Excerpts, File, ask_teacher, estimate_questions
from reflectkit.data.questions import Question, to_json
from reflectkit.data.repos import DEPTH, kind_of
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.env import Explorer
from reflectkit.envs import ENVS, env_class
from reflectkit.envs.problems import ProblemGenerator
from reflectkit.envs.setup import EnvSetup, explorer
from reflectkit.errors import ConfigError, DataError
from reflectkit.jsonl import write_json
from reflectkit.registry import code_files, resolve
from reflectkit.runs.folders import RunConfig, write_permission
from reflectkit.runs.run import open_run
from reflectkit.text import count_tokens, pluralize, shorten

EXAMPLES = (
    "reflectkit gen-task --teacher oracle",
    "reflectkit gen-task --teacher openai:gpt-4o-mini --dry-run",
    "reflectkit gen-task --teacher openai:gpt-4o-mini --max-cost-usd 2",
    "reflectkit gen-task --teacher local:qwen2.5-7b-instruct --base-url http://localhost:1234/v1",
    "reflectkit gen-task --env memory --instances 400 --long-instances 300",
    "reflectkit gen-task --env memory --parquet memalpha/train.parquet",
    "reflectkit gen-task --env memory --text my/books --chunk-tokens 1024",
    "reflectkit gen-task --env alfworld --instances 180",
    'reflectkit gen-task --env alfworld --games "pick_and_place_simple-Tomato-*-Microwave" --instances 40',
    "reflectkit gen-task --env alfworld --games-dir alfworld_data",
    "reflectkit gen-task --env tau --domain retail",
)
FEWEST_TOKENS, MOST_TOKENS = 50, 2000  # in an excerpt, as in the paper's pipeline
WHOLE_TOKENS = 20_000  # maximum size of a file for the oracle


class QuestionSettings(Config):
    """Settings for envs that explore repositories."""

    repos_dir: Path | None = option(
        None, help="The filtered repositories; default: repos_filtered in the env's data folder."
    )
    max_level: int = option(2, help="Maximum folder depth of the files.", ge=0, le=DEPTH)
    per_file: int = option(3, help="Maximum questions per file.", ge=1)
    min_tokens: int = option(FEWEST_TOKENS, help="Skip files with fewer tokens (approximate).", ge=1)
    max_tokens: int = option(
        MOST_TOKENS,
        help="Approximate token limit of the excerpt to ask about; of longer files, the beginning and end.",
        ge=1,
    )
    check: bool = option(
        True, help="Ask a chat teacher which files answer each question, and keep those with one answer."
    )


def _generator(env: str) -> type[ProblemGenerator] | None:
    """The generator of the env's problems; None if a teacher writes them."""
    name = env_class(env).taskset.problem_generator
    return resolve("problem generator", name, {}) if name else None


def _settings(env: str) -> type[Config]:
    """The settings of the env's generator, or of questions about files."""
    generator = _generator(env)
    return (
        generator.Settings
        if generator
        else QuestionSettings
        if env_class(env).taskset.repositories_folder
        else NoSettings
    )


TRAITS = Traits(writes_data=True)


class GenTaskConfig(Config):
    """Settings of gen-task."""

    env: str = option("auto_explore", help="Environment of the problems; for its settings: --env NAME --help.")
    settings: Any = chosen_by("env", settings=_settings, names=lambda: ENVS)
    teacher: TeacherConfig = TeacherConfig()
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup(self.env, self.run.data_dir)

    @model_validator(mode="after")
    def _check(self) -> Self:
        generator = self.generator
        if generator is None:
            explorer("gen-task", self.env)
        elif not self.teacher.is_oracle:
            raise ConfigError(
                f"--teacher {self.teacher.name}: {generator.noun} are generated without a teacher; leave out the flag"
            )
        return self

    @property
    def generator(self) -> type[ProblemGenerator] | None:
        """The generator of the env's problems; None if a teacher writes them."""
        return _generator(self.env)


def run(config: GenTaskConfig, progress: Progress) -> Report:
    """Write `tasks/<repository>.json`, or what the env's generator makes: `data.json`, and others beside it.

    Raises
    ------
    DataError, ConfigError, ApiError, BudgetSpentError.
    """
    if config.generator is not None:
        return _generate(config, config.generator, progress)
    settings: QuestionSettings = config.settings
    repos = settings.repos_dir or config.setup.repos_folder
    if not repos.is_dir():
        raise DataError(repos, "no such folder; run `reflectkit filter-repo` first, or give --repos-dir")
    names = sorted(path.name for path in repos.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise DataError(repos, "has no repositories; run `reflectkit filter-repo` first")
    target, journal = config.setup.env_folder / "tasks", config.setup.env_folder / "journal.jsonl"
    if config.teacher.chat.dry_run and config.teacher.is_oracle:
        return Report("gen-task", config.setup.env_folder, *free_estimate())
    if config.teacher.chat.dry_run:
        excerpts: Excerpts = {name: {} for name in names}
        files = [file for name in names for file in _files(repos / name, config, {}, excerpts[name], progress)]
        figures, table = estimate_questions(config.teacher, files, excerpts, settings.per_file, settings.check, journal)
        return Report("gen-task", config.setup.env_folder, figures, (), (table,))
    write_permission(target)
    with open_run("gen-task", config, [repos / name for name in names]) as current:
        if current.done:
            return current.done
        passed: dict[str, int] = {}
        around: Excerpts = {name: {} for name in names}
        files_of = {name: _files(repos / name, config, passed, around[name], progress) for name in names}
        questions_of, figures = _ask(config, files_of, around, journal, target, progress)
        outputs, rows, found = [], [], {}
        for name, questions in questions_of.items():
            path = target / f"{name}.json"
            if questions:
                write_json(path, [to_json(question) for question in questions])
                outputs.append(path)
            levels = [
                str(sum(question.n_level == level for question in questions)) for level in range(settings.max_level + 1)
            ]
            found[name] = found_by_words(questions, {file.path: file.text for file in files_of[name]})
            share = f"{100 * found[name] / len(questions):.0f} %" if questions else ""
            rows.append((name, str(len(files_of[name])), str(len(questions)), *levels, share))
        stop = figures.pop("stop")
        if stop:
            stop()
        for name in (name for name, questions in questions_of.items() if not questions):
            (target / f"{name}.json").unlink(missing_ok=True)  # of an earlier run; filter-task would read it
        if not outputs and figures.get("rejected"):
            raise DataError(
                target / "rejected.jsonl",
                f"{config.teacher.name} wrote no usable question about any file; try another model",
            )
        if not outputs and figures.get("dropped"):
            raise DataError(repos, f"no question is answered by its file alone: {figures['dropped']}; see --no-check")
        if not outputs:
            raise DataError(
                repos, f"no question can be asked about any file: {passed or 'they say too little'}; see --min-tokens"
            )
        figures |= {
            "questions": sum(map(len, questions_of.values())),
            "files": sum(map(len, files_of.values())),
            "passed_over": passed,
            "found_by_words": sum(found.values()),
        }
        depths = (f"depth {level}" for level in range(settings.max_level + 1))
        heads = ("repository", "files", "questions", *depths, "found by words")
        current.tables.append(Table(f"Questions in {target}", heads, tuple(rows)))
        if dropped := figures.get("dropped"):
            current.tables.append(
                Table("Questions dropped", ("reason", "questions"), tuple((k, str(v)) for k, v in dropped.items()))
            )
        if passed:
            current.tables.append(
                Table("Files passed over", ("reason", "files"), tuple((k, str(v)) for k, v in passed.items()))
            )
        return current.finish(figures, outputs)


def _files(
    folder: Path, config: GenTaskConfig, passed: dict[str, int], excerpts: dict[str, str], progress: Progress
) -> list[File]:
    """The files of a repository that are asked about; `passed` counts the others by reason, and `excerpts` gets what
    all that can be read begin and end with. An unreadable repository has none.
    """
    tasks, settings = explorer("gen-task", config.env), config.settings
    try:
        repository = tasks.open_repository(folder)
    except DataError as error:
        progress.news(f"left out: {error}")
        return []
    kept = []
    for path in sorted(repository.sizes):
        text = repository.view(path, WHOLE_TOKENS) if kind_of(path) else None
        if text is not None:
            excerpts[path] = shorten(text, settings.max_tokens)
        if path.count("/") > settings.max_level:
            reason = f"over {pluralize(settings.max_level, 'folder')} deep"
        elif text is None:
            reason = "unreadable, or of an unsupported type"
        elif count_tokens(text) < settings.min_tokens:
            reason = f"under {pluralize(settings.min_tokens, 'token')}"
        elif not tasks.reaches(repository, path):
            reason = "in a folder with too many entries to offer"
        else:
            kept.append(File(folder.name, path, text, excerpts[path]))
            continue
        passed[reason] = passed.get(reason, 0) + 1
    return kept


def _ask(
    config: GenTaskConfig,
    files_of: dict[str, list[File]],
    around: Excerpts,
    journal: Path,
    target: Path,
    progress: Progress,
) -> tuple[dict[str, list[Question]], dict[str, Any]]:
    """Questions by repository, and the figures of the calls; the caller calls their `stop` after writing all files."""
    files = [file for these in files_of.values() for file in these]
    tasks, settings = explorer("gen-task", config.env), config.settings
    if config.teacher.is_oracle:
        questions_of: dict[str, list[Question]] = {}
        with progress.bar("Questions", len(files)) as bar:
            for name, these in files_of.items():
                texts, excerpts = {file.path: file.text for file in these}, {file.path: file.excerpt for file in these}
                questions = ask(name, texts, excerpts, settings.per_file)
                questions_of[name] = [_with_way(question, tasks) for file in these for question in questions[file.path]]
                bar.advance(len(these))
        return questions_of, {"stop": None}
    with config.teacher.client(journal) as client:
        asked = ask_teacher(
            client, files, around, settings.per_file, settings.check, str(config.teacher.endpoint), progress
        )
        questions_of = {name: [] for name in files_of}
        for file, pairs in asked.questions.items():
            depth = file.path.count("/")
            questions_of[file.root] += [
                _with_way(Question(question, file.path, file.root, answer, (), depth, config.teacher.model_name), tasks)
                for question, answer in pairs
            ]
        figures = call_figures(client, asked.rejected, target / "rejected.jsonl", progress)

        def stop() -> None:
            done = (
                f"{len(asked.questions)} of {pluralize(len(files), 'file')} asked about; the questions are in {target}"
            )
            stop_if_spent(config.teacher.chat, client, done)

        return questions_of, figures | {"dropped": dict(asked.dropped), "stop": stop}


def _generate(config: GenTaskConfig, generator: type[ProblemGenerator], progress: Progress) -> Report:
    """Write the problems of the env's generator."""
    if config.teacher.chat.dry_run:
        return Report("gen-task", config.setup.env_folder, *free_estimate())
    maker = generator(config.settings, config.setup.env_folder, config.run.seed)
    inputs = maker.inputs()
    for folder in (*maker.outputs(), config.setup.folder):
        write_permission(folder)
    code = [*config.setup.code_files, *code_files([type(maker).__module__])]
    with open_run("gen-task", config, [*inputs, *code]) as current:
        if current.done:
            return current.done
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


def _with_way(question: Question, tasks: Explorer) -> Question:
    return replace(question, optimal_path=tasks.way_to(question.filename)[:-1])
