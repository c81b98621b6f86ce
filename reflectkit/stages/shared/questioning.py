"""Questions about files from a chat teacher: it writes some for each file, then says which files answer them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reflectkit.chat.client import ChatClient, Outcome, Rejected, Request
from reflectkit.chat.journal import open_journal
from reflectkit.core.console import Progress
from reflectkit.core.eventloop import run_sync
from reflectkit.core.reports import Table
from reflectkit.data.answer_check import PLACEHOLDER, candidates, check_messages, parse_check
from reflectkit.data.question_prompts import ANALYSIS_TOKENS, context_of, parse_questions, question_messages
from reflectkit.data.repos import kind_of
from reflectkit.stages.shared.chat import TeacherConfig, estimate

TOKENS_A_QUESTION = 90  # that a teacher writes per question and answer
TOKENS_A_VERDICT = 6
MOST_A_VERDICT = 30
NONE, SEVERAL, ANOTHER = "answered by no file", "answered by several files", "answered by another file"

Pairs = list[tuple[str, str]]
Excerpts = Mapping[str, dict[str, str]]  # by repository and path


@dataclass(frozen=True)
class File:
    """A file to ask about. text: its text, up to a limit. excerpt: its two ends if it is long."""

    root: str
    path: str
    text: str
    excerpt: str


@dataclass(frozen=True)
class Asked:
    """questions: (question, answer) pairs by file; none for a file without an answer. dropped: their number by reason.
    rejected: requests without a usable answer.
    """

    questions: Mapping[File, Pairs]
    dropped: Mapping[str, int]
    rejected: list[Rejected]


def ask_teacher(
    client: ChatClient,
    files: Sequence[File],
    excerpts: Excerpts,
    per_file: int,
    check: bool,
    name: str,
    progress: Progress,
) -> Asked:
    """Questions about each of `files` from the teacher called `name`; with `check`, those that it says are answered by
    their file alone. excerpts: of all files of their repositories. Raises ApiError.
    """
    written = _ask_all(
        client,
        [_request(file, excerpts[file.root], per_file) for file in files],
        lambda number, text: parse_questions(text, files[number].path, per_file),
        progress.bar(f"Asking {name}", len(files)),
    )
    rejected = [outcome.rejected for outcome in written if outcome.rejected]
    pairs_of = {file: outcome.value for file, outcome in zip(files, written, strict=True) if outcome.value}
    if not check or not pairs_of:
        return Asked(pairs_of, {}, rejected)
    checks = [_check(file, pairs, excerpts[file.root]) for file, pairs in pairs_of.items()]
    verdicts = _ask_all(
        client,
        [one.request for one in checks],
        lambda number, text: parse_check(text, checks[number].questions, len(checks[number].paths)),
        progress.bar(f"Checking with {name}", len(checks)),
    )
    rejected += [outcome.rejected for outcome in verdicts if outcome.rejected]
    dropped: dict[str, int] = {}
    kept: dict[File, Pairs] = {}
    for (file, pairs), one, outcome in zip(pairs_of.items(), checks, verdicts, strict=True):
        own = one.paths.index(file.path) + 1
        for pair, named in zip(pairs, outcome.value or [], strict=False):  # without a verdict, none is kept
            reason = "" if named == {own} else NONE if not named else ANOTHER if own not in named else SEVERAL
            if reason:
                dropped[reason] = dropped.get(reason, 0) + 1
            else:
                kept.setdefault(file, []).append(pair)
    return Asked(kept, dropped, rejected)


def estimate_questions(
    teacher: TeacherConfig, files: Sequence[File], excerpts: Excerpts, per_file: int, check: bool, journal: Path
) -> tuple[dict[str, Any], Table]:
    """The expected and maximum cost of `ask_teacher`; questions that are not yet written count with their longest."""
    requests = [_request(file, excerpts[file.root], per_file) for file in files]
    usual = dict.fromkeys(requests, TOKENS_A_QUESTION * per_file)
    if check:
        with open_journal(journal, write=False) as answered:
            client = ChatClient(teacher.endpoint, answered, teacher.prices)
            for file, request in zip(files, requests, strict=True):
                outcome = client.replay(request, partial(parse_questions, path=file.path, count=per_file))
                pairs = [(PLACEHOLDER, "")] * per_file if outcome is None else outcome.value
                if pairs:
                    usual[_check(file, pairs, excerpts[file.root]).request] = TOKENS_A_VERDICT * per_file
    return estimate(teacher, list(usual), usual.__getitem__, journal)


@dataclass(frozen=True)
class _Check:
    request: Request
    questions: int
    paths: list[str]


def _check(file: File, pairs: Pairs, excerpts: Mapping[str, str]) -> _Check:
    questions = [question for question, _ in pairs]
    paths = candidates(file.path, questions, excerpts)
    messages = check_messages(questions, {path: excerpts[path] for path in paths})
    name = f"{file.root}/{file.path}: which files answer"
    return _Check(Request(name, messages, MOST_A_VERDICT * len(questions) + 30), len(questions), paths)


def _request(file: File, excerpts: Mapping[str, str], count: int) -> Request:
    kind, context = kind_of(file.path) or "text", context_of(file.root, file.path, excerpts)
    messages = question_messages(file.path, kind, file.excerpt, count, context)
    return Request(f"{file.root}/{file.path}", messages, 120 * count + 100 + ANALYSIS_TOKENS)


def _ask_all(
    client: ChatClient, requests: Sequence[Request], parse: Callable[[int, str], Any], shown: Any
) -> list[Outcome[Any]]:
    with shown as bar:
        return run_sync(client.ask_all(requests, parse, lambda: bar.advance(1, usd=client.cost_usd)))
