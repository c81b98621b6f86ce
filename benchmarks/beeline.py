"""BeelineBench's own harness, unchanged, against policies trained here, on trials 1 to N of a domain.

The policy answers in this process the question that the harness would send to `reflectkit serve` in System One's
protocol. Results are kept, one line a trial, so a stopped run goes on where it was.

    pip install 'reflectkit[beeline]'
    python -m benchmarks.beeline play tiles sft=results/tiles/sft rl=results/tiles/rl
    python -m benchmarks.beeline compare tiles sft rl

The second compares two players of the same trials.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from beelinebench import api
from beelinebench.run import Record, geometric_mean, read
from scipy import stats

from reflectkit.integrations.agent import LoadedAgent, load_agent
from reflectkit.jsonl import dumps

FOLDER = Path("results/beeline")
"""Where the harness writes its results and traces."""
TRIALS = 100


def question_text(question: api.Question) -> str:
    """The question as System One's protocol sends it and a server here reads it."""
    state = {"task": question.task, "goal": question.goal, "context": question.context}
    return f"{dumps(state)}\n{question.instructions}"


def decider(agent: LoadedAgent) -> Callable[[api.Question], Sequence[float]]:
    """The function that the harness asks: the probability of each option."""

    def decide(question: api.Question) -> Sequence[float]:
        act = agent.act(question_text(question), question.options)
        assert act.probabilities is not None
        return act.probabilities

    return decide


def play(domain: str, name: str, policy: str, trials: int) -> str:
    """Play the trials with one policy. Returns a line with its score."""
    with load_agent(policy) as agent:
        (row,) = api.evaluate(decider(agent), name=name, trials=trials, domains=[domain], project=FOLDER)
    solved = f"{row['coverage']:.0%} solved"
    players = f"heuristic {row['baseline_score']:.3f}, oracle {row['oracle_score']:.3f}"
    return f"{domain} {name}: {row['score']:.3f} ({row['low']:.3f} to {row['high']:.3f}), {solved}; {players}"


def records(domain: str, name: str) -> dict[int, Record]:
    """The results of a player, by trial."""
    (path,) = FOLDER.glob(f"results/*/{name}/{domain}.*.jsonl")
    return {record.trial: record for record in read(path)}


def ratio(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """How many times the first geometric mean is the second, with the ends of the 95 % interval by Student's t over the
    trials' log ratios.
    """
    logs = [math.log(one / other) for one, other in zip(first, second, strict=True)]
    mean = sum(logs) / len(logs)
    half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def compare(domain: str, first: str, second: str) -> str:
    """A line that compares two players on the trials that both have played."""
    one, other = records(domain, first), records(domain, second)
    trials = sorted(one.keys() & other.keys())
    scores, others = ([player[trial].score for trial in trials] for player in (one, other))
    times, low, high = ratio(scores, others)
    means = f"{first} {geometric_mean(scores):.3f}, {second} {geometric_mean(others):.3f}"
    return f"{domain}, {len(trials)} trials: {means}; {first} / {second} = {times:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    playing = commands.add_parser("play", help="play trials with the harness")
    playing.add_argument("domain")
    playing.add_argument("players", nargs="+", help="NAME=CHECKPOINT or NAME=RUN")
    playing.add_argument("--trials", type=int, default=TRIALS, help=f"trials 1 to N; default: {TRIALS}")
    comparing = commands.add_parser("compare", help="compare two players on the same trials")
    comparing.add_argument("domain")
    comparing.add_argument("first")
    comparing.add_argument("second")
    given = parser.parse_args()
    if given.command == "compare":
        print(compare(given.domain, given.first, given.second))
        return
    for player in given.players:
        name, _, policy = player.partition("=")
        print(play(given.domain, name, policy, given.trials), flush=True)


if __name__ == "__main__":
    main()
