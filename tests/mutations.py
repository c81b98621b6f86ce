"""Faults put into the engine, one at a time, each of which a test must notice:

    python -m tests.mutations            # all of them, a few minutes
    python -m tests.mutations kl-sign    # some of them

A fault is a text of the package that is replaced in whatever file it occurs, so it outlives a move;
`tests/test_mutations.py` checks that each still occurs once. Prints a table, and ends with 1 if one survives or a test
fails without any.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARIES = ("torch", "transformers", "peft")  # which take seconds to import
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
        "[0] * len(context) + [1] * trained_count + [0] * rest_count",
        "[0] * (len(context) - 1) + [1] * trained_count + [0] * (rest_count + 1)",
        ("tests/train/test_learner.py::test_text_turns_make_one_row_while_the_prompt_grows",),
    ),
    Mutation(
        "loss-sign",
        "return -weight_N * tokens.advantage_N * tokens.logprob_N",
        "return weight_N * tokens.advantage_N * tokens.logprob_N",
        ("tests/train/test_advantages.py::test_losses_by_hand",),
    ),
    Mutation(
        "seed-without-update",
        'derive(config.seed, "rollout", step, place * repeats + repeat)',
        'derive(config.seed, "rollout", place * repeats + repeat)',
        ("tests/train/test_rl.py::test_a_group_starts_alike_and_plays_apart",),
    ),
    Mutation(
        "stale-weights",
        "if self._published != self.step:",
        "if self._published is None:",
        ("tests/train/test_rl.py::test_learns_the_corridor_from_scratch",),
    ),
    Mutation(
        "stop-token-dropped",
        "tuple(row.token_ids), tuple(row.logprobs), version=self.version",
        "tuple(row.token_ids[: len(row.token_ids) - (row.token_ids[-1] in stop_ids)]), "
        "tuple(row.logprobs[: len(row.token_ids) - (row.token_ids[-1] in stop_ids)]), version=self.version",
        ("tests/sampling/test_local.py::test_a_text_keeps_its_stop_token",),
    ),
    Mutation(
        "spread-of-a-sample",
        "return math.sqrt(_squares(values, mean) / len(values))",
        "return math.sqrt(_squares(values, mean) / (len(values) - 1))",
        ("tests/train/test_advantages.py::test_replayed_successes_do_not_move_the_baseline",),
    ),
    Mutation(
        "kl-sign",
        "loss = loss + settings.kl * distance",
        "loss = loss - settings.kl * distance",
        ("tests/train/test_against_trl.py::test_loss_and_gradients_are_trls",),
    ),
    Mutation(
        "clip-bound",
        "ratio_N.clamp(1 - tokens.clip, above)",
        "ratio_N.clamp(1 - tokens.clip, 2 * above)",
        ("tests/train/test_advantages.py::test_losses_by_hand",),
    ),
    Mutation(
        "return-off-by-one",
        "returns[index] = rewards[index] + gamma * next_return\n        next_return = returns[index]\n",
        "returns[index] = next_return\n        next_return = rewards[index] + gamma * next_return\n",
        ("tests/train/test_advantages.py::test_returns_by_hand",),
    ),
    Mutation(
        "labels-not-normalised",
        'logits_NC.float().masked_fill(~legal_NC, float("-inf"))',
        "logits_NC.float()",
        ("tests/models/test_labels.py::test_gradients_are_those_of_whole_labels",),
    ),
    Mutation(
        "temperature-ignored",
        "torch.log_softmax(logits_NC / temperature, dim=-1)",
        "torch.log_softmax(logits_NC, dim=-1)",
        ("tests/models/test_labels.py::test_gradients_are_those_of_whole_labels",),
    ),
    Mutation(
        "prompt-cut-at-the-end",
        "for command in reversed(commands):",
        "for command in commands:",
        ("tests/envs/test_auto_explore.py::test_a_long_prompt_loses_its_oldest_commands_and_never_the_task",),
    ),
    Mutation(
        "padding-attended-to",
        "mask.append([0] * gap + [1] * len(row))",
        "mask.append([1] * gap + [1] * len(row))",
        ("tests/sampling/test_decoding.py::test_every_width_writes_what_a_row_alone_without_cache_writes",),
    ),
    Mutation(
        "replayed-as-fresh",
        "log_ratio_N = tokens.decision_sum((tokens.logprob_N - tokens.old_logprob_N).detach())",
        "log_ratio_N = tokens.decision_sum((tokens.logprob_N - tokens.logprob_N).detach())",
        ("tests/train/test_learner.py::test_old_rows_are_weighted_and_never_fresh",),
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
        ("tests/train/test_rl.py::test_curriculum_gives_equal_steps_and_every_task_its_turn",),
    ),
    Mutation(
        "entropy-sign",
        "loss = policy_loss - self.entropy_rate * settings.entropy * mean_entropy",
        "loss = policy_loss + self.entropy_rate * settings.entropy * mean_entropy",
        ("tests/train/test_learner.py::test_the_entropy_bonus_alone_spreads_the_policy",),
    ),
    Mutation(
        "bootstrapped-end",
        "next_value = 0.0",
        "next_value = values[-1] if values else 0.0",
        ("tests/train/test_advantages.py::test_generalised_advantages_by_hand",),
    ),
    Mutation(
        "baseline-of-itself",
        "advantages.append(value - other_total / other_count)",
        "advantages.append(value - math.fsum(values) / len(group_rows))",
        ("tests/train/test_advantages.py::test_leave_one_out_by_hand",),
    ),
    Mutation(
        "aborted-episodes-trained",
        "if trajectory.status is not Status.ABORTED and trajectory.turns",
        "if trajectory.turns",
        ("tests/train/test_learner.py::test_aborted_episodes_are_never_trained_on",),
    ),
    Mutation(
        "critic-targets-scaled",
        "    return Estimates(rollouts.scaled(advantages), targets)\n",
        "    scaled = rollouts.scaled(advantages)\n"
        "    pairs = zip(scaled, rollouts.values, strict=True)\n"
        "    return Estimates(scaled, [_sums(row, values) for row, values in pairs])\n",
        ("tests/train/test_advantages.py::test_ppo_advantages_and_targets_by_hand",),
    ),
    Mutation(
        "row-mean-over-rows-that-do-not-count",
        "row_count = sum(count > 0 for count in counts.values())",
        "row_count = len(counts)",
        ("tests/train/test_distill.py::test_rows_with_rewards_keep_their_loss_where_others_are_distilled",),
    ),
    Mutation(
        "schedule-ignored",
        "self.optimizer.schedule(self.schedule_rate * self.pace)",
        "self.optimizer.schedule(self.pace)",
        ("tests/train/test_learner.py::test_the_schedule_scales_a_step",),
    ),
    Mutation(
        "stale-values",
        "        self.forget()\n        self.player.model.eval()\n",
        "        self.player.model.eval()\n",
        ("tests/train/test_learner.py::test_values_of_earlier_weights_are_forgotten",),
    ),
    Mutation(
        "failed-env-reused",
        "return trajectory.status is not Status.ABORTED or agent_failed",
        "return True",
        ("tests/rollouts/test_episode.py::test_an_env_that_failed_plays_no_other_episode",),
    ),
)


def sources(package: Path) -> dict[Path, str]:
    """The content of each file of `package`, without the repositories that agents explore."""
    contents = {}
    for path in sorted(package.rglob("*.py")):
        if "boxed" not in path.relative_to(package).parts:
            contents[path] = path.read_text("utf-8")
    return contents


def place_of(mutation: Mutation, contents: dict[Path, str]) -> Path:
    """The file that has the text of `mutation`. Raises ValueError unless it occurs exactly once."""
    counts = {path: content.count(mutation.before) for path, content in contents.items()}
    places = [path for path, count in counts.items() if count]
    total = sum(counts.values())
    if total != 1:
        raise ValueError(f"{mutation.name}: {total} places have {mutation.before!r}; name one")
    return places[0]


def run_tests(tests: tuple[str, ...], folder: Path) -> int:
    """pytest's exit code, with the package of `folder`. The tests run in a fork, which has the libraries already."""
    process = multiprocessing.get_context("fork").Process(target=_run_here, args=(tests, folder))
    process.start()
    process.join()
    code = process.exitcode
    assert code is not None
    return code


def _run_here(tests: tuple[str, ...], folder: Path) -> None:
    """Run the tests in this process, and exit with pytest's code."""
    # 1. The package of `folder` comes first, here and in processes that tests start
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

    # 2. Nothing is printed
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sys.exit(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests])))


def main() -> int:
    """Try the faults that are named, or all of them."""
    # 1. The faults, and where they are
    named = sys.argv[1:]
    unknown = set(named) - {mutation.name for mutation in MUTATIONS}
    if unknown:
        raise SystemExit(f"no such mutations: {', '.join(sorted(unknown))}")
    chosen = [mutation for mutation in MUTATIONS if not named or mutation.name in named]
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for library in LIBRARIES:
        importlib.import_module(library)
    survived = []
    with tempfile.TemporaryDirectory() as made:
        package = Path(made) / "reflectkit"
        shutil.copytree(ROOT / "reflectkit", package)
        contents = sources(package)
        places = {mutation.name: place_of(mutation, contents) for mutation in chosen}

        # 2. Their tests pass without them
        every = tuple(sorted({test for mutation in chosen for test in mutation.tests}))
        if run_tests(every, Path(made)):
            raise SystemExit(f"tests fail without a mutation: {' '.join(every)}")

        # 3. One after the other
        print("| mutation | file | result | seconds |\n|---|---|---|---|", flush=True)
        for mutation in chosen:
            path = places[mutation.name]
            started = time.monotonic()
            path.write_text(contents[path].replace(mutation.before, mutation.after), "utf-8")
            code = run_tests(mutation.tests, Path(made))
            path.write_text(contents[path], "utf-8")
            result = {0: "survived", FAILED: "killed"}.get(code, f"pytest ended with {code}")
            if code != FAILED:
                survived.append(mutation.name)
            where = path.relative_to(made)
            print(f"| {mutation.name} | {where} | {result} | {time.monotonic() - started:.0f} |", flush=True)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
