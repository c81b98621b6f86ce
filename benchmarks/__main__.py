"""`make bench-peers`: the table, against TRL, against transformers' `generate`, and with `--original FOLDER` against
the published code. With `--profile`: where the time of our updates goes.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import logging
import warnings
from pathlib import Path

import torch

from benchmarks import decoding, original, shares, trl_peer
from benchmarks.common import HEAD, prepared_players
from reflectkit.models.hub import silence_libraries


def main() -> None:
    """Measure, and print each line as it is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--original", type=Path, help="checkout of github.com/zhourunlong/Reflect-RL; without: only TRL"
    )
    parser.add_argument("--policy", type=Path, help="checkpoint of the policy; trained if not given")
    parser.add_argument("--reflector", type=Path, help="checkpoint of the reflector; trained if not given")
    parser.add_argument("--work-dir", type=Path, default=Path("build/bench-peers"), help="where players are trained")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds of each line")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes")
    parser.add_argument("--profile", action="store_true", help="show where the time of our updates goes, and no more")
    given = parser.parse_args()
    torch.set_num_threads(1)
    silence_libraries()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*rollout_func.*")  # that it is experimental
    trained = prepared_players(given.work_dir) if not (given.policy and given.reflector) else {}
    policy, reflector = ((getattr(given, name) or trained[name]).resolve() for name in ("policy", "reflector"))
    if given.profile:
        for line in shares.lines(policy, given.seed):
            print(line, flush=True)
        return
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("trl", "transformers", "torch"))
    print(f"{versions}; {datetime.date.today()}; one thread, CPU time; median (range) of {given.rounds} rounds")
    print(HEAD, flush=True)
    for line in trl_peer.lines(policy, reflector, given.rounds, given.seed):
        print(line, flush=True)
    for line in decoding.lines(reflector, given.rounds):
        print(line, flush=True)
    if given.original:
        for line in original.lines(given.original, policy, given.rounds, given.seed):
            print(line, flush=True)


if __name__ == "__main__":
    main()
