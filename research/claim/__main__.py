"""claim: the paper's claim, tested as it was made; see research/experiments/claim.md. Run from the repository's root:

    python -m research.claim --world taxi --gate
    python -m research.claim --world taxi --pilot
    python -m research.claim --world taxi --seeds 1 2 3
    python -m research.claim --world taxi --table

Killed anywhere, the same command goes on. What each arm gave is kept in research/experiments/claim.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from reflectkit.jsonl import read_json
from research.claim.arms import ARMS, UNTRAINED, Seed, code_digest, outcomes_of, unequal
from research.claim.verdict import (
    FALLS,
    FOLLOWS,
    POWER,
    SOUGHT,
    Difference,
    Gate,
    area,
    compare,
    mean_gate,
    power,
    seeds_needed,
    verdict,
)
from research.claim.worlds import WORLDS, World

RESULTS, DATA, RECORDS = Path("results/claim"), Path("data/claim"), Path("research/experiments/claim")
GATE_SEEDS, PILOT_SEEDS = (90, 91, 92), (80, 81, 82)
PILOT_ARMS = ("plain", "pair")
PILOT_RATES = ("5e-4", "2.5e-4")
EQUAL = ("plain", "pair", "think", "others")
"""Arms with the same demonstrations, updates and episodes."""
PRIMARY = ("pair", "plain")
SECONDARY = (("pair", "think"), ("pair", "longer"), ("pair", "others"))
MORE_TRIES: Mapping[str, Mapping[str, Any]] = {
    "1": {"demonstrations": 20, "policy_steps": 600, "comments": "teacher"},
    "2": {"demonstrations": 20, "policy_steps": 600, "comments": "both"},
    "3": {"demonstrations": 20, "policy_steps": 2000, "comments": "both"},
    "4": {"demonstrations": 40, "policy_steps": 2000, "comments": "both"},
    "5": {"demonstrations": 80, "policy_steps": 2000, "comments": "both"},
    "6": {"demonstrations": 160, "policy_steps": 2000, "comments": "both"},
}
"""Of the gate on the taxi, in order."""

Records = Mapping[int, Mapping[str, Any]]
"""By seed and arm."""


def seed_of(name: str, world: World, number: int, updates: int | None = None) -> Seed:
    """One seed, in the folders of this experiment."""
    return Seed(name, world, number, RESULTS, DATA, RECORDS, updates)


def percent(share: float) -> str:
    """A share for a table."""
    return f"{100 * share:.1f}"


# --------------------------------------------------------------------------------------------------------------- gate


def run_gate(name: str, world: World, seeds: Sequence[int]) -> None:
    """Print whether the pair's policy follows its teacher's comments."""
    gates = {seed: seed_of(name, world, seed).gate() for seed in seeds}
    print("\n".join(gate_table(gates)))


def gate_table(gates: Mapping[int, Gate]) -> list[str]:
    """The figures of each seed, and the decision on their means."""
    lines = ["| seed | exactly as told | teacher's comments | on other states |", "|---|---|---|---|"]
    mean = mean_gate([*gates.values()])
    for label, gate in [*((str(seed), gate) for seed, gate in gates.items()), ("mean", mean)]:
        cells = (percent(share) for share in (gate.exact, gate.teacher, gate.elsewhere))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    needed = f"{FOLLOWS:g} of exact is {percent(FOLLOWS * mean.exact)}, and a fall of {percent(FALLS)} points"
    return [*lines, "", f"The gate {'holds' if mean.holds else 'fails'}: it takes {needed}."]


# -------------------------------------------------------------------------------------------------------------- pilot


def run_pilot(name: str, world: World, seeds: Sequence[int], rates: Sequence[str]) -> None:
    """Train the two arms of the primary comparison for long, and print what fixes the size of the comparison."""
    for rate in rates:
        piloted = replace(world, rl=f"{world.rl} --learning-rate {rate}", updates=world.pilot_updates)
        records: dict[int, dict[str, Any]] = {}
        for number in seeds:
            seed = seed_of(f"{name}-pilot-{rate}", piloted, number)
            for arm in PILOT_ARMS:
                seed.train(arm)
            records[number] = {arm: seed.record(arm) for arm in PILOT_ARMS}
        print(f"\nLearning rate {rate}\n")
        print("\n".join(pilot_table(records)))


def pilot_table(records: Records) -> list[str]:
    """Each point of the curves: the arms' means, the deviation of their difference between seeds, and the number of
    seeds that it takes.
    """
    lines = [f"| episodes | {' | '.join(PILOT_ARMS)} | deviation of the difference | seeds needed |"]
    lines.append("|---|---|---|---|---|")
    curves = {arm: [record[arm]["curve"] for record in records.values()] for arm in PILOT_ARMS}
    for points in zip(*curves["plain"], *curves["pair"], strict=True):
        plain, pair = points[: len(records)], points[len(records) :]
        gaps = [ours[1] - theirs[1] for ours, theirs in zip(pair, plain, strict=True)]
        deviation = stdev(gaps) if len(gaps) > 1 else float("nan")
        needed = seeds_needed(deviation) if len(gaps) > 1 else None
        means = " | ".join(percent(fmean(point[1] for point in arm)) for arm in (plain, pair))
        lines.append(f"| {plain[0][0]} | {means} | {percent(deviation)} | {needed or '-'} |")
    needed = f"{percent(SOUGHT)} points are seen with a power of {POWER:g}"
    return [*lines, "", f"Seeds needed so that a difference of {needed}."]


# -------------------------------------------------------------------------------------------------------------- table


def read_records(name: str) -> dict[int, dict[str, Any]]:
    """What is kept of a world."""
    records: dict[int, dict[str, Any]] = {}
    for path in sorted((RECORDS / name).glob("*/*.json"), key=lambda path: (int(path.parent.name), path.name)):
        records.setdefault(int(path.parent.name), {})[path.stem] = read_json(path)
    return records


def complete(records: Records) -> dict[int, Mapping[str, Any]]:
    """The seeds with all arms. Ends the program if arms had not the same data, updates, code or processor."""
    whole = {}
    for seed, arms in records.items():
        if set(ARMS) <= set(arms):
            if names := unequal([arms[arm] for arm in EQUAL]):
                sys.exit(f"seed {seed}: the arms differ in {', '.join(names)}; they are not compared")
            whole[seed] = arms
    return whole


def end_of(arm: str, records: Records) -> list[dict[str, float]]:
    """The success of an arm after RL, by problem, of each seed."""
    return [outcomes_of(arms[arm]["played"][arm]) for arms in records.values()]


def table(world: World, records: Records) -> list[str]:
    """Success of each player, costs of each arm, the comparisons, and the word of the rule."""
    players: dict[str, dict[int, float]] = {}
    for seed, arms in records.items():
        for record in arms.values():
            for player, success in record["success"].items():
                players.setdefault(player, {})[seed] = success
    lines = ["| player | success, % | seeds |", "|---|---|---|"]
    for player, by_seed in players.items():
        each = " · ".join(f"{seed}: {percent(success)}" for seed, success in by_seed.items())
        lines.append(f"| {player} | {percent(fmean(by_seed.values()))} | {each} |")
    lines += ["", *costs(records)]
    whole = complete(records)
    if not whole:
        return [*lines, "", "No seed is complete."]
    lines += ["", f"Complete seeds: {len(whole)} of {world.seeds}", ""]
    lines += ["| first − second | points | 95 % interval | p |", "|---|---|---|---|"]
    primary = compare(*(end_of(arm, whole) for arm in PRIMARY))
    lines.append(row("**pair − plain**", primary))
    areas = {arm: [{"area": area(arms[arm]["curve"])} for arms in whole.values()] for arm in PRIMARY}
    lines.append(row("pair − plain, area below the curve", compare(*areas.values())))
    for first, second in SECONDARY:
        lines.append(row(f"{first} − {second}", compare(end_of(first, whole), end_of(second, whole))))
    word = verdict(primary, world.seeds)
    if word == "helps":
        longer = compare(end_of("pair", whole), end_of("longer", whole))
        word += ", also at equal tokens" if longer.low > 0 else "; not shown at equal tokens"
    lines += ["", f"A frozen reflector, by the rule: {word}."]
    gaps = [fmean(ours.values()) - fmean(theirs.values()) for ours, theirs in _ends(whole)]
    if len(gaps) > 1:
        chance = power(stdev(gaps), len(gaps))
        lines.append(
            f"Deviation between seeds: {percent(stdev(gaps))} points; power for {percent(SOUGHT)}: {chance:.2f}"
        )
    return lines


def _ends(records: Records) -> list[tuple[dict[str, float], dict[str, float]]]:
    return list(zip(*(end_of(arm, records) for arm in PRIMARY), strict=True))


def row(name: str, found: Difference) -> str:
    """A comparison as a row."""
    return f"| {name} | {percent(found.difference)} | {percent(found.low)} to {percent(found.high)} | {found.p:.3g} |"


def costs(records: Records) -> list[str]:
    """Means over seeds of what each arm took."""
    lines = ["| arm | demonstrations | SFT updates | RL updates | episodes | tokens | processor seconds | code |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for arm in ARMS:
        made = [arms[arm] for arms in records.values() if arm in arms]
        if made:
            facts = [f"{fmean(record[name] for record in made):,.0f}" for name in _COUNTED]
            sums = [f"{fmean(sum(record[name].values()) for record in made):,.0f}" for name in _SUMMED]
            codes = ", ".join(sorted({record["code"] for record in made}))
            lines.append(f"| {arm} | {' | '.join([*facts, *sums])} | {codes} |")
    return lines


_COUNTED = ("demonstrations", "sft_updates", "updates", "episodes")
_SUMMED = ("tokens", "processor_seconds")


# --------------------------------------------------------------------------------------------------------------- main


def stop_after(minutes: float) -> None:
    """Stop as with Ctrl-C after so many minutes."""

    def stop(number: int, frame: object) -> None:
        print(f"{minutes:g} minutes are over; the same command goes on", flush=True)
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)


def run(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m research.claim", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--world", choices=WORLDS, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", help="default: of the comparison 1, 2, … as many as it needs")
    parser.add_argument("--arms", choices=ARMS, nargs="+", default=[*ARMS], help="default: all")
    parser.add_argument("--gate", action="store_true", help="only the gate, on its own seeds")
    parser.add_argument(
        "--try", dest="attempt", choices=MORE_TRIES, help="with --gate, another way to train the policy"
    )
    parser.add_argument("--pilot", action="store_true", help="only the pilot, on its own seeds")
    parser.add_argument("--rates", nargs="+", default=PILOT_RATES, help="with --pilot, learning rates of RL")
    parser.add_argument("--table", action="store_true", help="run nothing; print what the kept results say")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so many; the same command goes on")
    given = parser.parse_args(arguments)
    name, world = given.world, WORLDS[given.world]
    if given.minutes:
        stop_after(given.minutes)
    if given.table:
        print("\n".join(table(world, {seed: arms for seed, arms in read_records(name).items() if _asked(given, seed)})))
    elif given.gate:
        tried = replace(world, **MORE_TRIES[given.attempt]) if given.attempt else world
        run_gate(f"{name}-gate{given.attempt or ''}", tried, given.seeds or GATE_SEEDS)
    elif given.pilot:
        run_pilot(name, world, given.seeds or PILOT_SEEDS, given.rates)
    else:
        print(f"code {code_digest()}", flush=True)
        for number in given.seeds or range(1, world.seeds + 1):
            seed = seed_of(name, world, number)
            if not seed.kept(UNTRAINED):
                seed.gate()
            for arm in given.arms:
                seed.train(arm)


def _asked(given: argparse.Namespace, seed: int) -> bool:
    return not given.seeds or seed in given.seeds


if __name__ == "__main__":
    run()
