"""The arms of one seed of a world, step by step. Each step is a reflectkit command with a name: a finished one is
skipped, and a killed one resumes.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import reflectkit
from reflectkit.agents.two_player import TeacherComments
from reflectkit.cli.main import main
from reflectkit.data.problems import read_records
from reflectkit.data.sft_rows import FILE_OF_ROLE, TYPED
from reflectkit.env import Context
from reflectkit.envs import env_class
from reflectkit.envs.setup import EnvSetup
from reflectkit.jsonl import dumps, read_json, read_jsonl, write_json, write_jsonl, write_text
from reflectkit.prompts import REFLECTION_MARKER
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.runs.run import digest
from reflectkit.seeding import derive
from reflectkit.types import Decision, Observation
from research.claim.verdict import Gate
from research.claim.worlds import World, dtype, processor

Episodes = dict[str, tuple[int, float, int]]
"""Success, return and number of steps by problem."""
Records = Mapping[int, Mapping[str, Any]]
"""What is kept of each seed and arm."""
SWAPPED = "comments.jsonl"
"""The reflector's own comments on the states of the demonstrations, for play with comments on other states."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train.

    policy: the run of SFT that it starts from. reads: whether it reads the reflector's comments. typed: whether this
    reflector answers questions. elsewhere: whether its comments are on other states. rl: flags of RL that differ from
    those of the other arms.
    """

    policy: str
    reads: bool = False
    typed: bool = False
    elsewhere: bool = False
    rl: str = ""

    @property
    def is_taught(self) -> bool:
        """Whether it can read its teacher's comments first, which are prose."""
        return self.reads and not self.typed


ARMS: Mapping[str, Arm] = {
    "plain": Arm("sft-plain"),
    "pair": Arm("sft-policy", reads=True),
    "think": Arm("sft-think", rl="--temperature 1 --entropy-coef 0 --target-kl 0.001"),
    "others": Arm("sft-policy", reads=True, elsewhere=True),
    "longer": Arm("sft-plain"),
    "typed": Arm("sft-policy-typed", reads=True, typed=True),
}
"""All arms. `longer` is `plain`, continued."""
TAUGHT = "taught"
"""The RL in which the pair's policy reads its teacher's comments."""
UNDECIDING = (
    "title", "obey", "prepare", "on_cpu", "seeds", "most_seeds", "fewest_seeds", "gate_seeds", "pilot_seeds",
    "pilot_updates", "tries", "rates", "arms", "primary", "secondary",
)  # fmt: skip
"""Settings of a world that do not decide what an arm gives."""
UNTRAINED, SFT = "untrained", "sft"
"""The records of the players that nobody trained, with the gate, and of those that have SFT alone."""


class Obedient:
    """Acts on the teacher's comments exactly, and on nothing else."""

    def __init__(self, world: World) -> None:
        self.world, self.teacher = world, TeacherComments()

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """What the comment asks for."""
        comment = await self.teacher.remark(observation, context)
        return Decision(self.world.obey(observation, comment), comment)


class Seed:
    """The steps of one seed. results, data: the folder of all runs, and of all data. records: where what an arm gave is
    kept.
    """

    def __init__(self, name: str, world: World, seed: int, results: Path, data: Path, records: Path) -> None:
        self.world, self.seed = world, seed
        self.folder, self.data = results / f"{name}-{seed}", data / f"{name}-{seed}"
        self.records = records / name / str(seed)
        settings = env_class(world.env).Settings(**world.settings)
        self.setup = EnvSetup(world.env, self.data, settings, horizon=world.horizon)
        self.rows = self.setup.folder

    # ------------------------------------------------------------------------------------------------------- commands

    def run(self, name: str, command: str, *flags: object, updates: int = 0) -> Path:
        """The folder of one command, which runs unless it is finished, and has made so many updates. Its processor time
        is kept beside its results, without that of starts that were killed.
        """
        folder = self.folder / name
        report, cost = folder / "report.json", folder / "cost.json"
        if report.is_file() and (not updates or read_json(report)["figures"]["steps"] >= updates):
            return folder
        print(f"{time.strftime('%H:%M:%S')}  {self.folder.name}: {name}", flush=True)
        earlier = read_json(cost)["processor_seconds"] if cost.is_file() else 0.0
        before = time.process_time()
        shared = ["--seed", self.seed, "--data-dir", self.data, "--results-dir", self.folder, "--name", name]
        words = [*command.split(), "--env", self.world.env, *flags, *shared]
        if code := main([str(word) for word in words]):
            sys.exit(code)
        write_json(cost, {"processor_seconds": round(earlier + time.process_time() - before, 1)})
        return folder

    def play(self, name: str, command: str, *flags: object, updates: int = 0) -> Path:
        """A command that plays episodes."""
        horizon = ["--horizon", self.world.horizon] if self.world.horizon else []
        return self.run(name, command, *self.world.env_flags, *horizon, *flags, updates=updates)

    def evaluate(self, name: str, players: Mapping[str, str], *flags: object) -> Path:
        """Play the held-out problems greedily. players: what each is, by name."""
        policies = [word for player, what in players.items() for word in ("--policy", f"{player}={what}")]
        policies = [word.removesuffix("=") for word in policies]
        held_out = ["--task-file", self.rows / "test.json", "--problems", self.world.problems]
        return self.play(name, "evaluate", *held_out, *policies, *flags)

    # -------------------------------------------------------------------------------------------------- data and SFT

    def prepare(self) -> None:
        """Problems, demonstrations and rows, on the type of processor that this seed has begun on."""
        begun = self.folder / "processor.json"
        if not begun.is_file():
            write_json(begun, processor())
        if (first := read_json(begun)) != processor():
            sys.exit(f"{self.folder.name} has begun on {first}, and this is {processor()}: finish it there")
        world = self.world
        for command in world.prepare:
            self.run(command.split()[0], command)
        self.play("demonstrations", "gen-trajectory", *world.demonstrated.split())
        self.run("split", "split", *world.split.split())
        self.make_rows("rows")

    def make_rows(self, name: str, *flags: object) -> Path:
        """The folder of the rows of the demonstrations that all arms share."""
        shared = ["--demonstrations", self.world.demonstrations, *self.world.env_flags, *self.world.rows.split()]
        out = self.data / name
        self.run(name, "gen-sft", *shared, "--out-dir", out, *flags)
        return out

    def sft(self, name: str, role: str, file: Path, steps: int, *flags: object) -> Path:
        """One SFT on the rows of `file`."""
        world = self.world
        new = world.model.replace("DTYPE", dtype()).split()
        wanted = ["--role", role, "--task-file", file, "--max-steps", steps, *flags]
        return self.run(name, "sft", *wanted, *new, *world.sft.split())

    def reflector(self, typed: bool = False) -> Path:
        """The reflector, which writes, or answers questions if it is `typed`."""
        steps = self.world.reflector_steps
        if typed:
            rows = self.make_rows("rows-typed", "--questions")
            return self.sft("sft-reflector-typed", "reflection", rows / TYPED, steps, "--typed")
        return self.sft("sft-reflector", "reflection", self.data / "rows" / FILE_OF_ROLE["reflection"], steps)

    def start(self, name: str) -> Path:
        """The policy that RL starts from."""
        role, rows = name.removeprefix("sft-").removesuffix("-typed"), self.data / "rows"
        if name.endswith("-typed"):
            rows = self.own_rows(typed=True)
        elif role == "policy" and self.world.comments != "teacher":
            rows = self.make_rows("rows-both", "--comments", self.world.comments, "--reflector", self.reflector())
        return self.sft(name, role, rows / FILE_OF_ROLE[role], self.world.policy_steps)

    def reader(self) -> Path:
        """The pair's policy, before it reads its reflector in RL."""
        start = self.start("sft-policy")
        if not self.world.taught:
            return start
        run = self.rl(TAUGHT, self.world.taught, "--policy", start, "--reflector", "oracle")
        return run / f"checkpoint-{self.world.taught}"

    # ----------------------------------------------------------------------------------------------------------- gate

    def gate(self) -> Gate:
        """Whether the pair's policy follows its teacher's comments; with the players that nobody trains."""
        self.prepare()
        told = f"{self.reader()}+oracle"
        players = {"teacher's comments": told} | dict.fromkeys(self.world.baselines, "")
        rows = self.data / "rows" / FILE_OF_ROLE["reflection"]
        right = self.evaluate("evaluation-untrained", players)
        wrong = self.evaluate("evaluation-elsewhere", {"elsewhere": told}, "--swap-comments", 1, "--swap-from", rows)
        results = played(right) | played(wrong)
        self.keep(UNTRAINED, {"exact": self.obeyed(results["elsewhere"])} | results)
        return gate_of(self.record(UNTRAINED))

    def obeyed(self, problems: Collection[str]) -> Episodes:
        """The episodes of acting on the teacher's comments exactly."""
        records = read_records(self.rows / "test.json", self.setup.env_name)
        tasks = [record.task for record in records if record.task.id in problems]
        episodes = [Episode(task, derive(self.seed, "evaluate", task.id, 0)) for task in tasks]
        trajectories = rollout(episodes, self.setup.maker(self.setup.kind.levels[-1]), Obedient(self.world), width=64)
        return {each.task.id: (int(each.success), each.total_return, len(each.turns)) for each in trajectories}

    def play_sft(self) -> None:
        """Train and play what the arms have before RL, unless the record is there."""
        if self.kept(SFT):
            return
        self.prepare()
        players = {}
        for name in self.world.arms:
            arm = ARMS[name]
            if name != "longer" and not arm.elsewhere:
                reads = f"+{self.reflector(arm.typed)}" if arm.reads else ""
                players[f"{name}, SFT"] = f"{self.start(arm.policy)}{reads}"
        self.keep(SFT, played(self.evaluate("evaluation-sft", players)))

    # ----------------------------------------------------------------------------------------------------------- arms

    def train(self, name: str) -> None:
        """Train and play one arm, unless its record is there."""
        if self.kept(name):
            return
        begun = [arm for arm in self.world.arms if (self.records / f"{arm}.json").is_file()]
        if codes := {self.record(arm)["code"] for arm in begun} - {code_digest()}:
            sys.exit(
                f"seed {self.seed} has arms of code {', '.join(codes)}, and this is {code_digest()}; finish it there"
            )
        self.prepare()
        arm = ARMS[name]

        # 1. The models that RL starts from
        start = self.reader() if arm.is_taught else self.start(arm.policy)
        models, flags = ["--policy", start], list[object]()
        if arm.reads:
            models += ["--reflector", self.reflector(arm.typed)]
        if arm.elsewhere:
            flags = self.comments_elsewhere()

        # 2. RL
        updates = self.world.updates + (0 if arm.is_taught else self.world.taught)
        if name == "longer":
            updates = self.updates_for_tokens(updates)
        run = self.rl("plain" if name == "longer" else name, updates, *models, *flags, special=arm.rl)

        # 3. Play the held-out problems
        reads = f"+{self.reflector(arm.typed)}" if arm.reads else ""
        trained = f"{run / f'checkpoint-{updates}'}{reads}"
        players = {name: trained}
        if arm.is_taught and self.world.taught:
            players[f"{name}, taught"] = f"{start}{reads}"
        results = played(self.evaluate(f"evaluation-{name}", players, *flags))
        if arm.typed:
            wrong = self.comments_elsewhere(typed=True)
            elsewhere = {f"{name}, on other states": trained}
            results |= played(self.evaluate(f"evaluation-{name}-elsewhere", elsewhere, *wrong))
        self.keep(name, results, self.facts(name, run, updates))

    def rl(self, name: str, updates: int, *flags: object, special: str = "") -> Path:
        """The RL of one arm, up to so many updates. As the learning rate is constant, a run can be continued, and its
        first updates are those of a shorter one. special: flags that replace the world's.
        """
        world = self.world
        wanted = ["--max-steps", updates, "--episodes", world.episodes, "--validate-steps", world.validate_steps]
        wanted += ["--validate-problems", 1000, "--schedule", "constant", "--save-steps", world.validate_steps]
        wanted += ["--learning-rate", world.rate, *special.split()]
        return self.play(f"rl-{name}", "rlft", *flags, *world.rl.split(), *wanted, updates=updates)

    def own_rows(self, typed: bool = False) -> Path:
        """The folder of the rows of the demonstrations with a reflector's comments."""
        name = "rows-own-typed" if typed else "rows-own"
        return self.make_rows(name, "--comments", "reflector", "--reflector", self.reflector(typed))

    def comments_elsewhere(self, typed: bool = False) -> list[object]:
        """The flags of play with a reflector's comments on other states: those that it makes on the states of the
        demonstrations, each with its prompt.
        """
        rows = self.own_rows(typed)
        path = rows / SWAPPED
        if not path.is_file():
            write_jsonl(path, [_comment_of(row["prompt"]) for _, row in read_jsonl(rows / FILE_OF_ROLE["policy"])])
        return ["--swap-comments", 1, "--swap-from", path]

    def updates_for_tokens(self, updates: int) -> int:
        """How many updates of `plain` take as many tokens as the pair's whole training, at the tokens that its first
        `updates` took.
        """
        plain, pair = (self.record(name)["tokens"] for name in ("plain", "pair"))
        left = sum(pair.values()) - plain["sft-plain"]
        needed: int = round(updates * left / plain["rl-plain"])
        return max(updates, needed)

    # -------------------------------------------------------------------------------------------------------- records

    def facts(self, name: str, run: Path, updates: int) -> dict[str, Any]:
        """What an arm took and how it rose."""
        arm, world = ARMS[name], self.world
        runs = [self.folder / arm.policy, run]
        if arm.reads:
            runs.append(self.reflector(arm.typed))
        taught = world.taught if arm.is_taught else 0
        if taught:
            runs.append(self.folder / f"rl-{TAUGHT}")
        metrics = [row for _, row in read_jsonl(run / "metrics.jsonl") if row["step"] <= updates]
        earlier = taught * world.episodes
        before = read_json(run / "held_out.json")["before"]
        curve = [(earlier, fmean(float(row["success"]) for row in before))]
        for row in metrics:
            if "validation_success_rate" in row:
                curve.append((earlier + row["episodes"], row["validation_success_rate"]))
        return {
            "demonstrations": self.demonstrated_problems(),
            "sft_updates": world.policy_steps,
            "updates": taught + len(metrics),
            "episodes": earlier + metrics[-1]["episodes"],
            "tokens": {each.name: _tokens(each, updates if each == run else None) for each in runs},
            "processor_seconds": {each.name: read_json(each / "cost.json")["processor_seconds"] for each in runs},
            "curve": curve,
        }

    def demonstrated_problems(self) -> int:
        """Number of problems whose demonstrations the rows show."""
        count = sum(bool(record.trajectories) for record in read_records(self.rows / "train.json", self.setup.env_name))
        return min(count, self.world.demonstrations or count)

    def keep(self, name: str, results: Mapping[str, Episodes], facts: Mapping[str, Any] | None = None) -> None:
        """Write the record of an arm."""
        record = {
            "arm": name,
            "seed": self.seed,
            "code": code_digest(),
            "settings": self.settings_digest(),
            "seeds_needed": self.world.seeds,
            "processor": read_json(self.folder / "processor.json"),
            **(facts or {}),
            "success": {player: fmean(outcomes_of(episodes).values()) for player, episodes in results.items()},
            "played": results,
        }
        write_text(self.records / f"{name}.json", f"{dumps(record)}\n")

    def kept(self, name: str) -> bool:
        """Whether the record of an arm is there. Ends the program if it is one of other settings, and warns of one of
        other code.
        """
        path = self.records / f"{name}.json"
        if not path.is_file():
            return False
        record = self.record(name)
        if record["settings"] != self.settings_digest():
            sys.exit(f"{path} was made with other settings; move it away")
        if record["code"] != code_digest():
            print(f"warning: {path} was made by code {record['code']}, and this is {code_digest()}", flush=True)
        return True

    def record(self, name: str) -> dict[str, Any]:
        """The record of an arm."""
        record: dict[str, Any] = read_json(self.records / f"{name}.json")
        return record

    def settings_digest(self) -> str:
        """A digest of the world's settings that decide what an arm gives."""
        facts = {name: value for name, value in asdict(self.world).items() if name not in UNDECIDING}
        return _short(json.dumps(facts, sort_keys=True))


def gate_of(record: Mapping[str, Any]) -> Gate:
    """The gate of a seed, from the record of its players that nobody trained."""
    success = record["success"]
    return Gate(success["exact"], success["teacher's comments"], success["elsewhere"])


def played(evaluation: Path) -> dict[str, Episodes]:
    """The episodes of each player of an evaluation."""
    results: dict[str, Episodes] = {}
    for _, line in read_jsonl(evaluation / "episodes.jsonl"):
        episode = (int(line["success"]), line["return"], len(line["turns"]))
        results.setdefault(line["name"], {})[line["task"]] = episode
    return results


def end_of(arm: str, records: Records) -> list[dict[str, float]]:
    """The success of an arm after RL, by problem, of each seed."""
    return [outcomes_of(arms[arm]["played"][arm]) for arms in records.values()]


def outcomes_of(episodes: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The success of each problem."""
    return {task: float(episode[0]) for task, episode in episodes.items()}


def unequal(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What differs between arms that must have had the same."""
    same = ("demonstrations", "sft_updates", "updates", "episodes", "processor", "code", "settings")
    return [name for name in same if len({json.dumps(record[name]) for record in records}) > 1]


@cache
def code_digest() -> str:
    """A digest of the code of the toolkit and of this experiment."""
    folders = (Path(reflectkit.__file__).parent, Path(__file__).parent)
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return _short("\n".join(digest(path) for path in files))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _comment_of(prompt: str) -> dict[str, str]:
    """The comment in a policy's prompt, as a row of a reflector: its prompt, and the comment."""
    head, _, rest = prompt.rpartition(f"\n{REFLECTION_MARKER}")
    return {"prompt": f"{head}\n{REFLECTION_MARKER}", "completion": rest.partition("\n")[0]}


def _tokens(run: Path, updates: int | None) -> int:
    """The tokens of a run of SFT, or of the first updates of one of RL, as the commands count them; None: of all."""
    rows = [row for _, row in read_jsonl(run / "metrics.jsonl")]
    in_rows = [row["num_tokens"] for row in rows if "num_tokens" in row]
    return int(in_rows[-1]) if in_rows else sum(row["tokens"] for row in rows[:updates])
