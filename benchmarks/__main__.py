"""`make bench-peers MODEL=smollm2-135m`: the speed of rollouts and updates against TRL's GRPOTrainer and transformers'
`generate`, and with `--original FOLDER` against the published code.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import logging
import warnings
from pathlib import Path

import torch

from benchmarks import original
from benchmarks.common import HEAD
from benchmarks.scenes import SCENES, Bench
from reflectkit.console import Quiet
from reflectkit.models.hub import silence_libraries

DTYPES = ("float32", "bfloat16")


def main() -> None:
    """Measure, and print each line as it is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="tiny, or as in `rlft --model`, with LoRA of rank 16")
    parser.add_argument("--only", choices=SCENES, nargs="*", default=SCENES, help="parts of the table")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each line")
    parser.add_argument("--device", default="cpu", help="cpu, with one thread, or cuda")
    parser.add_argument("--dtype", choices=DTYPES, nargs="*", default=DTYPES, help="types of the weights")
    parser.add_argument("--scale", type=int, default=1, help="times as many episodes and rows of a micro-batch")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="where a packaged model is converted")
    parser.add_argument("--original", type=Path, help="checkout of github.com/zhourunlong/Reflect-RL")
    given = parser.parse_args()
    torch.set_num_threads(1)
    silence_libraries()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*rollout_func.*")  # that it is experimental
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("trl", "transformers", "torch"))
    where = torch.cuda.get_device_name() if given.device == "cuda" else "one thread"
    for dtype in ("float32",) if given.model == "tiny" else given.dtype:
        if dtype == "bfloat16" and given.device == "cpu" and not torch.cpu._is_avx512_bf16_supported():
            print("bfloat16: skipped, since this CPU has no AVX-512 BF16")
            break
        print(f"{given.model}, {dtype}; {versions}; {datetime.date.today()}; {where}; {given.rounds} rounds")
        print(HEAD, flush=True)
        bench = Bench(given.model, given.rounds, given.seed, given.data_dir, Quiet(), dtype, given.device, given.scale)
        for name in given.only:
            for line in SCENES[name](bench):
                print(line, flush=True)
    if given.original:
        for line in original.lines(given.original, given.rounds, given.seed):
            print(line, flush=True)


if __name__ == "__main__":
    main()
