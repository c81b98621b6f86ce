"""Faults put into the engine, one at a time, each of which a test must notice:

    python -m tests.mutations            # all of them, about ten minutes
    python -m tests.mutations kl-sign    # some of them

A fault is a text of the package that is replaced in whatever file it occurs, so it outlives a move. Prints a table, and
ends with 1 if one survives or a test fails without any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAILED = 1  # pytest's exit code for tests that failed; others mean that none could run


@dataclass(frozen=True)
class Mutation:
    """A fault. tests: files or tests, of which one must fail."""

    name: str
    before: str
    after: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "mask-off-by-one",
        "self.mask += [0] * len(new) + [1] * count + [0] * rest",
        "self.mask += [0] * (len(new) - 1) + [1] * count + [0] * (rest + 1)",
        ("tests/train/test_learner.py",),
    ),
    Mutation(
        "loss-sign",
        "return -weight_N * tokens.advantage_N * tokens.logprob_N",
        "return weight_N * tokens.advantage_N * tokens.logprob_N",
        ("tests/train/test_advantages.py",),
    ),
    Mutation(
        "seed-without-update",
        'derive(config.seed, "rollout", step, place * config.algo.repeats + repeat)',
        'derive(config.seed, "rollout", place * config.algo.repeats + repeat)',
        ("tests/train/test_rl.py", "tests/rollouts/test_async_rollouts.py"),
    ),
    Mutation(
        "stale-weights",
        "if self._published != self.step:",
        "if self._published is None:",
        ("tests/train/test_rl.py",),
    ),
    Mutation(
        "stop-token-dropped",
        "tuple(row.token_ids), tuple(row.logprobs), version=self.version",
        "tuple(row.token_ids[: len(row.token_ids) - (row.token_ids[-1] in stop_ids)]), "
        "tuple(row.logprobs[: len(row.token_ids) - (row.token_ids[-1] in stop_ids)]), version=self.version",
        ("tests/train/test_learner.py", "tests/sampling/test_local.py"),
    ),
    Mutation(
        "spread-of-a-sample",
        "math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))",
        "math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))",
        ("tests/train/test_advantages.py",),
    ),
    Mutation(
        "kl-sign",
        "loss = loss + settings.kl * distance",
        "loss = loss - settings.kl * distance",
        ("tests/train/test_against_trl.py", "tests/train/test_advantages.py"),
    ),
    Mutation(
        "clip-bound",
        "ratio_N.clamp(1 - tokens.clip, above)",
        "ratio_N.clamp(1 - tokens.clip, 2 * above)",
        ("tests/train/test_advantages.py",),
    ),
    Mutation(
        "return-off-by-one",
        "        following = rewards[index] + gamma * following\n        returns[index] = following\n",
        "        returns[index] = following\n        following = rewards[index] + gamma * following\n",
        ("tests/train/test_advantages.py",),
    ),
    Mutation(
        "labels-not-normalised",
        'logits_NC.float().masked_fill(~legal_NC, float("-inf"))',
        "logits_NC.float()",
        ("tests/models/test_labels.py", "tests/models/test_scoring.py"),
    ),
    Mutation(
        "temperature-ignored",
        "torch.log_softmax(logits_NC / temperature, dim=-1)",
        "torch.log_softmax(logits_NC, dim=-1)",
        ("tests/models/test_labels.py", "tests/sampling/test_local.py"),
    ),
    Mutation(
        "prompt-cut-at-the-end",
        "for command in reversed(commands):",
        "for command in commands:",
        ("tests/envs/test_auto_explore.py",),
    ),
    Mutation(
        "padding-attended-to",
        "mask.append([0] * gap + [1] * len(row))",
        "mask.append([1] * gap + [1] * len(row))",
        ("tests/models/test_scoring.py", "tests/sampling/test_decoding.py"),
    ),
    Mutation(
        "replayed-as-fresh",
        "log_ratio_N = tokens.decision_sum((tokens.logprob_N - tokens.old_logprob_N).detach())",
        "log_ratio_N = tokens.decision_sum((tokens.logprob_N - tokens.logprob_N).detach())",
        ("tests/train/test_learner.py", "tests/train/test_advantages.py"),
    ),
    Mutation(
        "optimizer-not-restored",
        'self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": nested(tensors)})',
        "nested(tensors)",
        ("tests/commands/test_rlft.py::test_going_on_from_another_run_is_as_if_never_stopped",),
    ),
    Mutation(
        "level-off-by-one",
        "min(step * self.levels // steps, self.levels - 1)",
        "min((step + 1) * self.levels // steps, self.levels - 1)",
        ("tests/train/test_rl.py",),
    ),
    Mutation(
        "entropy-sign",
        "loss = policy_loss - settings.entropy * spread",
        "loss = policy_loss + settings.entropy * spread",
        ("tests/train/test_advantages.py", "tests/train/test_learner.py"),
    ),
    Mutation(
        "bootstrapped-end",
        "following = next_value = 0.0",
        "following, next_value = 0.0, [*values, 0.0][len(values) - 1]",
        ("tests/train/test_advantages.py",),
    ),
    Mutation(
        "baseline-of-itself",
        "[value - (total - value) / others for value, total in zip(row, sums, strict=True)]",
        "[value - total / len(rows) for value, total in zip(row, sums, strict=True)]",
        ("tests/train/test_advantages.py",),
    ),
    Mutation(
        "aborted-episodes-trained",
        "if trajectory.status is not Status.ABORTED and trajectory.turns",
        "if trajectory.turns",
        ("tests/train/test_learner.py", "tests/train/test_rl.py"),
    ),
)


def apply(mutation: Mutation, package: Path) -> tuple[Path, str]:
    """Put the fault into `package`; the file, and what it held. Raises SystemExit unless there is exactly one place."""
    files = [path for path in sorted(package.rglob("*.py")) if "boxed" not in path.relative_to(package).parts]
    places = [(path, text) for path in files if mutation.before in (text := path.read_text("utf-8"))]
    count = sum(text.count(mutation.before) for _, text in places)
    if count != 1:
        raise SystemExit(f"{mutation.name}: {count} places have {mutation.before!r}; name one")
    path, text = places[0]
    path.write_text(text.replace(mutation.before, mutation.after), "utf-8")
    return path, text


def run_tests(tests: tuple[str, ...], folder: Path) -> int:
    """pytest's exit code, with the package of `folder`."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


def main() -> int:
    """Try the faults that are named, or all of them."""
    named = sys.argv[1:]
    unknown = set(named) - {mutation.name for mutation in MUTATIONS}
    if unknown:
        raise SystemExit(f"no such mutations: {', '.join(sorted(unknown))}")
    chosen = [mutation for mutation in MUTATIONS if not named or mutation.name in named]
    survived = []
    with tempfile.TemporaryDirectory() as made:
        package = Path(made) / "reflectkit"
        shutil.copytree(ROOT / "reflectkit", package, ignore=shutil.ignore_patterns("__pycache__"))
        every = tuple(sorted({test for mutation in chosen for test in mutation.tests}))
        if run_tests(every, Path(made)):
            raise SystemExit(f"tests fail without a mutation: {' '.join(every)}")
        print("| mutation | file | result | seconds |\n|---|---|---|---|", flush=True)
        for mutation in chosen:
            path, text = apply(mutation, package)
            started = time.monotonic()
            code = run_tests(mutation.tests, Path(made))
            path.write_text(text, "utf-8")
            result = {0: "survived", FAILED: "killed"}.get(code, f"pytest ended with {code}")
            if code != FAILED:
                survived.append(mutation.name)
            where = path.relative_to(made)
            print(f"| {mutation.name} | {where} | {result} | {time.monotonic() - started:.0f} |", flush=True)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
