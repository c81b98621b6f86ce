"""gen-task: questions about the files of filtered repositories, with answers and the way there, from a teacher; one
file a repository. For env memory: conversations with questions, generated or read from the published data.

The oracle teacher needs no network. Chat teachers are asked once a file; each answer is kept in `journal.jsonl`, so
that a killed run, or the same command again, pays for nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.agents.client import Request
from reflectkit.core.config import flag, option, within
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError, DataError
from reflectkit.core.eventloop import wait_for
from reflectkit.core.jsonl import write_json
from reflectkit.core.runs import Report, Table, open_run, write_permission
from reflectkit.core.text import count_tokens, shorten
from reflectkit.data.asking import parse_questions, question_messages
from reflectkit.data.oracle import ask
from reflectkit.data.questions import Question, to_json
from reflectkit.data.repos import DEPTH, kind_of
from reflectkit.envs.autoexplore.commands import offered, shortest_path
from reflectkit.envs.autoexplore.repo import open_repository
from reflectkit.stages.common import EnvConfig, explore_only
from reflectkit.stages.gen_games import gen_games, list_games
from reflectkit.stages.gen_memory import gen_memory
from reflectkit.stages.teaching import ORACLE, TeacherConfig, call_figures, estimate, free, stop_if_spent

EXAMPLES = (
    "reflectkit gen-task --teacher oracle",
    "reflectkit gen-task --teacher openai:gpt-4o-mini --dry-run",
    "reflectkit gen-task --teacher openai:gpt-4o-mini --max-cost-usd 2",
    "reflectkit gen-task --teacher local:qwen2.5-7b-instruct --base-url http://localhost:1234/v1",
    "reflectkit gen-task --env memory --instances 400 --long-instances 300",
    "reflectkit gen-task --env memory --parquet memalpha/train.parquet",
    "reflectkit gen-task --env alfworld --instances 180",
    'reflectkit gen-task --env alfworld --games "pick_and_place_simple-Tomato-*-Microwave" --instances 40',
    "reflectkit gen-task --env alfworld --games-dir alfworld_data",
)
MEMORY, ALFWORLD = "memory", "alfworld"
CONVERSATIONS, GAMES = 400, 180  # that are generated unless --instances says otherwise
OWN = {
    MEMORY: ("instances", "long_instances", "parquet"),
    ALFWORLD: ("instances", "games_dir", "games"),
    "auto_explore": ("repos_dir", "max_level", "per_file", "min_tokens", "max_tokens"),
}
"""The settings that are for one env, or for some."""
FEWEST_TOKENS, MOST_TOKENS = 50, 2000  # of an excerpt, as in the paper's pipeline
WHOLE_TOKENS = 20_000  # of a file that the oracle reads
TOKENS_A_QUESTION = 90  # that a teacher writes, with its answer


@dataclass(frozen=True)
class Config(TeacherConfig, EnvConfig):
    """Settings of gen-task."""

    env: str = option(
        "auto_explore", help="The environment that the questions are for: auto_explore, memory or alfworld."
    )
    repos_dir: Path | None = option(
        None, help="The filtered repositories; default: repos_filtered in the env's data folder."
    )
    max_level: int = option(2, help="Files at most so many folders deep.")
    per_file: int = option(3, help="Questions a file, at most.")
    min_tokens: int = option(FEWEST_TOKENS, help="Files with fewer tokens, about, are passed over.")
    max_tokens: int = option(
        MOST_TOKENS, help="Tokens, about, of the excerpt that is asked about: both ends of a longer file."
    )

    instances: int | None = option(
        None,
        help=(
            f"memory: conversations of 4 to 10 chunks to generate ({CONVERSATIONS}). alfworld: games to generate"
            f" ({GAMES})."
        ),
    )
    long_instances: int = option(300, help="memory: conversations of 40 chunks to generate.")
    parquet: tuple[Path, ...] = option((), help="memory: files in the Mem-α format to read instead (repeat the flag).")
    games_dir: Path | None = option(
        None, help="alfworld: list the games of this folder, which alfworld-download filled, and generate none."
    )
    games: tuple[str, ...] = option(
        (), help="alfworld: only games whose name matches, e.g. 'pick_heat_*-Egg-*' (repeat the flag)."
    )

    def __post_init__(self) -> None:
        EnvConfig.__post_init__(self)
        TeacherConfig.__post_init__(self)
        if self.env_name not in (MEMORY, ALFWORLD):
            explore_only("gen-task", self.env)
        self._refuse_foreign()
        within("instances", self.number, 1 if self.env_name == ALFWORLD else 0, 1_000_000)
        within("long_instances", self.long_instances, 0, 1_000_000)
        within("max_level", self.max_level, 0, DEPTH)
        within("per_file", self.per_file, 1, 1000)
        for name in ("min_tokens", "max_tokens"):
            within(name, getattr(self, name), 1, 1_000_000)
        if self.env_name in (MEMORY, ALFWORLD) and self.teacher != ORACLE:
            made = "conversations" if self.env_name == MEMORY else "games"
            raise ConfigError(f"--teacher {self.teacher}: {made} are generated without a teacher; leave it out")
        if self.env_name == MEMORY and not self.parquet and self.number + self.long_instances == 0:
            raise ConfigError("--instances and --long-instances are both 0; generate at least one conversation")
        if self.games_dir is not None and self.instances is not None:
            raise ConfigError("--instances generates games and --games-dir lists those that are there; leave one out")

    @property
    def number(self) -> int:
        """How many conversations or games are generated."""
        if self.instances is not None:
            return self.instances
        return GAMES if self.env_name == ALFWORLD else CONVERSATIONS

    def _refuse_foreign(self) -> None:
        own = OWN.get(self.env_name, OWN["auto_explore"])
        for name in self.departed(sorted({name for names in OWN.values() for name in names} - set(own))):
            raise ConfigError(f"{flag(name)} is not for env '{self.env}'; leave it out")


@dataclass(frozen=True)
class _File:
    """A file to ask about. text: all of it, within reason. excerpt: both ends of it where it is long."""

    root: str
    path: str
    text: str
    excerpt: str


def run(config: Config, progress: Progress) -> Report:
    """Write `tasks/<repository>.json`, or for envs memory and alfworld `data.json`.

    Raises
    ------
    DataError, ConfigError, ApiError, BudgetSpentError.
    """
    if config.env_name in (MEMORY, ALFWORLD) and config.dry_run:
        return Report("gen-task", config.env_folder, *free())
    if config.env_name == MEMORY:
        return gen_memory(config, config.number, config.long_instances, config.parquet, progress)
    if config.env_name == ALFWORLD and config.games_dir is not None:
        return list_games(config, config.games_dir, config.games, progress)
    if config.env_name == ALFWORLD:
        return gen_games(config, config.number, config.games, progress)
    repos = config.repos_dir or config.repos_folder
    if not repos.is_dir():
        raise DataError(repos, "no such folder; run `reflectkit filter-repo` first, or give --repos-dir")
    names = sorted(path.name for path in repos.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise DataError(repos, "holds no repository; run `reflectkit filter-repo` first")
    target, journal = config.env_folder / "tasks", config.env_folder / "journal.jsonl"
    if config.dry_run and config.teacher == ORACLE:
        return Report("gen-task", config.env_folder, *free())
    if config.dry_run:
        files = [file for name in names for file in _files(repos / name, config, {}, progress)]
        requests = [_request(file, config.per_file) for file in files]
        figures, table = estimate(config, requests, TOKENS_A_QUESTION * config.per_file, journal)
        return Report("gen-task", config.env_folder, figures, (), (table,))
    write_permission(target)
    with open_run("gen-task", config, [repos / name for name in names]) as current:
        if current.done:
            return current.done
        passed: dict[str, int] = {}
        files_of = {name: _files(repos / name, config, passed, progress) for name in names}
        questions_of, figures = _ask(config, files_of, journal, target, progress)
        outputs, rows = [], []
        for name, questions in questions_of.items():
            path = target / f"{name}.json"
            if questions:
                write_json(path, [to_json(question) for question in questions])
                outputs.append(path)
            levels = [
                str(sum(question.n_level == level for question in questions)) for level in range(config.max_level + 1)
            ]
            rows.append((name, str(len(files_of[name])), str(len(questions)), *levels))
        stop = figures.pop("stop")
        if stop:
            stop()
        for name in (name for name, questions in questions_of.items() if not questions):
            (target / f"{name}.json").unlink(missing_ok=True)  # an earlier run's, which filter-task would take up
        if not outputs and figures.get("rejected"):
            raise DataError(
                target / "rejected.jsonl",
                f"{config.teacher} wrote no usable question about any file; try another model",
            )
        if not outputs:
            raise DataError(
                repos, f"no question can be asked about any file: {passed or 'they say too little'}; see --min-tokens"
            )
        figures |= {
            "questions": sum(map(len, questions_of.values())),
            "files": sum(map(len, files_of.values())),
            "passed_over": passed,
        }
        heads = ("repository", "files", "questions", *(f"depth {level}" for level in range(config.max_level + 1)))
        current.tables.append(Table(f"Questions in {target}", heads, tuple(rows)))
        if passed:
            current.tables.append(
                Table("Files passed over", ("reason", "files"), tuple((k, str(v)) for k, v in passed.items()))
            )
        return current.finish(figures, outputs)


def _files(folder: Path, config: Config, passed: dict[str, int], progress: Progress) -> list[_File]:
    """The files of a repository that are asked about; `passed` counts the others by reason. An unreadable one
    has none.
    """
    try:
        repository = open_repository(folder)
    except DataError as error:
        progress.news(f"left out: {error}")
        return []
    kept = []
    for path in sorted(repository.sizes):
        text = repository.view(path, WHOLE_TOKENS) if kind_of(path) else None
        if path.count("/") > config.max_level:
            reason = f"over {config.max_level} folders deep"
        elif text is None:
            reason = "cannot be read, or of another kind"
        elif count_tokens(text) < config.min_tokens:
            reason = f"under {config.min_tokens} tokens"
        elif not offered(repository, path):
            reason = "in a folder with too many entries to be offered"
        else:
            kept.append(_File(folder.name, path, text, shorten(text, config.max_tokens)))
            continue
        passed[reason] = passed.get(reason, 0) + 1
    return kept


def _ask(
    config: Config, files_of: dict[str, list[_File]], journal: Path, target: Path, progress: Progress
) -> tuple[dict[str, list[Question]], dict[str, Any]]:
    """Questions by repository, and the figures of the calls; `stop` in them is to be called when all is written."""
    files = [file for these in files_of.values() for file in these]
    if config.teacher == ORACLE:
        questions_of: dict[str, list[Question]] = {}
        with progress.bar("Questions", len(files)) as bar:
            for name, these in files_of.items():
                texts, excerpts = {file.path: file.text for file in these}, {file.path: file.excerpt for file in these}
                made = ask(name, texts, excerpts, config.per_file)
                questions_of[name] = [_with_way(question) for file in these for question in made[file.path]]
                bar.advance(len(these))
        return questions_of, {"stop": None}
    requests = [_request(file, config.per_file) for file in files]
    with config.client(journal) as client, progress.bar(f"Asking {config.endpoint}", len(files)) as bar:

        def advance() -> None:
            bar.advance(1, usd=client.cost_usd)

        outcomes = wait_for(
            client.ask_all(
                requests, lambda number, text: parse_questions(text, files[number].path, config.per_file), advance
            )
        )
        questions_of = {name: [] for name in files_of}
        for file, outcome in zip(files, outcomes, strict=True):
            for question, answer in outcome.value or []:
                depth = file.path.count("/")
                questions_of[file.root].append(
                    _with_way(Question(question, file.path, file.root, answer, (), depth, config.model_name))
                )
        rejected = [outcome.rejected for outcome in outcomes if outcome.rejected]
        figures = call_figures(config, client, rejected, target / "rejected.jsonl", progress)
        answered = sum(outcome.value is not None for outcome in outcomes)

        def stop() -> None:
            stop_if_spent(
                config, client, f"{answered} of {len(files)} files are asked about, their questions are in {target}"
            )

        return questions_of, figures | {"stop": stop}


def _request(file: _File, count: int) -> Request:
    kind = kind_of(file.path) or "text"
    return Request(
        f"{file.root}/{file.path}", question_messages(file.path, kind, file.excerpt, count), 120 * count + 100
    )


def _with_way(question: Question) -> Question:
    return Question(
        question.question, question.filename, question.root, question.answer,
        tuple(shortest_path(question.filename)[:-1]), question.n_level, question.model,
    )  # fmt: skip
