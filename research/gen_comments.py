"""gen-comments: rows for a reflector that learns from its own comments, without a teacher's words: those that make a
policy likelier to act as demonstrated.

A model samples comments on the states of the demonstrations. Those that raise the policy's log-probability of the
demonstrated action by a margin are kept as rows for `sft --role reflection`, whose reflector may sample in the next
round.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Self

from pydantic import model_validator

from reflectkit.agents.player_refs import model_folders, refuse_without_model
from reflectkit.cli.main import main
from reflectkit.commands import Traits
from reflectkit.config import Config, identifying, option
from reflectkit.console import Progress, Report, Table
from reflectkit.data.demonstrations import drawn_records, replayed_lessons
from reflectkit.data.sft_rows import FILE_OF_ROLE, Lesson, read_rows, reflection_row
from reflectkit.envs.setup import EnvConfig, EnvSetup
from reflectkit.errors import ConfigError, DataError, memory_explained
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import dumps, read_jsonl, salvaged, write_jsonl
from reflectkit.models.refs import ModelRef
from reflectkit.prompts import one_line, policy_prompt
from reflectkit.runs.run import RunConfig, digest, open_run, read_record, runs_of, write_permission
from reflectkit.seeding import derive, generator
from reflectkit.text import pluralize
from reflectkit.types import Answer
from research.own_comments import (
    FIELDS,
    Judged,
    chosen,
    elsewhere,
    judged_from_json,
    judged_to_json,
    round_figures,
)

EXAMPLES = (
    "python -m research.gen_comments --env taxi --policy results/taxi-tiny/policy/checkpoint-250"
    " --reflector results/taxi-tiny/reflector/checkpoint-700",
    "reflectkit sft --env taxi --role reflection --model results/taxi-tiny/reflector/checkpoint-700"
    " --task-file data/taxi/own-comments/sft_reflection.jsonl",
)
BASELINES = ("none", "empty", "others")
OTHERS = 4  # comments on other states that make up the baseline "others"
AT_ONCE = 64  # states that are judged together and saved together; the last group may have one more
JUDGED, VALIDATION = "judged.jsonl", "validation.jsonl"
SELECTING = ("margin", "most", "rehearse", "out_dir")
"""Settings that only select among judged comments, or say where to."""
COLUMNS = (
    ("states", "states", "d"),
    ("kept", "kept_share", ".1%"),
    ("gain of all", "gain_sampled", "+.3f"),
    ("gain of kept", "gain", "+.3f"),
    ("kept, on another state", "gain_swapped", "+.3f"),
    ("distinct", "distinct", ".1%"),
    ("right without", "likeliest_without", ".1%"),
    ("right with", "likeliest", ".1%"),
)
"""Columns of the table, with their figures and formats."""


TRAITS = Traits(writes_data=True, makes_arm=True, output="out_dir", reports=True)


class GenCommentsConfig(Config):
    """Settings of gen-comments."""

    env: EnvConfig
    policy: ModelRef = option(help="Checkpoint of the policy that judges the comments.")
    reflector: ModelRef = option(
        help="Checkpoint of the model that writes them: a reflector, the policy itself, or a base model; one in which"
        " both players learned stands for its reflector."
    )
    task_file: Path | None = option(None, help="Records to learn from; default: train.json in the env's data folder.")
    validate_file: Path | None = option(
        None, help="Records whose states measure the model's own comments; default: validate.json there, if it exists."
    )
    out_dir: Path | None = option(None, help="Folder for the rows; default: own-comments in the env's data folder.")
    demonstrations: int = option(
        0, help="Use the demonstrations of only this many problems, drawn by --seed; 0: all.", ge=0
    )
    states: int = option(0, help="Comment on only this many of their states, drawn by --seed; 0: all.", ge=0)
    validate_states: int = option(200, help="Measure on this many states of --validate-file; 0: none.", ge=0)
    samples: int = option(8, help="Comments to sample on each state.", ge=1)
    temperature: float = option(1.0, help="Sampling temperature of the comments.", gt=0)
    max_new_tokens: int = option(100, help="Maximum length of a comment in tokens.", ge=1)
    baseline: Literal["none", "empty", "others"] = option(
        "none",
        help="What a comment's gain is measured from: no comment (none), an empty one, or the mean over comments on"
        " other states (others), which takes no reward for texts that help anywhere.",
    )
    margin: float = option(0.1, help="The least gain in nats for a comment to be kept.")
    most: int = option(1, help="Comments to keep for each state at most; the best ones are taken.", ge=1)
    rehearse: Path | None = option(
        None,
        help="Rows that are put behind those kept, such as the few with the teacher's comments, so that the next"
        " reflector forgets nothing of them.",
    )
    answer: Answer = option("label", help="What the policy was trained to answer where it chooses: label or text.")
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.most > self.samples:
            raise ConfigError(f"--most {self.most}: there are {self.samples} comments on a state; raise --samples")
        refuse_without_model(self.policy, self.reflector)
        if self.baseline == "others" and 1 in (self.states, self.validate_states):
            raise ConfigError("--baseline others compares the comments on several states; give more than 1")
        return self


CONFIG = GenCommentsConfig


@memory_explained("use smaller models")
def run(config: GenCommentsConfig, progress: Progress) -> Report:
    """Write sft_reflection.jsonl, and what each comment gained into the run's folder.

    Judged states are kept and are not sampled again by a restarted run, nor by one that only selects otherwise. Raises
    CheckpointError, ConfigError, DataError.
    """
    source = config.task_file or config.setup.folder / "train.json"
    held_out = config.validate_file or config.setup.folder / "validate.json"
    measured = config.validate_states > 0 and (config.validate_file is not None or held_out.is_file())
    target = config.out_dir or config.setup.folder / "own-comments"
    path = target / FILE_OF_ROLE["reflection"]
    write_permission(target)
    rehearsed = _rehearsed(config.rehearse, path)
    writer = config.reflector.resolve(config.run.data_dir, progress, reflects=True)
    places = [config.policy.resolve(config.run.data_dir, progress), writer]
    records = drawn_records(config.setup, config.run.seed, source, config.demonstrations)
    others = drawn_records(config.setup, config.run.seed, held_out, 0) if measured else []
    files = config.setup.input_files(record.task for record in (*records, *others))
    inputs = [source, *([held_out] if measured else []), *model_folders(places), *files]
    earlier = _earlier(config, inputs)
    with open_run("gen-comments", config, [*inputs, *([config.rehearse] if config.rehearse else [])]) as current:
        if current.done:
            return current.done
        if any(map(len, earlier.values())):
            progress.news(
                "Comments of an earlier run with another --margin, --most or --rehearse are selected from again."
            )
        states = _states(config, source, records, config.states, progress)
        tests = _states(config, held_out, others, config.validate_states, progress) if measured else []
        judge = _Judge(config, *places)
        figures: dict[str, Any] = {}
        if tests:
            judged = judge.all(tests, current.folder / VALIDATION, earlier, "The model's own comments", progress, 0)
            figures["validation"] = round_figures(judged)
        judged = judge.all(states, current.folder / JUDGED, earlier, "Sampling comments", progress, config.samples)
        figures |= round_figures(judged)
        rows = [
            reflection_row(replace(states[one.state], reflection=one.comments[index]))
            for one in judged
            for index in one.kept
        ]
        if not rows:
            raise ConfigError(
                f"none of the comments on {pluralize(len(states), 'state')} gains --margin {config.margin:g} nats;"
                " lower it, raise --samples, or let another model write them"
            )
        figures["rows"] = write_jsonl(path, [*rows, *rehearsed])
        parts = {"sampled, on training states": figures, "greedy, on validation states": figures.get("validation")}
        cells = tuple((name, *_cells(one)) for name, one in parts.items() if one)
        made = f"{pluralize(len(rows), 'row')} in {path}"
        if rehearsed:
            figures["rehearsed"] = len(rehearsed)
            made = f"{made}, and {len(rehearsed)} of {config.rehearse}"
        title = f"Comments and the policy's log-probability of the demonstrated action, in nats; {made}"
        current.tables.append(Table(title, ("comments", *(column for column, _, _ in COLUMNS)), cells))
        return current.finish(figures, [path])


def _rehearsed(source: Path | None, target: Path) -> list[Mapping[str, Any]]:
    """The rows of `source`, if one is given. Raises DataError if they are not rows of gen-sft, ConfigError if `target`
    is the same file.
    """
    if source is None:
        return []
    if target.exists() and source.exists() and target.samefile(source):
        raise ConfigError(f"--rehearse {source} is the file that would be written; give another --out-dir")
    read_rows(source)
    return [row for _, row in read_jsonl(source)]


def _cells(figures: dict[str, Any]) -> tuple[str, ...]:
    shown = (format(figures[name], form) if figures[name] is not None else "" for _, name, form in COLUMNS)
    return tuple(text.replace("%", " %") for text in shown)


def _states(
    config: GenCommentsConfig, source: Path, records: Sequence[Any], count: int, progress: Progress
) -> list[Lesson]:
    """The distinct states of the demonstrations in which the action is right, `count` of them (0: all), in order.

    Raises DataError if there are none, ConfigError if an action is not one of enumerated choices.
    """
    steps, faults = replayed_lessons(config.setup, source, records, progress, answer=config.answer)
    for fault, number in faults.items():
        progress.news(f"{pluralize(number, 'demonstration')}: {fault}")
    right = list({step.observation.text: step for step in steps if step.note != "mistake"}.values())
    if not right:
        raise DataError(source, "no record has a demonstration; generate some with `reflectkit gen-trajectory`")
    if not all(step.observation.choices for step in right):
        raise ConfigError(
            f"gen-comments compares probabilities of enumerated choices, which env '{config.env.name}' does not have;"
            " use taxi, auto_explore or another env with choices"
        )
    drawn = sorted(generator(config.run.seed, "states").sample(range(len(right)), min(count or len(right), len(right))))
    return [right[place] for place in drawn]


def groups(count: int) -> list[tuple[int, int]]:
    """(first, end) of each group of `count` states; none but the only one is of a single state, which has no others to
    be compared with.

    >>> groups(130), groups(129)
    ([(0, 64), (64, 128), (128, 130)], [(0, 64), (64, 129)])
    """
    starts = list(range(0, count, AT_ONCE))
    if len(starts) > 1 and count - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], count], strict=True))


class _Judge:
    """The two models: one writes comments, the other says how much they help it."""

    def __init__(self, config: GenCommentsConfig, policy: ModelRef, writer: ModelRef) -> None:
        from reflectkit.models.load import load_player
        from reflectkit.sampling.hf import LocalSampler

        self.config = config
        self.policy = LocalSampler(load_player(policy.text, "policy"))
        self.writer = LocalSampler(load_player(writer.text), frozen=True)  # a policy may comment, too

    def all(
        self,
        lessons: Sequence[Lesson],
        path: Path,
        earlier: Mapping[str, Sequence[Judged]],
        title: str,
        progress: Progress,
        samples: int,
    ) -> list[Judged]:
        """Each state with its comments; 0 samples: one greedy comment, which is kept. Those in `path` are not judged
        again; the others are added to it. earlier: by file name, the first states as another selection left them.
        """
        judged, scored = _intact(path), earlier[path.name]
        spans = groups(len(lessons))
        judged = judged[: max((end for _, end in spans if end <= len(judged)), default=0)]  # of whole groups
        path.parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, map(judged_to_json, judged))
        with path.open("a", encoding="utf-8") as file, progress.bar(title, len(lessons), len(judged)) as bar:
            for start, end in spans:
                if end <= len(judged):
                    continue
                self._forget()
                group, again = lessons[start:end], scored[start:end]
                complete = len(again) == len(group)
                part = self._selected(group, again, samples) if complete else self._some(start, group, samples)
                file.writelines(dumps(judged_to_json(one)) + "\n" for one in part)
                file.flush()
                judged += part
                bar.advance(len(part))
        return judged

    def _forget(self) -> None:
        """Forget what was read, which has a part in the rounding, so that a resumed run gives the same bytes."""
        for sampler in (self.policy, self.writer):
            run_sync(sampler.publish(None, sampler.version))
            sampler.prefixes.clear()

    def _some(self, first: int, lessons: Sequence[Lesson], samples: int) -> list[Judged]:
        """The states from number `first` on."""
        comments = self._comments(first, lessons, samples)
        bases = self._bases(comments)
        texts = [[*base, *own] for base, own in zip(bases, comments, strict=True)]
        asked = [(lesson, text) for lesson, some in zip(lessons, texts, strict=True) for text in some]
        answers = iter(self._judged(asked))
        judged = []
        for number, (base, own) in enumerate(zip(bases, comments, strict=True), start=first):
            before, after = ([next(answers) for _ in some] for some in (base, own))
            without = fmean(logprob for logprob, _ in before)
            logprobs = tuple(logprob for logprob, _ in after)
            likeliest = (before[0][1], *(right for _, right in after))
            judged.append(Judged(number, without, tuple(own), logprobs, likeliest, ()))
        return self._selected(lessons, judged, samples)

    def _selected(self, lessons: Sequence[Lesson], judged: Sequence[Judged], samples: int) -> list[Judged]:
        """The states with the comments to keep, and what these gain elsewhere."""
        config = self.config
        judged = [
            replace(
                one,
                kept=chosen(one.without, one.logprobs, config.margin, config.most)
                if samples
                else tuple(range(len(one.comments))),
                swapped=None,
            )
            for one in judged
        ]
        swapped = elsewhere([one.comments[one.kept[0]] if one.kept else None for one in judged])
        places = [place for place, text in enumerate(swapped) if text is not None]
        for place, (logprob, _) in zip(
            places, self._judged([(lessons[place], swapped[place]) for place in places]), strict=True
        ):
            judged[place] = replace(judged[place], swapped=logprob)
        return judged

    def _bases(self, comments: Sequence[Sequence[str]]) -> list[list[str | None]]:
        """What each state's comments are compared with, one or more; None is no comment."""
        if self.config.baseline != "others":
            return [[None if self.config.baseline == "none" else ""] for _ in comments]
        firsts = [own[0] if own else None for own in comments]
        bases: list[list[str | None]] = []
        for place in range(len(firsts)):
            following = [text for text in (*firsts[place + 1 :], *firsts[:place]) if text is not None]
            bases.append([*following[:OTHERS]] or [None])
        return bases

    def _comments(self, first: int, lessons: Sequence[Lesson], samples: int) -> list[list[str]]:
        """The distinct comments on each state, without empty ones; 0 samples: the greedy one, also if it is empty."""
        from reflectkit.agents.two_player import Reflector

        config = self.config
        heat = config.temperature if samples else 0.0
        reflector = Reflector(self.writer, temperature=heat, max_new_tokens=config.max_new_tokens)
        tries = samples or 1
        seen = [lesson.observation for lesson in lessons for _ in range(tries)]
        seeds = [
            derive(config.run.seed, "comment", first + place, one)
            for place in range(len(lessons))
            for one in range(tries)
        ]
        texts = list(map(one_line, run_sync(reflector.comments(seen, seeds))))
        each = [texts[start : start + tries] for start in range(0, len(texts), tries)]
        return [list(dict.fromkeys(text for text in some if text or not samples)) for some in each]

    def _judged(self, asked: Sequence[tuple[Lesson, str | None]]) -> list[tuple[float, bool]]:
        """For each state and comment, the log-probability of the demonstrated action, and whether it is the likeliest.
        Raises CheckpointError if a prompt is too long.
        """
        import asyncio

        from reflectkit.errors import CheckpointError
        from reflectkit.models.labels import choice_ids, prompt_ids
        from reflectkit.sampling.base import SampleRequest

        tokenizer, form = self.policy.tokenizer, self.config.answer

        async def answers() -> list[Any]:
            asks = []
            for lesson, comment in asked:
                prompt = prompt_ids(tokenizer, policy_prompt(lesson.observation, comment, form))
                asks.append(SampleRequest(tuple(prompt), choice_ids(tokenizer, lesson.observation.choices, form)))
            return list(await asyncio.gather(*map(self.policy.sample, asks)))

        judged = []
        for (lesson, _), sampled in zip(asked, run_sync(answers()), strict=True):
            if sampled.too_long:
                raise CheckpointError(sampled.too_long)
            logprob = sampled.label_logprobs[lesson.choice]
            judged.append((logprob, logprob == max(sampled.label_logprobs)))
        return judged


def _earlier(config: GenCommentsConfig, inputs: Sequence[Path]) -> dict[str, list[Judged]]:
    """By file name, the states that another run judged with the same settings, but for the selection."""
    settings, digests = identifying(config), {str(path): digest(path) for path in inputs}
    runs = []
    for folder in runs_of(config.run.results_dir, "gen-comments"):
        record = read_record(folder)
        recorded = record.get("settings", {})
        selected = {name: settings[name] for name in SELECTING}
        if recorded != settings == recorded | selected and digests.items() <= record["inputs"].items():
            runs.append(folder)
    return {name: max((_intact(run / name) for run in runs), key=len, default=[]) for name in (JUDGED, VALIDATION)}


def _intact(path: Path) -> list[Judged]:
    """The states in `path` up to the first damaged line."""
    rows = [row for row in salvaged(path, FIELDS) if row is not None]
    judged = [judged_from_json(row) for row in rows]
    intact = next((place for place, one in enumerate(judged) if one is None or one.state != place), len(judged))
    return [one for one in judged[:intact] if one is not None]


if __name__ == "__main__":
    sys.exit(main(["research.gen_comments", *sys.argv[1:]]))
