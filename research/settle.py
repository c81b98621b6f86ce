"""settle: the experiments of `research/experiments/does-reflection-help.md`, step by step.

Each step is a reflectkit command with a name; a finished one is skipped, so the same command resumes a killed run. Run
from the repository's root:

    python -m research.settle B --only memory --seeds 1 2
    python -m research.settle B --only memory --seeds 1 2 --table
    python -m research.settle A --seeds 9 --search
    python -m research.settle A --seeds 10
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reflectkit.cli.main import main
from reflectkit.console import Quiet
from reflectkit.data.sft_rows import FILE_OF_ROLE
from reflectkit.envs import PROBLEMS, env_class
from reflectkit.envs.setup import EnvSetup
from reflectkit.errors import DataError
from reflectkit.files import included_repositories
from reflectkit.jsonl import read_json, read_jsonl, write_json, write_jsonl
from reflectkit.models.refs import ModelRef
from reflectkit.prompts import REFLECTION_MARKER
from research.dagger import visited_rows, write_rows
from research.explore_players import oracle_losses
from research.explore_players import play as play_verified

RESULTS, DATA, PACKS = Path("results/settle"), Path("data/settle"), Path("research/experiments/episodes")
GROUPS = (("sft", "distilled", "dagger"), ("grpo", "grpo-distilled"), ("grpo-kl",))
"""The arms of experiment B in the order in which they run; each group is evaluated when it is trained."""
ARMS = tuple(arm for group in GROUPS for arm in group)
NAMES = {
    "start": "start",
    "sft": "SFT",
    "distilled": "SFT + distillation",
    "dagger": "SFT + DAgger",
    "grpo": "GRPO",
    "grpo-distilled": "GRPO + distillation",
    "grpo-kl": "GRPO + KL",
}
COMPARED = {
    "sft": (
        "SFT + distillation - SFT",
        "SFT + DAgger - SFT",
        "SFT + distillation - SFT + DAgger",
        "start with comments - start",
        "SFT + distillation with comments - SFT + distillation",
    ),
    "grpo": ("GRPO + distillation - GRPO", "GRPO - start", "GRPO + distillation - start"),
    "grpo-kl": ("GRPO + distillation - GRPO + KL", "GRPO + KL - start"),
}
"""What is compared when a group is evaluated, by the group's first arm."""


@dataclass(frozen=True)
class World:
    """Settings of experiment B in one env.

    level: of training and test. kept: levels of the problems. tasks: flags of gen-task. sft: flags of each SFT. start:
    flags of the first one. steps: of an arm's SFT. rl: flags of each rlft. updates: with a teacher; GRPO alone makes a
    third more, as no teacher reads. visited: episodes of DAgger. measure: compared, if not success.
    """

    env: str
    title: str
    level: str
    kept: tuple[str, ...]
    tasks: str
    start: str
    sft: str
    steps: int
    rl: str
    updates: int
    visited: int
    measure: str


WORLDS = {
    "memory": World(
        env="research.observed:ObservedMemory",
        title="Memory",
        level="short",
        kept=("short",),
        tasks="--instances 600 --long-instances 0",
        start="--model tiny-hybrid --vocabulary 1200 --copy-steps 400 --max-steps 500 --learning-rate 1.5e-3",
        sft="--max-length 640 --batch-size 3 --share-prefixes",
        steps=60,
        rl="--episodes 16 --minibatch 16 --max-new-tokens 64",
        updates=5,
        visited=40,
        measure="accuracy",
    ),
    "desk": World(
        env="research.observed:ObservedSupport",
        title="Service desk",
        level="all",
        kept=("one", "refuse"),
        tasks="--instances 600 --customers 3000",
        start="--model tiny-hybrid --vocabulary 1600 --copy-steps 1200 --max-steps 1200 --learning-rate 2e-3",
        sft="--max-length 2560 --batch-size 8 --share-prefixes",
        steps=30,
        rl="--episodes 16 --minibatch 8 --max-new-tokens 48",
        updates=10,
        visited=32,
        measure="",
    ),
}


SEEN = "research.observed:ObservedAutoExplore"
"""The env of experiment A."""
HORIZON = 10
"""Its steps."""
PROMPTS = {"result_tokens": 80, "prompt_tokens": 340}
"""Settings of its prompts."""
ASKS = [part for name, tokens in PROMPTS.items() for part in (f"--{name.replace('_', '-')}", tokens)]
"""Their flags."""
ADAPTED = "--max-length 640 --batch-size 8 --dtype bfloat16 --group-by-length --save-steps 50"
NEW_ADAPTER = "--model smollm2-135m --lora-r 16 --lora-targets all-linear"
"""Flags of each SFT of experiment A, and of one that starts from the pretrained model."""
DISTILLED = "--algo none --reflector oracle --distill-comments 1 --learning-rate 5e-4 --entropy-coef 0"
"""Flags of the updates of its last arm."""
PLAYERS = ("plain", "distilled", "think", "two")
"""The arms of experiment A in the order in which they run."""
RATES = (3e-4, 1e-3, 2e-3)
"""Learning rates of their SFT that are searched, on a seed of its own."""
SEARCHED = 9
"""That seed."""
COMPARED_A: tuple[str, ...] = (
    "two players - think first",
    "two players - plain",
    "distilled - plain",
    "distilled - start of distilled",
    "think first - plain",
    "plain - keyword",
    "think first - keyword",
    "two players - keyword",
    "plain - random",
    "two players - trained and tested on comments on other states",
    "two players - two players with comments on other states",
    "verifier - plain",
    "two players - two players with empty comments",
    "two players with the teacher's comments - two players",
)
"""What experiment A compares; the first two are primary."""
MEASURED = (
    "start", *ARMS, *(f"evaluation-{group[0]}" for group in GROUPS),
    "plain", "think", "reflector", "both", "policy", "others", "content",
    *(f"evaluation-{arm}" for arm in PLAYERS), "swapped", "verified",
)  # fmt: skip
"""The commands whose costs are told."""


def say(text: str) -> None:
    """A line of the log, with the processor time of this process."""
    print(f"{time.strftime('%H:%M:%S')} {time.process_time():6.0f} s  {text}", flush=True)


class Commands:
    """The commands of one seed of an env, by name. folder: their results. data: their data. rows: the env's own. fast:
    a few steps of everything.
    """

    def __init__(self, name: str, env: str, seed: int, fast: bool, **settings: object) -> None:
        self.env, self.seed, self.fast = env, seed, fast
        self.folder, self.data = (path / f"{name}-{seed}{'-fast' if fast else ''}" for path in (RESULTS, DATA))
        self.setup = EnvSetup(env, self.data, env_class(env).Settings(**settings))
        self.rows = self.setup.folder

    def run(self, name: str, command: str, *flags: object) -> None:
        """One command, unless it is finished, with its processor time beside its results."""
        if (self.folder / name / "report.json").is_file():
            return
        say(f"{self.folder.name}: {name}")
        before = time.process_time()
        shared = ["--seed", self.seed, "--data-dir", self.data, "--results-dir", self.folder, "--name", name]
        if code := main([str(part) for part in (command, "--env", self.env, *flags, *shared)]):
            sys.exit(code)
        seconds = {"processor_seconds": round(time.process_time() - before, 1)}
        write_json(self.folder / name / "cost.json", seconds)

    def made(self, name: str, make: Callable[[], Sequence[object]]) -> Path:
        """A file of the demonstrations' rows without comments, and of others that `make` returns, if it is not there
        yet.
        """
        path = self.rows / f"sft_{name}.jsonl"
        if not path.is_file():
            say(f"{self.folder.name}: {path.name}")
            write_rows(path, _read(self.rows / FILE_OF_ROLE["plain"]), make())
        return path

    def both(self) -> Path:
        """The file of each demonstration's rows, without comments and with them."""
        return self.made("both", lambda: _read(self.rows / FILE_OF_ROLE["policy"]))


class Observed(Commands):
    """Experiment B, one seed of one world."""

    def __init__(self, world: str, seed: int, fast: bool) -> None:
        self.world = WORLDS[world]
        super().__init__(world, self.world.env, seed, fast, brief=True)

    def play(self, name: str, command: str, *flags: object) -> None:
        """A command that makes envs."""
        self.run(name, command, "--brief", *flags)

    def prepare(self) -> None:
        """Problems, demonstrations, rows of both kinds, and the start: a policy that acts with and without comments."""
        world, rows = self.world, self.rows
        count = ["--instances", 40] if self.fast else []
        self.run("tasks", "gen-task", *world.tasks.split(), *count)
        problems = rows / PROBLEMS
        listed = read_json(problems)
        if any(task["level"] not in world.kept for task in listed):
            write_json(problems, [task for task in listed if task["level"] in world.kept])
        self.play("demonstrations", "gen-trajectory", "--level", world.level)
        self.run("split", "split")
        self.play("rows", "gen-sft")
        small = ["--copy-steps", 5, "--max-steps", 10] if self.fast else []
        start = [*world.start.split(), *world.sft.split(), *small]
        self.run("start", "sft", "--role", "policy", "--task-file", self.both(), *start)

    def train(self, arm: str) -> None:
        """One arm, from the start."""
        world, start = self.world, self.folder / "start"
        if arm in ("sft", "dagger"):
            file = self.rows / FILE_OF_ROLE["plain"] if arm == "sft" else self.made(arm, self._visited)
            steps = 10 if self.fast else world.steps
            flags = [*world.sft.split(), "--max-steps", steps, "--learning-rate", "1e-3"]
            self.run(arm, "sft", "--role", "plain", "--model", start, "--task-file", file, *flags)
            return
        flags = ["--policy", start, *world.rl.split(), "--validate-problems", 0, "--entropy-coef", 0]
        flags += ["--curriculum", world.level]
        taught = ["--reflector", "oracle", "--distill-comments"]
        if arm == "distilled":
            flags += ["--algo", "none", *taught, 1, "--learning-rate", "5e-4"]
        else:
            flags += ["--algo", "grpo", "--group-size", 4, "--learning-rate", "3e-4"]
            flags += {"grpo-distilled": [*taught, 0.5], "grpo-kl": ["--kl-coef", 0.5]}.get(arm, [])
        updates = 2 if self.fast else world.updates * (3 if "distilled" in arm else 4) // 3
        self.play(arm, "rlft", *flags, "--max-steps", updates)

    def _visited(self) -> Sequence[object]:
        (start,) = (self.folder / "start").glob("checkpoint-*")
        episodes = 8 if self.fast else self.world.visited
        return visited_rows(self.setup, self.rows / "train.json", start, episodes, self.seed)

    def evaluate(self, arms: Sequence[str]) -> None:
        """The arms of a group on held-out problems, without comments and with them; with the first, also the start."""
        played, players = list(arms), []
        if arms == GROUPS[0]:
            played, players = ["start", *arms], ["random", "oracle"]
        for arm in played:
            model = self.folder / arm
            players += [f"{NAMES[arm]}={model}"]
            players += [f"{NAMES[arm]} with comments={model}+oracle"] if arm in ("start", "distilled") else []
        flags: list[object] = [part for player in players for part in ("--policy", player)]
        flags += [part for level in self.world.kept for part in ("--level", level)]
        flags += ["--max-new-tokens", 64, *(["--problems", 8] if self.fast else [])]
        self.play(f"evaluation-{arms[0]}", "evaluate", "--task-file", self.rows / "validate.json", *flags)

    def settle(self, arms: Sequence[str]) -> None:
        """Train `arms`, and evaluate each group of which all are among them."""
        self.prepare()
        for group in GROUPS:
            for arm in (arm for arm in group if arm in arms):
                self.train(arm)
            if set(group) <= set(arms):
                self.evaluate(group)


class Explore(Commands):
    """Experiment A, one seed."""

    def __init__(self, seed: int, fast: bool) -> None:
        super().__init__("explore", SEEN, seed, fast, **PROMPTS, force_answer=True)
        self.setup = replace(self.setup, horizon=HORIZON)

    def prepare(self) -> None:
        """Questions, demonstrations and rows."""
        self.run("repos", "filter-repo", "--repo-dir", included_repositories())
        self.run("tasks", "gen-task", "--per-file", 8, "--max-level", 2, "--max-tokens", 80)
        self.run("clean", "filter-task")
        played = ["--negatives", 1, "--noise", 0.3, "--horizon", HORIZON]
        self.run("demonstrations", "gen-trajectory", *ASKS, *played)
        self.run("split", "split", "--by", "repo", "--ratio", "8:1:3")
        self.run("rows", "gen-sft", *ASKS, "--answer", "text")

    def sft(self, name: str, role: str, rate: float, steps: int, *flags: object) -> None:
        """One SFT of so many steps."""
        steps = 4 if self.fast else steps
        self.run(name, "sft", "--role", role, *ADAPTED.split(), "--learning-rate", rate, "--max-steps", steps, *flags)

    def train(self, arm: str, rate: float, mark: str = "") -> None:
        """One arm. mark: ends the names of its folders. Two players: the reflector, and a policy from its weights that
        reads comments of both kinds. Distilled: a policy that acts with and without the teacher's comments, and then is
        its own teacher.
        """
        if arm == "two":
            self.sft(f"reflector{mark}", "reflection", rate, 240, *NEW_ADAPTER.split())
            self.reader("policy", "both", rate, "--comments", "both", "--mismatch", 0.2, mark=mark)
        elif arm == "distilled":
            self.sft("start", "policy", rate, 200, *NEW_ADAPTER.split(), "--task-file", self.both())
            played = ["--episodes", 12, "--minibatch", 8, "--max-steps", 1 if self.fast else 5]
            played += ["--validate-problems", 0, "--horizon", HORIZON, "--force-answer"]
            self.run(arm, "rlft", *ASKS, "--policy", self.folder / "start", *DISTILLED.split(), *played)
        else:
            self.sft(f"{arm}{mark}", arm, rate, 300, *NEW_ADAPTER.split())

    def reader(self, name: str, rows: str, rate: float, *comments: object, mark: str = "") -> None:
        """A policy from the reflector's weights, which reads comments."""
        reflector, file = self.folder / f"reflector{mark}", self.rows / f"{rows}{mark}" / FILE_OF_ROLE["policy"]
        flags = ["--demonstrations", 4 if self.fast else 40, "--reflector", reflector, "--out-dir", file.parent]
        self.run(f"{rows}{mark}", "gen-sft", *ASKS, "--answer", "text", *comments, *flags)
        self.sft(f"{name}{mark}", "policy", rate, 60, "--model", reflector, "--task-file", file)

    def content(self, rate: float) -> None:
        """Two players, of which one reads the other's comments on other states, in training and in play; and the pair
        that learned from its own, with those.
        """
        self.reader("content", "others", rate, "--comments", "reflector", "--mismatch", 1)
        comments = self.rows / "others" / "comments.jsonl"
        if not comments.is_file():
            rows = [row for _, row in read_jsonl(comments.with_name(FILE_OF_ROLE["policy"]))]
            written = [row["prompt"].rpartition(f"\n{REFLECTION_MARKER}")[2].partition("\n")[0] for row in rows]
            write_jsonl(comments, [{"prompt": REFLECTION_MARKER, "completion": text} for text in written])
        reflector = self.folder / "reflector"
        self.evaluate(
            "swapped",
            f"two players with comments on other states={self.folder / 'policy'}+{reflector}",
            f"trained and tested on comments on other states={self.folder / 'content'}+{reflector}",
            flags=["--swap-comments", 1, "--swap-from", comments],
        )

    def evaluate(self, name: str, *players: str, flags: Sequence[object] = ()) -> None:
        """Play the held-out questions, with a forced answer."""
        played = ["--level", "all", "--horizon", HORIZON, "--problems", 8 if self.fast else 120, "--force-answer"]
        policies = [part for player in players for part in ("--policy", player)]
        self.run(name, "evaluate", *ASKS, *played, *policies, *flags)

    def compare(self, arm: str) -> None:
        """Play an arm; with two players, also with the teacher's comments and with empty ones."""
        name, trained = f"evaluation-{arm}", self.folder / arm
        if arm == "two":
            policy, reflector = self.folder / "policy", self.folder / "reflector"
            others = [f"two players with the teacher's comments={policy}+oracle"]
            others += [f"two players with empty comments={policy}+nothing"]
            self.evaluate(name, f"two players={policy}+{reflector}", *others)
        elif arm == "plain":
            self.evaluate(name, "random", "keyword", f"plain={trained}")
        elif arm == "distilled":
            self.evaluate(name, f"distilled={trained}", f"start of distilled={self.folder / 'start'}")
        else:
            self.evaluate(name, f"think first={trained}")

    def verify(self) -> None:
        """Play what the plain policy played, with the reflector as verifier."""
        folder, evaluation = self.folder / "verified", self.folder / "evaluation-plain"
        finished = [evaluation, self.folder / "reflector"]
        if (folder / "episodes.jsonl").is_file() or not all((path / "report.json").is_file() for path in finished):
            return
        say(f"{self.folder.name}: {folder.name}")
        lines = [line for _, line in read_jsonl(evaluation / "episodes.jsonl") if line["name"] == "plain"]
        policy, reflector = map(self.checkpoint, ("plain", "reflector"))
        before = time.process_time()
        rows = play_verified(self.setup, lines, policy, reflector)
        folder.mkdir(exist_ok=True)
        write_json(folder / "cost.json", {"processor_seconds": round(time.process_time() - before, 1)})
        write_json(folder / "config.json", {"stage": "evaluate", "seed": self.seed})
        write_jsonl(folder / "episodes.jsonl", rows)

    def checkpoint(self, name: str) -> Path:
        """What a run trained."""
        return ModelRef(str(self.folder / name)).checkpoint(Quiet()).path

    def loss(self, arm: str, questions: str, mark: str = "") -> None:
        """Write the loss of the oracle's action in an arm. questions: the split on which the oracle plays."""
        path = self.folder / f"loss-{arm}{mark}.json"
        if path.is_file():
            return
        say(f"{self.folder.name}: loss of {arm}{mark}")
        policy = self.checkpoint(f"{'policy' if arm == 'two' else arm}{mark}")
        reflector = self.checkpoint(f"reflector{mark}") if arm == "two" else None
        tasks = self.rows / f"{questions}.json"
        found = oracle_losses(self.setup, tasks, policy, reflector, 8 if self.fast else None)
        write_json(path, {"loss": sum(found) / len(found), "states": len(found)})

    def search(self, arms: Sequence[str], rates: Sequence[float]) -> None:
        """The validation loss of each arm at each rate. The distilled arm has plain's rate."""
        self.prepare()
        for arm, rate in itertools.product((arm for arm in ("plain", "think", "two") if arm in arms), rates):
            self.train(arm, rate, f"-{rate:g}")
            self.loss(arm, "validate", f"-{rate:g}")

    def rate(self, arm: str) -> float:
        """The searched rate with the least loss."""
        arm = "plain" if arm == "distilled" else arm
        folder = Explore(SEARCHED, self.fast).folder
        files = {rate: folder / f"loss-{arm}-{rate:g}.json" for rate in RATES}
        if not all(path.is_file() for path in files.values()):
            sys.exit(f"the learning rates of {arm}: first `python -m research.settle A --seeds {SEARCHED} --search`")
        return min(RATES, key=lambda rate: float(read_json(files[rate])["loss"]))

    def settle(self, arms: Sequence[str]) -> None:
        """Train `arms`, and play each when it is trained."""
        self.prepare()
        for arm in (arm for arm in PLAYERS if arm in arms):
            rate = self.rate(arm)
            self.train(arm, rate)
            self.compare(arm)
            if arm == "two":
                self.content(rate)
            self.loss(arm, "test")
        self.verify()


def _read(path: Path) -> list[object]:
    return [row for _, row in read_jsonl(path)]


def costs(folder: Path) -> list[str]:
    """Processor time and trained tokens of each arm and evaluation that has run, and each loss, as rows of a table."""
    lines = []
    for arm in MEASURED:
        if not (folder / arm / "cost.json").is_file():
            continue
        seconds = read_json(folder / arm / "cost.json")["processor_seconds"]
        try:
            rows = [row for _, row in read_jsonl(folder / arm / "metrics.jsonl")]
        except DataError:
            rows = []
        tokens = rows[-1].get("num_tokens") or sum(row.get("tokens", 0) for row in rows) if rows else 0
        lines.append(f"| {folder.name} | {NAMES.get(arm, arm)} | {seconds:.0f} | {tokens:,.0f} |")
    for path in sorted(folder.glob("loss-*.json")):
        record = read_json(path)
        lines.append(f"| {folder.name} | {path.stem} | {record['loss']:.3f} nats | {record['states']} states |")
    return lines


def pack(world: str, seeds: Sequence[int]) -> None:
    """Keep the episodes of the finished seeds."""
    title, last, measure, pairs = "AutoExplore, equal steps", "evaluation-two", "", COMPARED_A
    if spec := WORLDS.get(world):
        title, last, measure, pairs = f"Comments as a teacher: {spec.title}", "evaluation-sft", spec.measure, ()
    done = [RESULTS / f"{world}-{seed}" for seed in seeds]
    done = [folder for folder in done if (folder / last / "report.json").is_file()]
    for arm, compared in COMPARED.items():
        if any((folder / f"evaluation-{arm}" / "report.json").is_file() for folder in done):
            pairs = (*pairs, *compared)
    flags = ["--title", title, *(part for pair in pairs for part in ("--compare", pair))]
    flags += ["--measure", measure] if measure else []
    if done and main(["research.pack", *map(str, done), "--out", str(PACKS / f"settle-{world}"), *flags]):
        sys.exit("the pack was not written")


def run() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m research.settle", description=__doc__)
    parser.add_argument("experiment", choices=("A", "B"))
    parser.add_argument("--only", choices=WORLDS, action="append", help="worlds to run; default: all, in order")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="training seeds, in order")
    parser.add_argument("--arms", choices=(*PLAYERS, *ARMS), nargs="+", help="arms to run; default: all")
    parser.add_argument(
        "--table", action="store_true", help="run nothing; print the costs of what is finished, and pack its episodes"
    )
    parser.add_argument(
        "--search", type=float, nargs="*", help=f"only search A's learning rates, or these of {RATES}", metavar="RATE"
    )
    parser.add_argument("--fast", action="store_true", help="a few steps of everything, to try it")
    given = parser.parse_args()
    arms = given.arms or (*PLAYERS, *ARMS)
    worlds = ["explore"] if given.experiment == "A" else given.only or [*WORLDS]
    for seed, world in itertools.product(given.seeds, worlds):
        if given.table:
            print("\n".join(costs(RESULTS / f"{world}-{seed}")))
        elif world in WORLDS:
            Observed(world, seed, given.fast).settle(arms)
        elif given.search is None:
            Explore(seed, given.fast).settle(arms)
        else:
            Explore(seed, given.fast).search(arms, given.search or RATES)
    if given.table:
        for world in worlds:
            pack(world, given.seeds)


if __name__ == "__main__":
    run()
