"""Worlds of the test of the paper's claim: where it is tested, with which model, and how large."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reflectkit.envs.auto_explore.env import RIGHT_FILE, TO_FILE, TO_FOLDER
from reflectkit.envs.auto_explore.repository import UP
from reflectkit.envs.taxi import ABOARD, DROPOFF, PICKUP, TAXI_V4, View, encode
from reflectkit.files import included_repositories
from reflectkit.types import Observation

CPU_FLAGS = ("amx_bf16", "avx512_bf16")
"""What a processor needs for fast bfloat16."""
PLACE = re.compile(r"row (\d), column (\d)")


def obey_taxi(observation: Observation, comment: str) -> int:
    """Taxi's action that `comment` asks for: to let the passenger in or out, or one step of a shortest way from the
    place that it calls the taxi's to the one that it calls the target.
    """
    if re.search(r"\bin (?:here|now)\b|get in now", comment):
        return PICKUP
    if re.search(r"\bout (?:here|now)\b|get out now", comment):
        return DROPOFF
    here, target = (tuple(map(int, place)) for place in PLACE.findall(comment)[:2])
    stand = TAXI_V4.stands.index(target)
    other = (stand + 1) % len(TAXI_V4.stands)
    waits = "aiting" in comment
    row, column = here
    passenger, destination = (stand, other) if waits else (ABOARD, stand)
    view = View(row, column, passenger, destination)
    return TAXI_V4.best(encode(view))[0]


def obey_corridor(observation: Observation, comment: str) -> int:
    """Corridor's action that `comment` asks for, which is always right."""
    return observation.choices.index("right")


def obey_explore(observation: Observation, comment: str) -> int:
    """AutoExplore's command that `comment` asks for: to name, read or enter what its last sentence is about, or to go
    up. A file that was read before is named. Where nothing fits, the first command.
    """
    asked = {"id": RIGHT_FILE, "cd": TO_FOLDER, "cat": TO_FILE}
    names = {command.partition(" ")[2] for command in observation.choices}
    for verb, wordings in asked.items():
        # a name may end like another one: the longest is meant
        for name in sorted(names, key=len, reverse=True):
            if any(comment.endswith(wording.format(file=name, name=name)) for wording in wordings):
                wanted = [f"{verb} {name}", *([f"id {name}"] if verb == "cat" else [])]
                return next((observation.choices.index(each) for each in wanted if each in observation.choices), 0)
    return observation.choices.index(UP) if UP in observation.choices else 0


@dataclass(frozen=True)
class World:
    """Where the claim is tested. Flags are of reflectkit's commands."""

    env: str
    title: str
    obey: Callable[[Observation, str], int]
    """The action that a comment of the teacher asks for."""
    model: str
    """Flags of an SFT that starts anew."""
    sft: str
    """Flags of each SFT."""
    rl: str
    """Flags of each RL."""
    demonstrated: str
    """Flags of gen-trajectory."""
    demonstrations: int
    """Number of problems whose demonstrations all arms learn from; 0: all."""
    comments: str
    """Whose comments the pair's policy reads in SFT, "teacher" or "both"."""
    reflector_steps: int
    policy_steps: int
    """Updates of SFT: of the reflector, and of each policy."""
    updates: int
    episodes: int
    """Of RL, and in each of its updates."""
    validate_steps: int
    """Updates between points of the curve."""
    pilot_updates: int
    seeds: int
    """How many the comparison needs; fixed by the pilot, where there is one."""
    taught: int = 0
    """Updates of RL in which the pair's policy reads its teacher's comments, before the reflector's. The arms without
    comments have as many more. A multiple of `validate_steps`.
    """
    split: str = "--ratio 16:4:10"
    """Flags of split."""
    horizon: int = 0
    """Steps of an episode; 0: the env's own."""
    settings: Mapping[str, int] = field(default_factory=dict)
    """Of the env."""
    rows: str = ""
    """Flags of gen-sft."""
    prepare: tuple[str, ...] = ()
    """Commands before the demonstrations."""
    baselines: tuple[str, ...] = ("random", "oracle")
    tries: tuple[Mapping[str, Any], ...] = ({},)
    """Ways to train the pair's policy until it follows comments, in order: what each changes of the world."""
    most_seeds: int = 20
    """At most, for the comparison."""
    fewest_seeds: int = 1
    """At least, whatever the pilot says."""
    gate_seeds: tuple[int, ...] = (90, 91, 92)
    pilot_seeds: tuple[int, ...] = (80, 81, 82)
    rates: tuple[str, ...] = ("5e-4", "2.5e-4")
    """Learning rates of RL that the pilot tries."""
    rate: str = "2.5e-4"
    """Learning rate of RL; the pilot chooses it."""
    problems: int = 0
    """Number of held-out problems that are played; 0: all."""
    on_cpu: bool = True
    """Whether its RL is for a CPU, too."""
    arms: tuple[str, ...] = ("plain", "pair", "think", "others", "longer")
    """In the order in which they run."""
    primary: tuple[str, str] = ("pair", "plain")
    """The arms that are compared, the first minus the second."""
    secondary: tuple[tuple[str, str], ...] = (("pair", "think"), ("pair", "longer"), ("pair", "others"))
    """Other comparisons."""

    @property
    def env_flags(self) -> list[object]:
        """The flags of the env's settings."""
        flags: list[object] = []
        for name, value in self.settings.items():
            flags += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
        return flags


TAXI = World(
    env="taxi",
    title="DangerousTaxi, the whole task, models of 0.7 M parameters",
    obey=obey_taxi,
    model="--model tiny",
    sft="--max-length 256 --learning-rate 1e-3 --save-steps 500",
    rl="--algo ppo --epochs 4 --minibatch 128 --target-kl 0.02 --temperature 2 --gamma 0.95 --entropy-coef 0.02",
    demonstrated="--demonstrations 300 --noise 0.2",
    demonstrations=10,
    comments="teacher",
    reflector_steps=700,
    policy_steps=600,
    updates=30,
    episodes=64,
    validate_steps=6,
    pilot_updates=60,
    seeds=17,
    fewest_seeds=10,
    rates=("2.5e-4",),
    tries=(
        {"demonstrations": 10},
        {"demonstrations": 10, "taught": 30},
        {"demonstrations": 20},
        {"demonstrations": 20, "taught": 30},
        {"demonstrations": 40},
        {"demonstrations": 40, "taught": 30},
        {"demonstrations": 80},
        {"demonstrations": 160, "policy_steps": 2000},
    ),
)
ADAPTER = "--model smollm2-135m --lora-r 16 --lora-targets all-linear"
WORLDS = {
    "taxi": TAXI,
    "taxi-smollm2": World(
        env="taxi",
        title="DangerousTaxi, the whole task, SmolLM2-135M",
        obey=obey_taxi,
        model=f"{ADAPTER} --dtype DTYPE",
        sft="--max-length 320 --batch-size 8 --learning-rate 1e-3 --group-by-length --save-steps 20",
        rl="--algo ppo --epochs 2 --minibatch 128 --gamma 0.95 --entropy-coef 0.02",
        demonstrated="--demonstrations 300 --noise 0.2",
        demonstrations=40,
        comments="teacher",
        reflector_steps=600,
        policy_steps=600,
        updates=12,
        episodes=32,
        validate_steps=3,
        pilot_updates=12,
        pilot_seeds=(),
        gate_seeds=(90, 91),
        rates=("2.5e-4",),
        seeds=3,
        most_seeds=3,
        tries=(
            {"demonstrations": 40},
            {"demonstrations": 80},
            {"demonstrations": 160},
        ),
    ),
    # Each arm has as many updates as those of `taxi`; a typed reflector has no teacher whose comments come first
    "taxi-typed": replace(
        TAXI,
        title="DangerousTaxi, the whole task, a typed reflector",
        demonstrations=20,
        updates=42,
        seeds=10,
        gate_seeds=(),
        pilot_seeds=(),
        arms=("plain", "typed"),
        primary=("typed", "plain"),
        secondary=(),
    ),
    "explore": World(
        env="auto_explore",
        title="AutoExplore, a demonstrator that searches, SmolLM2-135M",
        obey=obey_explore,
        model=f"{ADAPTER} --dtype DTYPE",
        sft="--max-length 640 --batch-size 8 --learning-rate 1e-3 --group-by-length --save-steps 20",
        rl="--algo ppo --epochs 2 --minibatch 128 --gamma 0.95 --entropy-coef 0.02",
        demonstrated="--negatives 0 --noise 0.1",
        demonstrations=0,
        comments="both",
        reflector_steps=200,
        policy_steps=200,
        updates=20,
        episodes=64,
        validate_steps=5,
        pilot_updates=40,
        seeds=3,
        split="--by repo --ratio 8:1:3",
        gate_seeds=(90, 91),
        problems=60,
        horizon=30,
        settings={"result_tokens": 80, "prompt_tokens": 400, "searching_teacher": True},
        rows="--answer text",
        prepare=(
            f"filter-repo --repo-dir {included_repositories()}",
            "gen-task --per-file 8 --max-level 2 --max-tokens 80",
            "filter-task",
        ),
        baselines=("random", "oracle", "keyword"),
        on_cpu=False,
    ),
    "corridor": World(
        env="corridor",
        title="A corridor of seven cells, to try the runner in a minute",
        obey=obey_corridor,
        model="--model tiny",
        sft="--max-length 160 --learning-rate 1e-3 --batch-size 4",
        rl="--algo ppo --epochs 1 --minibatch 64",
        demonstrated="--demonstrations 6 --noise 0.2",
        demonstrations=3,
        comments="both",
        reflector_steps=3,
        policy_steps=3,
        updates=1,
        episodes=4,
        validate_steps=1,
        pilot_updates=2,
        seeds=2,
        split="--ratio 4:1:1",
        gate_seeds=(),
        pilot_seeds=(),
        horizon=4,
        taught=1,
        arms=("plain", "pair", "think", "others", "longer", "typed"),
    ),
}


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


def dtype() -> str:
    """The type of the weights: bfloat16 on a GPU, or where the processor computes with it; else float32."""
    fast = has_gpu() or any(flag in processor() for flag in CPU_FLAGS)
    return "bfloat16" if fast else "float32"


def processor() -> str:
    """The type of processor that all arms of a seed must share: the GPU, or the CPU's name and what it has of
    `CPU_FLAGS`.
    """
    if has_gpu():
        import torch

        return torch.cuda.get_device_name()
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.is_file() else ""
    name = re.search(r"model name\s*: (.+)", text)
    return ", ".join([name[1] if name else "unknown", *(flag for flag in CPU_FLAGS if flag in text.split())])
