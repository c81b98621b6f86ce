"""Rows of results: what the tables need of an episode, a player's figures, and a difference between two players.

Each is a frozen type. The JSON forms are those of episodes.jsonl and eval.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from typing_extensions import override

RETURN = "return"
"""The name of the return, where a figure is named."""
ABORTED = "aborted"
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with the ends of its 95 % interval, which are None where they are unknown."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, mean: float, interval: tuple[float, float]) -> Self:
        """The estimate with this interval, whose infinite ends are unknown: JSON has no infinity."""
        low, high = (end if math.isfinite(end) else None for end in interval)
        return cls(mean, low, high)

    @classmethod
    def from_json(cls, row: Json, name: str) -> Self:
        """The estimate `name` in a row that has its ends as NAME_low and NAME_high."""
        return cls(row[name], row[f"{name}_low"], row[f"{name}_high"])

    def to_json(self, name: str) -> dict[str, float | None]:
        """Its three numbers by name, as `from_json` reads them."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


# ------------------------------------------------------------------------------------------------------------ episodes


@dataclass(frozen=True, slots=True)
class TurnCounts:
    """Counts over the turns of episodes."""

    turns: int = 0
    comments: int = 0
    """Turns that have a comment."""
    words: int = 0
    """Words of the comments."""
    illegal: int = 0
    """Turns whose answer was not a legal action, or whose action or calls the env refused."""
    unreadable: int = 0
    """Turns whose answer was not in the required form."""
    tokens: int = 0
    """Tokens that the policy wrote."""
    thoughts: int = 0
    """Those of them that are reasoning."""
    cut: int = 0
    """Turns whose answer reached the limit of its length."""

    @classmethod
    def of(cls, turns: Iterable[Json]) -> Self:
        """The counts of the turns of a line of episodes.jsonl."""
        return cls.total(cls._of_turn(turn) for turn in turns)

    @classmethod
    def _of_turn(cls, turn: Json) -> Self:
        comment = turn.get("reflection")
        is_unreadable = bool(turn.get("unreadable"))
        is_refused = bool(turn.get("info", {}).get("refused")) and not is_unreadable
        return cls(
            turns=1,
            comments=comment is not None,
            words=len(comment.split()) if comment is not None else 0,
            illegal=bool(turn.get("illegal")) or is_refused,
            unreadable=is_unreadable,
            tokens=turn.get("tokens", 0),
            thoughts=turn.get("thoughts", 0),
            cut=bool(turn.get("cut")),
        )

    @classmethod
    def total(cls, counts: Iterable[Self]) -> Self:
        """Their sum."""
        totals = dict.fromkeys((each.name for each in fields(cls)), 0)
        for count in counts:
            for name in totals:
                totals[name] += getattr(count, name)
        return cls(**totals)


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """What the tables need of a line of episodes.jsonl."""

    name: str
    """The player's."""
    level: str
    task: str
    cluster: str
    """What the task is about; tasks of one cluster are not independent. By default the task itself."""
    status: str
    success: bool | None
    """None if the env does not report it."""
    total_return: float
    counts: TurnCounts = TurnCounts()
    env: str = ""
    reason: str | None = None
    """Why it ended early or was aborted."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """The env's and our own."""
    aspects: Mapping[str, Any] = field(default_factory=dict)
    """Properties of its task, by which success is broken down."""
    forecasts: Mapping[str, list[list[float]]] = field(default_factory=dict)
    """The numbers of its forecasts, by what is foretold."""
    first_value: float | None = None
    """The critic's value of its first state."""
    unfit: bool = False
    """Whether it ended because no answer was a legal action."""
    illegal_at_end: bool = False
    """Whether an answer at that end was not a legal action."""
    unreadable_at_end: bool = False
    """Whether one was not in the required form."""
    price_usd: float | None = 0.0
    """The cost of the player's requests; None if a price is unknown."""

    @classmethod
    def read(cls, line: Json) -> Self:
        """The row of a line of episodes.jsonl."""
        return cls(
            name=line["name"],
            level=line["level"],
            task=line["task"],
            cluster=str(line.get("cluster") or line["task"]),
            status=line["status"],
            success=line.get("success"),
            total_return=line["return"],
            counts=TurnCounts.of(line.get("turns", ())),
            env=line.get("env", ""),
            reason=line.get("reason"),
            figures=line.get("figures", {}),
            aspects=line.get("aspects", {}),
            forecasts=line.get("forecasts", {}),
            first_value=line.get("first_value"),
            unfit=bool(line.get("unfit")),
            illegal_at_end=bool(line.get("illegal")),
            unreadable_at_end=bool(line.get("unreadable")),
            price_usd=line.get("price_usd", 0.0),
        )

    @property
    def is_aborted(self) -> bool:
        """Whether it was aborted, and counts for nothing."""
        return self.status == ABORTED

    @property
    def outcome(self) -> tuple[Any, ...]:
        """How it went, as far as its end shows."""
        return self.level, self.task, self.success, self.total_return, self.counts.turns


# ------------------------------------------------------------------------------------------------------------- players


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Forecasts of about the same confidence."""

    confidence: float
    """The mean of their probabilities."""
    hits: float
    """The share of them that came true, with its 95 % interval."""
    low: float
    high: float
    forecasts: int
    """How many there are."""


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """How far probabilities can be trusted."""

    forecasts: int
    clusters: int
    confidence: float
    """The mean probability of what was foretold."""
    hits: float
    """How often that came true."""
    brier: Estimate
    log_score: Estimate
    """In nats."""
    calibration_error: Estimate
    """The expected calibration error."""
    bins: tuple[ReliabilityBin, ...]

    def to_json(self) -> dict[str, Any]:
        """As eval.json has it."""
        return {
            "forecasts": self.forecasts,
            "clusters": self.clusters,
            "confidence": self.confidence,
            "hits": self.hits,
            **self.brier.to_json("brier"),
            **self.log_score.to_json("log_score"),
            **self.calibration_error.to_json("calibration_error"),
            "bins": [asdict(each) for each in self.bins],
        }

    @classmethod
    def from_json(cls, row: Json) -> Self:
        """The row that `to_json` wrote."""
        return cls(
            row["forecasts"],
            row["clusters"],
            row["confidence"],
            row["hits"],
            Estimate.from_json(row, "brier"),
            Estimate.from_json(row, "log_score"),
            Estimate.from_json(row, "calibration_error"),
            tuple(ReliabilityBin(**each) for each in row["bins"]),
        )


@dataclass(frozen=True, slots=True)
class PlayerRow:
    """A player's figures at a level. Shares are from 0 to 1; aborted episodes are only counted."""

    name: str
    env: str
    level: str
    success: Estimate | None
    """The mean over distinct tasks, by clusters of tasks; None if the env does not report it."""
    tasks: int
    clusters: int
    episodes: int
    aborted: int
    total_return: Estimate
    """The same, with a t interval, which is unknown for fewer than two clusters or equal returns."""
    steps: float
    illegal_share: float
    """Of the turns, those whose answer was not a legal action, or whose action or calls the env refused (in taxi: a
    wall, or an impossible pickup or drop-off, which is fatal).
    """
    unreadable_share: float
    """Of the turns, those whose answer was not in the required form, so that no action could be read."""
    price_usd: float | None
    """The cost of the player's requests, including those answered from the journal; 0 for local players, None if a
    price is unknown.
    """
    reflection_words: float | None
    """Words of a comment; None without comments."""
    tokens: float
    """Tokens that the policy wrote in an episode."""
    thoughts: float
    """Those of them that are reasoning."""
    figures: Mapping[str, Estimate]
    """The env's, and our own."""
    named_episodes: int | None = None
    """How many episodes gave an answer, if the env reports that."""
    right_of_named: Estimate | None = None
    """Their success."""
    calibration: Mapping[str, CalibrationRow] = field(default_factory=dict)
    """By what is foretold."""
    pass_at: Mapping[int, Estimate] = field(default_factory=dict)
    """pass@k by k, if problems were played several times."""
    pass_all: Mapping[int, Estimate] = field(default_factory=dict)
    """pass^k by k."""
    by_seed: tuple[float, ...] | None = None
    """The success of each of several evaluations, if they report it."""

    def to_json(self) -> dict[str, Any]:
        """As eval.json has it: what is unknown is None, and what there is none of is left out."""
        success = Estimate(0.0, None, None) if self.success is None else self.success
        # 1. What all have
        row: dict[str, Any] = {
            "name": self.name,
            "env": self.env,
            "level": self.level,
            "success": None if self.success is None else success.mean,
            "low": success.low,
            "high": success.high,
            "tasks": self.tasks,
            "clusters": self.clusters,
            "episodes": self.episodes,
            "aborted": self.aborted,
            **self.total_return.to_json(RETURN),
            "steps": self.steps,
            "illegal_share": self.illegal_share,
            "unreadable_share": self.unreadable_share,
            "price_usd": self.price_usd,
            "reflection_words": self.reflection_words,
            "tokens": self.tokens,
            "thoughts": self.thoughts,
            "figures": {name: asdict(figure) for name, figure in self.figures.items()},
        }

        # 2. What some have
        if self.named_episodes is not None and self.right_of_named is not None:
            row["named_episodes"] = self.named_episodes
            row |= self.right_of_named.to_json("right_of_named")
        if self.calibration:
            row["calibration"] = {
                kind: scores.to_json() for kind, scores in self.calibration.items()
            }
        for kind, by_k in (("pass_at", self.pass_at), ("pass_all", self.pass_all)):
            for k, chance in by_k.items():  # a table by k for the mean and for each end
                for name, value in chance.to_json(kind).items():
                    row.setdefault(name, {})[str(k)] = value
        if self.by_seed is not None:
            row["by_seed"] = list(self.by_seed)
        return row

    @classmethod
    def from_json(cls, row: Json) -> Self:
        """The row that `to_json` wrote."""
        # 1. What some have
        success = None
        if row["success"] is not None:
            success = Estimate(row["success"], row["low"], row["high"])
        has_named = "named_episodes" in row
        passes: dict[str, dict[int, Estimate]] = {"pass_at": {}, "pass_all": {}}
        for kind, by_k in passes.items():
            for k, mean in row.get(kind, {}).items():
                by_k[int(k)] = Estimate(mean, row[f"{kind}_low"][k], row[f"{kind}_high"][k])
        calibration = row.get("calibration", {})

        # 2. With what all have
        return cls(
            name=row["name"],
            env=row["env"],
            level=row["level"],
            success=success,
            tasks=row["tasks"],
            clusters=row["clusters"],
            episodes=row["episodes"],
            aborted=row["aborted"],
            total_return=Estimate.from_json(row, RETURN),
            steps=row["steps"],
            illegal_share=row["illegal_share"],
            unreadable_share=row["unreadable_share"],
            price_usd=row["price_usd"],
            reflection_words=row["reflection_words"],
            tokens=row["tokens"],
            thoughts=row["thoughts"],
            figures={name: Estimate(**figure) for name, figure in row["figures"].items()},
            named_episodes=row["named_episodes"] if has_named else None,
            right_of_named=Estimate.from_json(row, "right_of_named") if has_named else None,
            calibration={
                kind: CalibrationRow.from_json(scores) for kind, scores in calibration.items()
            },
            by_seed=tuple(row["by_seed"]) if "by_seed" in row else None,
            **passes,
        )

    def to_csv(self) -> dict[str, Any]:
        """As eval.csv has it: the env's figures as columns (env_NAME if the name is taken), and pass@k by k."""
        row = self.to_json()
        columns = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        for name, figure in self.figures.items():
            columns |= figure.to_json(f"env_{name}" if name in row else name)
        for kind in ("pass_at", "pass_all"):
            for end in ("", "_low", "_high"):
                for k, value in row.get(f"{kind}{end}", {}).items():
                    columns[f"{kind}_{k}{end}"] = value
        return columns

    def estimate(self, figure: str) -> Estimate | None:
        """Its success, its return, or a figure of the env; None if it does not have it."""
        if figure == "success":
            return self.success
        return self.total_return if figure == RETURN else self.figures.get(figure)


# --------------------------------------------------------------------------------------------------------- differences


@dataclass(frozen=True)
class Difference:
    """A paired difference between two players: the first minus the second, over the tasks that both finished."""

    figure: str
    """success, the return, or a figure of the env."""
    level: str
    first: str
    second: str
    difference: float
    low: float | None
    """The ends of the 95 % interval; None if they are unknown."""
    high: float | None
    p: float
    """Of this single comparison, two-sided."""
    tasks: int
    clusters: int

    @property
    def label(self) -> str:
        """What a table calls it."""
        return f"{self.first} − {self.second}"

    @property
    def excludes_zero(self) -> bool:
        """Whether its interval does."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def to_json(self) -> dict[str, Any]:
        """As eval.json has it."""
        return asdict(self)


@dataclass(frozen=True)
class AblationEffect(Difference):
    """The difference between an arm of a recipe and the same arm without something."""

    ablation: str
    """What it is without."""

    @property
    @override
    def label(self) -> str:
        return self.ablation

    @override
    def to_json(self) -> dict[str, Any]:
        return {"ablation": self.ablation} | asdict(self)
