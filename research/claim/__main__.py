"""claim: the paper's claim, tested as it was made; see research/experiments/claim.md. Run from the repository's root:

    python -m research.claim --world taxi --gate
    python -m research.claim --world taxi --pilot
    python -m research.claim --world taxi --seeds 1 2 3
    python -m research.claim --world taxi --table
    python -m research.claim --world taxi --figure claim.png

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
from research.claim.arms import (
    ARMS,
    UNTRAINED,
    Records,
    Seed,
    code_digest,
    end_of,
    gate_of,
    unequal,
)
from research.claim.figure import draw
from research.claim.verdict import (
    FALLS,
    FOLLOWS,
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
from research.claim.worlds import WORLDS, World, has_gpu

RESULTS, DATA, RECORDS = Path("results/claim"), Path("data/claim"), Path("research/experiments/claim")
PILOT_ARMS = ("plain", "pair")
RISE, MOST = 0.1, 0.8
"""Of the plain policy in the pilot: in points of success, and of its whole rise."""
UNEQUAL = "longer"
"""The arm that has more updates and episodes than the others."""


def seed_of(name: str, world: World, number: int) -> Seed:
    """One seed, in the folders of this experiment."""
    return Seed(name, world, number, RESULTS, DATA, RECORDS)


def percent(share: float) -> str:
    """A share for a table."""
    return f"{100 * share:.1f}"


# --------------------------------------------------------------------------------------------------------------- gate


def passed(name: str, world: World) -> World:
    """The world as the first try changes it whose policy follows its teacher's comments. Runs what is missing of the
    gate, and ends the program if it cannot be passed.
    """
    if not world.gate_seeds:
        return world
    for number, changes in enumerate(world.tries, 1):
        tried = replace(world, **changes)
        gates = {}
        for seed in world.gate_seeds:
            place = seed_of(f"{name}-gate-{number}", tried, seed)
            gates[seed] = gate_of(place.record(UNTRAINED)) if place.kept(UNTRAINED) else place.gate()
        print("\n".join(["", f"Try {number}: {dict(changes)}", "", *gate_table(gates)]), flush=True)
        if mean_gate([*gates.values()]).holds:
            return tried
    sys.exit("the gate is not passed by any try; the pair is not compared")


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


def sized(name: str, world: World) -> World:
    """The world with the learning rate, the updates and the number of seeds that the pilot fixes. Runs what is missing
    of it, and ends the program if RL does not raise the plain policy enough.
    """
    if not world.pilot_seeds:
        return world
    last: dict[str, float] = {}
    piloted: dict[str, tuple[World, dict[int, Mapping[str, Any]]]] = {}
    for rate in world.rates:
        trial = replace(world, rate=rate, updates=world.pilot_updates)
        records: dict[int, Mapping[str, Any]] = {}
        for number in world.pilot_seeds:
            seed = seed_of(f"{name}-pilot-{rate}", trial, number)
            for arm in PILOT_ARMS:
                seed.train(arm)
            records[number] = {arm: seed.record(arm) for arm in PILOT_ARMS}
        print("\n".join(["", f"Learning rate {rate}", "", *pilot_table(records)]), flush=True)
        last[rate] = fmean(record[arm]["curve"][-1][1] for record in records.values() for arm in PILOT_ARMS)
        piloted[rate] = trial, records
    trial, records = piloted[max(world.rates, key=last.__getitem__)]
    found = size_of(trial, records)
    if found is None:
        sys.exit("RL does not raise the plain policy by 10 points: no comparison of this size can be made")
    print(f"\nThe comparison: rate {found.rate}, {found.updates} updates, {found.seeds} seeds", flush=True)
    return found


def curves_of(records: Records) -> dict[str, dict[float, list[float]]]:
    """Success of each arm on the validation problems, by the episodes so far: of each seed."""
    curves: dict[str, dict[float, list[float]]] = {}
    for arm in PILOT_ARMS:
        points = curves.setdefault(arm, {})
        for record in records.values():
            for episodes, success in record[arm]["curve"]:
                points.setdefault(episodes, []).append(success)
    return curves


def size_of(world: World, records: Records) -> World | None:
    """The fewest updates after which the plain policy has risen by `RISE` and by `MOST` of its rise in the pilot, and
    the seeds that the difference takes there; None if it never rises so.
    """
    plain, pair = curves_of(records).values()
    start, *_, end = (fmean(successes) for successes in plain.values())
    begin = world.taught * world.episodes
    for place in pair:
        rise = fmean(plain[place]) - start
        if place > begin and rise >= RISE and rise >= MOST * (end - start):
            gaps = [ours - theirs for ours, theirs in zip(pair[place], plain[place], strict=True)]
            seeds = seeds_needed(stdev(gaps)) or world.most_seeds
            updates = round((place - begin) / world.episodes)
            seeds = max(world.fewest_seeds, min(seeds, world.most_seeds))
            return replace(world, updates=updates, seeds=seeds)
    return None


def pilot_table(records: Records) -> list[str]:
    """Each point of the curves: the arms' means, the deviation of their difference between seeds, and the number of
    seeds that it takes.
    """
    lines = [f"| episodes | {' | '.join(PILOT_ARMS)} | deviation of the difference | seeds needed |"]
    lines.append("|---|---|---|---|---|")
    plain, pair = curves_of(records).values()
    for place, successes in plain.items():
        cells = [percent(fmean(successes)), "", "", ""]
        if place in pair:
            deviation = stdev(ours - theirs for ours, theirs in zip(pair[place], successes, strict=True))
            cells[1:] = [percent(fmean(pair[place])), percent(deviation), str(seeds_needed(deviation) or "over 40")]
        lines.append(f"| {place} | {' | '.join(cells)} |")
    return lines


# -------------------------------------------------------------------------------------------------------------- table


def read_records(name: str) -> dict[int, dict[str, Any]]:
    """What is kept of a world."""
    records: dict[int, dict[str, Any]] = {}
    for path in sorted((RECORDS / name).glob("*/*.json"), key=lambda path: (int(path.parent.name), path.name)):
        records.setdefault(int(path.parent.name), {})[path.stem] = read_json(path)
    return records


def complete(records: Records, world: World) -> dict[int, Mapping[str, Any]]:
    """The seeds with all arms. Ends the program if arms had not the same data, updates, code or processor."""
    whole = {}
    for seed, arms in records.items():
        if set(world.arms) <= set(arms):
            if names := unequal([arms[arm] for arm in world.arms if arm != UNEQUAL]):
                sys.exit(f"seed {seed}: the arms differ in {', '.join(names)}; they are not compared")
            whole[seed] = arms
    return whole


def needed_seeds(whole: Records, world: World) -> int:
    """How many seeds the comparison takes: as many as the records of the complete ones say, and at least the world's
    fewest.
    """
    first, _ = world.primary
    counts: list[int] = [arms[first]["seeds_needed"] for arms in whole.values()]
    return max(world.fewest_seeds, *counts)


def table(records: Records, world: World) -> list[str]:
    """Success of each player, costs of each arm, and, when all seeds are complete, the comparisons and the word of the
    rule.
    """
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
    whole = complete(records, world)
    if not whole:
        return [*lines, "", "No seed is complete."]
    first, second = world.primary
    needed = needed_seeds(whole, world)
    lines += ["", f"Complete seeds: {len(whole)} of {needed}", ""]
    if len(whole) < needed:
        return [*lines, "Nothing is compared before all are complete."]
    lines += ["| first − second | points | 95 % interval | p |", "|---|---|---|---|"]
    ends = [end_of(arm, whole) for arm in world.primary]
    primary = compare(*ends)
    lines.append(row(f"**{first} − {second}**", primary))
    begin = max(arms[arm]["curve"][0][0] for arms in whole.values() for arm in world.primary)
    areas = [[{"area": area(arms[arm]["curve"], begin)} for arms in whole.values()] for arm in world.primary]
    lines.append(row(f"{first} − {second}, area below the curve", compare(*areas)))
    for one, other in world.secondary:
        lines.append(row(f"{one} − {other}", compare(end_of(one, whole), end_of(other, whole))))
    word = verdict(primary)
    if word == "helps" and UNEQUAL in world.arms:
        longer = compare(end_of(first, whole), end_of(UNEQUAL, whole))
        word += ", also at equal tokens" if longer.low > 0 else "; not shown at equal tokens"
    lines += ["", f"A frozen reflector, by the rule: {word}."]
    gaps = [fmean(ours.values()) - fmean(theirs.values()) for ours, theirs in zip(*ends, strict=True)]
    if len(gaps) > 1:
        chance = power(stdev(gaps), len(gaps))
        lines.append(
            f"Deviation between seeds: {percent(stdev(gaps))} points; power for {percent(SOUGHT)}: {chance:.2f}"
        )
    return lines


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
    parser.add_argument("--arms", choices=ARMS, nargs="+", help="default: all of the world")
    parser.add_argument("--gate", action="store_true", help="only the gate, on its own seeds")
    parser.add_argument("--pilot", action="store_true", help="only the gate and the pilot, on seeds of their own")
    parser.add_argument("--table", action="store_true", help="run nothing; print what the kept results say")
    parser.add_argument("--figure", type=Path, help="run nothing; draw the kept results into this .png or .svg")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so many; the same command goes on")
    given = parser.parse_args(arguments)
    name, world = given.world, WORLDS[given.world]
    if others := set(given.arms or ()) - set(world.arms):
        parser.error(f"--arms {' '.join(sorted(others))}: {name} has {', '.join(world.arms)}")
    if given.minutes:
        stop_after(given.minutes)
    if given.table:
        records = read_records(name)
        print("\n".join(table({seed: records[seed] for seed in given.seeds or records}, world)))
        return
    if given.figure:
        whole = complete(read_records(name), world)
        if not whole or len(whole) < needed_seeds(whole, world):
            sys.exit("nothing is drawn before all seeds are complete; --table shows what there is")
        draw(whole, world, given.figure)
        return
    print(f"code {code_digest()}", flush=True)
    world = passed(name, world)
    if given.gate:
        return
    has_rl = world.on_cpu or has_gpu()
    if has_rl:
        world = sized(name, world)
    if given.pilot:
        return
    for number in given.seeds or range(1, world.seeds + 1):
        seed = seed_of(name, world, number)
        if "pair" in world.arms and not seed.kept(UNTRAINED):
            seed.gate()
        seed.play_sft()
        for arm in (given.arms or world.arms) if has_rl else ():
            seed.train(arm)
    if not has_rl:
        print("RL of this world takes a GPU; the gate and SFT are done")


if __name__ == "__main__":
    run()
