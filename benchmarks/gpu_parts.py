"""The parts of `bench gpu` that prepare it, and that run stages. Each is called in a process of its own, and measures
one thing on the device it is given.

Run as a module, this is one of the processes that `launched` starts.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import Bench, Measured, NotPossibleError, peak_gib
from benchmarks.rl import Clock, bare_backward
from reflectkit.console import Quiet
from reflectkit.errors import ReflectkitError
from reflectkit.files import included_repositories, launch_config
from reflectkit.jsonl import read_json, read_jsonl, write_json, write_jsonl
from reflectkit.models import fast_pass
from reflectkit.models.hub import silence_libraries
from reflectkit.models.load import LoadedModel, load_player, save_player, with_adapter
from reflectkit.models.packaged import convert, is_installed
from reflectkit.sampling import slots

ENV = "auto_explore"
PROMPTS: dict[str, Any] = {"result_tokens": 60, "prompt_tokens": 300}
RECIPE = "auto-explore-smollm2"
SMOLLM2 = "smollm2-135m"
UPDATES = 8
"""Of `rlft`. In the first half layers are compiled, and passes are recorded as they recur."""
RANK = 16
UNSHAREABLE = ("duplicate gpu", "ncclinvalidusage", "gloo", "no backend type")
"""Words of the errors of processes that cannot communicate on one GPU."""


def machine(bench: Bench) -> Measured:
    """Write what the figures depend on to facts.json. The device "auto" is a GPU if there is one, otherwise the CPU.

    Raises NotPossibleError if a GPU is asked for and missing.
    """
    import transformers

    if bench.device != "cpu" and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        gib = round(properties.total_memory / 2**30, 1)
        facts: dict[str, Any] = {"kind": "cuda", "device": properties.name, "gib": gib}
    elif bench.device == "cuda":
        raise NotPossibleError("torch sees no GPU")
    else:
        facts = {"kind": "cpu", "device": f"CPU ({platform.machine()})"}
    versions = {"torch": str(torch.__version__), "transformers": str(transformers.__version__)}
    facts |= versions | {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    write_json(bench.folder / "facts.json", facts)
    return Measured()


# --------------------------------------------------------------------------------------------------- data and the model


def setup(bench: Bench) -> Measured:
    """AutoExplore's data from the included repositories, with all data stages, and the model of the other parts:
    SmolLM2-135M if its package is there, otherwise its shape with random weights.
    """
    from reflectkit.commands import filter_repo, filter_task, gen_sft, gen_task, gen_trajectory, split

    silence_libraries()
    shared, quiet = _shared(bench), Quiet()
    filter_repo.run(filter_repo.FilterRepoConfig.from_flat(repo_dir=_repositories(bench), **shared), quiet)
    questions: dict[str, Any] = {"per_file": 1 if bench.fast else 10}
    gen_task.run(gen_task.GenTaskConfig.from_flat(**questions, **shared), quiet)
    filter_task.run(filter_task.FilterTaskConfig.from_flat(**shared), quiet)
    count = 12 if bench.fast else None
    gen_trajectory.run(
        gen_trajectory.GenTrajectoryConfig.from_flat(env=ENV, demonstrations=count, negatives=2, **PROMPTS, **shared),
        quiet,
    )
    split.run(split.SplitConfig.from_flat(env=ENV, by="question" if bench.fast else "repo", **shared), quiet)
    gen_sft.run(gen_sft.GenSFTConfig.from_flat(env=ENV, answer="text", **PROMPTS, **shared), quiet)
    return Measured(note=f"data, and {_make_model(bench)}")


def _shared(bench: Bench) -> dict[str, Any]:
    """Settings of every stage."""
    return {
        "data_dir": bench.folder / "data",
        "results_dir": bench.folder / "runs",
        "seed": bench.seed,
        "threads": bench.threads,
        "force": True,
    }


def _repositories(bench: Bench) -> Path:
    """The included repositories; the first two if `fast`."""
    every = included_repositories()
    if not bench.fast:
        return every
    some = bench.folder / "repositories"
    for repository in sorted(path for path in every.iterdir() if path.is_dir())[:2]:
        shutil.copytree(repository, some / repository.name, dirs_exist_ok=True)
    return some


def _make_model(bench: Bench) -> str:
    """Write the model of the other parts to its folder; returns what it is."""
    folder = bench.folder / "model"
    if not bench.fast and is_installed(SMOLLM2):
        shutil.rmtree(folder, ignore_errors=True)
        convert(SMOLLM2, folder)
        return "SmolLM2-135M"
    from transformers import LlamaConfig, LlamaForCausalLM

    from reflectkit.models.tiny import build_tokenizer

    texts = [f"{row['prompt']}{row['completion']}" for row in reflector_rows(bench)]
    tokenizer = build_tokenizer(texts, [], 600 if bench.fast else 8000)
    shape: dict[str, Any] = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
        "max_position_embeddings": 8192}  # fmt: skip
    if bench.fast:
        shape = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3,
            "num_key_value_heads": 1, "vocab_size": 640, "max_position_embeddings": 2048}  # fmt: skip
    special = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id}  # fmt: skip
    torch.manual_seed(bench.seed)
    model = LlamaForCausalLM(LlamaConfig(**shape, **special, tie_word_embeddings=True))
    save_player(folder, LoadedModel(model, tokenizer, None))
    millions = sum(weight.numel() for weight in model.parameters()) / 1e6
    return f"random weights, {'tiny' if bench.fast else 'the shape of SmolLM2-135M'} ({millions:,.1f} M parameters)"


def compile_at_once() -> None:
    """Compile layers in the first pass on a GPU, since the figures are of those that follow many."""
    fast_pass.PASSES_BEFORE = 0
    slots.STEPS_BEFORE = 0


def need_setup(bench: Bench) -> None:
    """Raises ReflectkitError without the data and the model."""
    if not (bench.folder / "model" / "config.json").is_file():
        raise ReflectkitError("needs the data and the model of setup, which did not finish")


def reflector_rows(bench: Bench) -> list[dict[str, Any]]:
    """The reflector's rows, whose completions are text."""
    from reflectkit.commands import rlft

    folder = rlft.RLConfig.from_flat(env=ENV, model="-", data_dir=bench.folder / "data").setup.folder
    return [dict(row) for _, row in read_jsonl(folder / "sft_reflection.jsonl")]


# ----------------------------------------------------------------------------------------------- training by the stages


class StepTimes(Quiet):
    """Notes when each step of a stage's bar ended, in seconds."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def advance(self, amount: int = 1, **figures: float) -> None:
        """A step is done, unless only its figures are told."""
        self.times += [time.perf_counter()] * amount


def train(bench: Bench, quantize: str = "none") -> Measured:
    """`sft` of a reflector in bf16 with LoRA. Each row is trained on once; the first step warms up and is left out."""
    from reflectkit.commands import sft

    need_setup(bench)
    compile_at_once()
    steps, batch = (3, 2) if bench.fast else (20, 32)
    lines = reflector_rows(bench)
    lines = [lines[number % len(lines)] for number in range(steps * batch)]
    path = bench.folder / f"sft-{quantize}.jsonl"
    write_jsonl(path, lines)
    watch = StepTimes()
    config = sft.SFTConfig.from_flat(
        env=ENV,
        role="reflection",
        task_file=path,
        model=str(bench.folder / "model"),
        max_steps=steps,
        batch_size=batch,
        max_length=2048,
        learning_rate=1e-4,
        lora_r=RANK,
        dtype="bfloat16",
        quantize=quantize,
        device=bench.device,
        save_steps=steps + 1,
        name=f"sft-{quantize}",
        **_shared(bench),
    )
    checkpoint = sft.run(config, watch).outputs[0]
    peak = peak_gib()
    player = load_player(checkpoint, device=bench.device)
    token_rows = [row_tokens(player.tokenizer, row) for row in lines]
    rate = sum(map(len, token_rows)) * (steps - 1) / steps / (watch.times[-1] - watch.times[0])
    bare = _bare_rate(player, token_rows, batch)
    return Measured(rate, rate / bare, f"bf16, LoRA{_weights(quantize)}, {steps} steps of {batch} rows", peak)


def _weights(quantize: str) -> str:
    return "" if quantize == "none" else f", base in {quantize}"


def row_tokens(tokenizer: Any, row: dict[str, Any]) -> list[int]:
    """The tokens of a reflector's row."""
    from reflectkit.models.labels import completion_ids, prompt_ids

    return [
        *prompt_ids(tokenizer, row["prompt"]),
        *completion_ids(tokenizer, row["completion"]),
        tokenizer.eos_token_id,
    ]


def _bare_rate(player: LoadedModel, rows: Sequence[Sequence[int]], batch: int) -> float:
    """Tokens per second of the model's own forward and backward passes over the rows, in batches of `batch`, with the
    logits of the last position only; the first batch warms up.
    """
    clock = Clock()
    bare_passes(player, rows[:batch], batch)
    with clock.measure("bare"):
        bare_passes(player, rows, batch)
    return sum(map(len, rows)) / clock.seconds["bare"][0]


def bare_passes(player: LoadedModel, rows: Sequence[Sequence[int]], batch: int) -> None:
    """The model's own forward and backward passes over the rows, in batches of `batch`."""
    for start in range(0, len(rows), batch):
        bare_backward(player, rows[start : start + batch])
        player.model.zero_grad(set_to_none=True)


def learn(bench: Bench, lora_r: int = 0, quantize: str = "none", gradient_checkpointing: bool = False) -> Measured:
    """`rlft` in bf16 on AutoExplore."""
    settings = {"lora_r": lora_r, "quantize": quantize, "gradient_checkpointing": gradient_checkpointing}
    figures = _rlft(bench, {"model": str(bench.folder / "model"), "answer": "text", **settings})
    what = f"bf16, {'LoRA' if lora_r else 'all weights'}{_weights(quantize)}"
    return replace(figures, note=f"{what}{', gradient checkpointing' * gradient_checkpointing}; {figures.note}")


def _rlft(bench: Bench, settings: dict[str, Any], name: str = "rlft") -> Measured:
    """`rlft` with `settings` and the tokens per second that it reports of the later updates."""
    from reflectkit.commands import rlft

    need_setup(bench)
    compile_at_once()
    config = rlft.RLConfig.from_flat(**rlft_settings(bench, name), **settings)
    return _learnt(rlft.run(config, Quiet()).folder)


def rlft_settings(bench: Bench, name: str) -> dict[str, Any]:
    """Settings of `rlft` on AutoExplore, without its model."""
    return {
        "env": ENV,
        "dtype": "bfloat16",
        "device": bench.device,
        "max_steps": 2 if bench.fast else UPDATES,
        "episodes": 8 if bench.fast else 64,
        "horizon": 2 if bench.fast else 0,
        "validate_problems": 0,  # their intervals need scipy
        "name": name,
        **PROMPTS,
        **_shared(bench),
    }


def _learnt(run: Path) -> Measured:
    """Tokens read, written and trained on per second of the later half of an rlft run's updates."""
    every = [row for _, row in read_jsonl(run / "metrics.jsonl")]
    rows = every[len(every) // 2 :]
    played, learnt = (sum(float(row[f"{name}_seconds"]) for row in rows) for name in ("rollout", "update"))
    tokens = sum(int(row["tokens"]) for row in rows)
    note = f"{100 * played / (played + learnt):.0f} % of the time in rollouts"
    return Measured(tokens / (played + learnt), note=note)


def share_base(bench: Bench) -> Measured:
    """`rlft --share-base`: a policy and a reflector, two new adapters on one base."""
    need_setup(bench)
    folders = {}
    for number, role in enumerate(("policy", "reflection")):
        base = load_player(bench.folder / "model", device="cpu", dtype="bfloat16")
        adapted = with_adapter(base, RANK, RANK, bench.seed + number)
        folders[role] = bench.folder / f"{role}-adapter"
        save_player(folders[role], replace(adapted, role=role, answer="text" if role == "policy" else ""))
    settings = {"policy": folders["policy"], "reflector": folders["reflection"], "share_base": True}
    figures = _rlft(bench, settings, "share-base")
    return replace(figures, note=f"bf16, two adapters on one base, with comments; {figures.note}")


# ---------------------------------------------------------------------------------------------------- several processes


def launched(bench: Bench, config: str, processes: int) -> Measured:
    """`rlft` of all weights with `accelerate launch` and the config of that name. The processes share one device: they
    talk over gloo, since NCCL wants a GPU for each. The peak is that of the process with the highest.
    """
    need_setup(bench)
    if config == "fsdp2" and processes > torch.cuda.device_count():
        raise NotPossibleError(f"FSDP2 in {processes} processes needs as many GPUs")
    name = f"{config}-{processes}"
    place = bench.folder / f"{name}.launch.json"
    write_json(place, {"bench": {**asdict(bench), "folder": str(bench.folder)}, "name": name})
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(launch_config(config))]
    launch += ["--num_processes", str(processes), "--main_process_port", "0"]
    done = subprocess.run([*launch, "-m", __spec__.name, str(place)], capture_output=True, text=True)
    sys.stdout.write(done.stdout + done.stderr)
    if done.returncode:
        raise _communication_error(done.stderr, processes)
    peaks = [read_json(path)["peak_gib"] for path in sorted(bench.folder.glob(f"{name}.rank*.json"))]
    figures = _learnt(bench.folder / "runs" / name)
    how = f"{processes} process{'es on one device, over gloo' if processes > 1 else ''}, {config}, all weights"
    return replace(figures, note=f"bf16, {how}; {figures.note}", peak_gib=max(filter(None, peaks), default=None))


def _communication_error(text: str, processes: int) -> ReflectkitError:
    """The error of launched processes that printed `text`: NotPossibleError if they cannot share a GPU."""
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalpha, line))]
    errors = [line for line in lines if "Error" in line and "ChildFailedError" not in line]
    for line in errors:
        if processes > 1 and any(words in line.lower() for words in UNSHAREABLE):
            return NotPossibleError(f"two processes cannot share this GPU: {line}")
    return ReflectkitError((errors or lines or ["the processes ended without a word"])[-1])


def tests(bench: Bench) -> Measured:
    """The tests that are marked `gpu`: what is recorded or compiled computes the same."""
    folder = Path(__file__).parents[1]
    files = [path for path in sorted((folder / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", *map(str, files)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    sys.stdout.write(done.stdout + done.stderr)
    lines = (done.stdout + done.stderr).strip().splitlines() or ["pytest ended without a word"]
    if done.returncode:
        raise ReflectkitError(lines[-1])
    return Measured(note=f"`pytest -m gpu`: {lines[-1].strip('= ')}")


def other_versions(bench: Bench) -> Measured:
    """`benchmarks.versions_check` in the environment of `make versions-check`, whose python VERSIONS_PYTHON names: a
    rollout, an update and SFT with the oldest versions that the package allows.
    """
    python = Path(os.environ.get("VERSIONS_PYTHON", ""))
    if not python.is_file():
        raise NotPossibleError("`make versions-check` installs the oldest versions, with a network; run it first")
    command = [str(python), "-m", "benchmarks.versions_check", "--device", bench.device]
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stdout.write(done.stdout + done.stderr)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise ReflectkitError((lines or ["the check ended without a word"])[-1])
    return Measured(note=done.stdout.splitlines()[0])


def _one_process(place: Path) -> None:
    """What each of the processes runs."""
    from reflectkit.commands import rlft

    record = read_json(place)
    bench = Bench(**record["bench"] | {"folder": Path(record["bench"]["folder"])})
    if bench.device == "cuda" and int(os.environ["WORLD_SIZE"]) > torch.cuda.device_count():
        torch.cuda.set_device(0)
        torch.distributed.init_process_group("gloo")
    config = rlft.RLConfig.from_flat(
        **rlft_settings(bench, record["name"]), model=str(bench.folder / "model"), answer="text"
    )
    rlft.run(config, Quiet())
    write_json(bench.folder / f"{record['name']}.rank{os.environ['RANK']}.json", {"peak_gib": peak_gib()})


# --------------------------------------------------------------------------------------------------------- the pipeline


def pipeline(bench: Bench) -> Measured:
    """A whole recipe, from repositories to evaluation: SmolLM2's if the package and the recipe are there, otherwise
    that of the tiny models with its short steps.
    """
    from reflectkit.recipe import recipe_names

    full = is_installed(SMOLLM2) and RECIPE in recipe_names()
    arguments = [_tiny_recipe(bench)] if bench.fast else [RECIPE] if full else ["auto-explore-tiny", "--fast"]
    shown = f"reflectkit run {Path(arguments[0]).name} {' '.join(arguments[1:])}".strip()
    folders = ["--data-dir", str(bench.folder / "pipeline-data"), "--results-dir", str(bench.folder / "pipeline")]
    command = [sys.executable, "-m", "reflectkit", "run", *arguments, *folders, "--seed", str(bench.seed)]
    command += ["--threads", str(bench.threads)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ReflectkitError(f"{shown}: {last}")
    return Measured(note=f"`{shown}`")


def _tiny_recipe(bench: Bench) -> str:
    """The path of a recipe of seconds on the corridor, which trains nothing: other parts do."""
    steps: list[dict[str, Any]] = [
        {"name": "demonstrations", "stage": "gen-trajectory"},
        {"name": "split", "stage": "split"},
        {"name": "evaluation", "stage": "evaluate", "policy": ["random", "oracle"]},
    ]
    path = bench.folder / "tiny.yaml"
    write_json(path, {"description": "a tiny check", "defaults": {"env": "corridor"}, "steps": steps})
    return str(path)


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: torch.distributed.is_initialized() and torch.distributed.destroy_process_group())
        _one_process(Path(sys.argv[1]))
