"""A rollout, an update and SFT steps with the installed torch, transformers, trl and peft (`make versions-check`).

    python -m benchmarks.versions_check            # in the environment to be checked
    python -m benchmarks.versions_check --oldest   # prints the oldest versions that pyproject.toml allows, for pip

Demonstrates taxi, trains a reflector of convolutions and attention and a plain policy by SFT, then makes updates of a
policy that reads comments, with and without an adapter. So it uses each interface of these packages on which the
package depends: caches that rows leave and join, masks, trainers, adapters.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import os
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("torch", "transformers", "trl", "peft")
PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
SFT = "sft --env taxi --max-steps 2 --batch-size 4"
RLFT = "rlft --env taxi --max-steps 2 --episodes 8 --group-size 4 --horizon 4 --validate-problems 0"
STEPS = {
    "demonstrations": "gen-trajectory --env taxi --demonstrations 8",
    "split": "split --env taxi",
    "rows": "gen-sft --env taxi",
    "SFT of a reflector": f"{SFT} --role reflection --model tiny-hybrid --name reflector",
    "SFT of a policy": f"{SFT} --role policy --model tiny-gpt2 --name policy",
    "SFT of an adapter": f"{SFT} --role policy --model results/policy/checkpoint-2 --lora-r 4 --name adapter",
    "rollout and update": f"{RLFT} --policy results/policy/checkpoint-2 --reflector results/reflector/checkpoint-2",
    "the same with an adapter": f"{RLFT} --policy results/adapter/checkpoint-2"
    " --reflector results/reflector/checkpoint-2 --algo grpo --kl-coef 0.1",
}
"""Command lines, in this order in one folder."""


def oldest() -> list[str]:
    """The oldest version of each of PACKAGES that pyproject.toml allows, as requirements for pip."""
    dependencies = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    requirements = []
    for dependency in dependencies:
        bound = re.fullmatch(r"([\w-]+)>=([\d.]+)(,.*)?", dependency)
        if bound and bound[1] in PACKAGES:
            requirements.append(f"{bound[1]}=={bound[2]}.*")
    return requirements


@contextlib.contextmanager
def empty_folder() -> Iterator[None]:
    """An empty working directory for the block."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def main() -> int:
    """Run STEPS, and say how long each took. Returns 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions_check", description=__doc__)
    parser.add_argument("--oldest", action="store_true", help="only print the oldest versions that are allowed")
    parser.add_argument("--device", default="cpu", help="where models are trained: cpu or cuda")
    options = parser.parse_args()
    if options.oldest:
        print(" ".join(oldest()))
        return 0
    from reflectkit.cli.main import main as reflectkit

    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(versions, flush=True)
    with empty_folder():
        for name, command in STEPS.items():
            started = time.process_time()
            device = ["--device", options.device] if command.startswith(("sft", "rlft")) else []
            with contextlib.redirect_stdout(io.StringIO()):  # reports; errors go to stderr
                code = reflectkit([*command.split(), *device])
            if code != 0:
                print(f"{name}: failed with {versions}")
                return 1
            print(f"{name}: {time.process_time() - started:.1f} s of CPU time", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
