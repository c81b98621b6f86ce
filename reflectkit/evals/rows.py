"""Rows of results: an episode, the figures of a player, and a difference between two players.

Each is a frozen type. Its JSON form is a line of episodes.jsonl, or an entry of eval.json.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from typing_extensions import override

RETURN = "return"
"""The name of the return among the names of figures."""
ABORTED = "aborted"
"""The status of an aborted episode."""
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float | None
    """Lower end of the interval; None if unknown."""
    high: float | None
    """Upper end of the interval; None if unknown."""

    @classmethod
    def of(cls, mean: float, interval: tuple[float, float]) -> Self:
        """The estimate with this interval. An infinite end becomes None: JSON has no infinity."""
        low, high = (end if math.isfinite(end) else None for end in interval)
        return cls(mean, low, high)

    @classmethod
    def from_json(cls, row: Json, name: str) -> Self:
        """The estimate in the entries NAME, NAME_low and NAME_high of `row`."""
        return cls(row[name], row[f"{name}_low"], row[f"{name}_high"])

    def to_json(self, name: str) -> dict[str, float | None]:
        """The entries NAME, NAME_low and NAME_high of a row."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


# ----------------------------------------------------------------------------------------- episodes


@dataclass(frozen=True, slots=True)
class TurnCounts:
    """Counts of turns, and of what was written in them."""

    turns: int = 0
    comments: int = 0
    """Turns with a comment."""
    words: int = 0
    """Words of all comments."""
    illegal: int = 0
    """Turns whose answer was not a legal action, or whose action or calls the env refused."""
    unreadable: int = 0
    """Turns whose answer was not in the required form."""
    tokens: int = 0
    """Tokens that the policy wrote."""
    thoughts: int = 0
    """Tokens of reasoning among them."""
    cut: int = 0
    """Turns whose answer was cut off at the maximum length."""

    @classmethod
    def of(cls, turns: Iterable[Json]) -> Self:
        """The counts of the `turns` in a line of episodes.jsonl."""
        return cls.total(cls._of_turn(turn) for turn in turns)

    @classmethod
    def _of_turn(cls, turn: Json) -> Self:
        """The counts of one turn."""
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
        """The sums of these counts."""
        sums = {count_field.name: 0 for count_field in fields(cls)}
        for count in counts:
            for name in sums:
                sums[name] += getattr(count, name)
        return cls(**sums)


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """The part of a line of episodes.jsonl that the tables need."""

    name: str
    """The player's name."""
    level: str
    task: str
    """The task's id."""
    cluster: str
    """What the task is about, by default the task itself. Tasks of one cluster are not independent.
    """
    status: str
    success: bool | None
    """None if the env does not report success."""
    total_return: float
    counts: TurnCounts = TurnCounts()
    env: str = ""
    reason: str | None = None
    """Why the episode ended early or was aborted."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Figures of the env, and our own, by name."""
    inapplicable: Collection[str] = ()
    """Figures that do not apply to the episode, which is left out of their means."""
    aspects: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the task by name. Success is reported for each value of them, too."""
    forecasts: Mapping[str, list[list[float]]] = field(default_factory=dict)
    """Forecasts by the event that they are about, each as `Forecast.numbers`."""
    first_value: float | None = None
    """The critic's value of the first state."""
    unfit: bool = False
    """Whether the episode ended because the player gave no legal action."""
    illegal_at_end: bool = False
    """Whether its last answers, after the last turn, had one that was not a legal action."""
    unreadable_at_end: bool = False
    """Whether its last answers had one that was not in the required form."""
    price_usd: float | None = 0.0
    """The cost of the player's requests in US dollars; None if a price is unknown."""

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
            inapplicable=line.get("inapplicable", ()),
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
        """Whether the episode was aborted. Aborted episodes are in no mean."""
        return self.status == ABORTED

    @property
    def outcome(self) -> tuple[Any, ...]:
        """The result of the episode, equal for two episodes that probably went the same way."""
        return self.level, self.task, self.success, self.total_return, self.counts.turns


# ------------------------------------------------------------------------------------------ players


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Forecasts of about the same probability, and how often they came true."""

    confidence: float
    """The mean probability of the forecasts."""
    hits: float
    """The share of the forecasts that came true."""
    low: float
    """Lower end of the 95 % interval of `hits`."""
    high: float
    """Upper end of the 95 % interval of `hits`."""
    forecasts: int
    """The number of forecasts."""


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """How well forecasts of one kind agree with what happened."""

    forecasts: int
    """The number of forecasts."""
    clusters: int
    """The number of clusters that their tasks come from."""
    confidence: float
    """The mean probability of the events, or of the likeliest options."""
    hits: float
    """The share of them that came true."""
    brier: Estimate
    """The mean Brier score."""
    log_score: Estimate
    """The mean log score, in nats."""
    calibration_error: Estimate
    """The expected calibration error."""
    bins: tuple[ReliabilityBin, ...]

    def to_json(self) -> dict[str, Any]:
        """The row as eval.json has it."""
        return {
            "forecasts": self.forecasts,
            "clusters": self.clusters,
            "confidence": self.confidence,
            "hits": self.hits,
            **self.brier.to_json("brier"),
            **self.log_score.to_json("log_score"),
            **self.calibration_error.to_json("calibration_error"),
            "bins": [asdict(bin_) for bin_ in self.bins],
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
            tuple(ReliabilityBin(**bin_) for bin_ in row["bins"]),
        )


@dataclass(frozen=True, slots=True)
class PlayerRow:
    """A player's figures at a level. Shares are from 0 to 1. Aborted episodes are only counted."""

    name: str
    env: str
    level: str
    success: Estimate | None
    """The mean success rate of the tasks, with an interval by clusters; None if the env does not
    report success.
    """
    tasks: int
    """The number of distinct tasks."""
    clusters: int
    """The number of clusters that the tasks come from."""
    episodes: int
    """The number of episodes, without the aborted ones."""
    aborted: int
    """The number of aborted episodes."""
    total_return: Estimate
    """The mean return of the tasks, with a t interval. The interval is unknown for fewer than two
    clusters, and for equal returns.
    """
    steps: float
    """The mean number of steps in an episode."""
    illegal_share: float
    """Share of turns whose answer was not a legal action, or whose action or calls the env refused.
    In taxi it refuses a wall, and an impossible pickup or drop-off, which is fatal.
    """
    unreadable_share: float
    """Share of turns whose answer was not in the required form. No action could be read from it."""
    price_usd: float | None
    """The cost of the player's requests in US dollars, with those answered from the journal. 0 for
    local players, None if a price is unknown.
    """
    reflection_words: float | None
    """The mean number of words in a comment; None without comments."""
    tokens: float
    """The mean number of tokens that the policy wrote in an episode."""
    thoughts: float
    """The mean number of tokens of reasoning among them."""
    figures: Mapping[str, Estimate]
    """Figures of the env, and our own, by name."""
    named_episodes: int | None = None
    """The number of episodes that gave an answer; None if the env does not report that."""
    right_of_named: Estimate | None = None
    """The success rate of the episodes that gave an answer."""
    calibration: Mapping[str, CalibrationRow] = field(default_factory=dict)
    """Calibration by what was forecast."""
    pass_at: Mapping[int, Estimate] = field(default_factory=dict)
    """pass@k by k, if problems were played several times."""
    pass_all: Mapping[int, Estimate] = field(default_factory=dict)
    """pass^k by k, if problems were played several times."""
    by_seed: tuple[float, ...] | None = None
    """The mean success of each of several evaluations; None for one, or without success."""

    def to_json(self) -> dict[str, Any]:
        """The row as eval.json has it. Unknown values are None, and absent groups are left out."""
        success = Estimate(0.0, None, None) if self.success is None else self.success
        # 1. The entries of every row
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

        # 2. The entries of some rows
        if self.named_episodes is not None and self.right_of_named is not None:
            row["named_episodes"] = self.named_episodes
            row |= self.right_of_named.to_json("right_of_named")
        if self.calibration:
            row["calibration"] = {
                kind: scores.to_json() for kind, scores in self.calibration.items()
            }
        for kind, by_k in (("pass_at", self.pass_at), ("pass_all", self.pass_all)):
            # One object by k for the mean, and one for each end
            for k, chance in by_k.items():
                for name, value in chance.to_json(kind).items():
                    values_by_k = row.setdefault(name, {})
                    values_by_k[str(k)] = value
        if self.by_seed is not None:
            row["by_seed"] = list(self.by_seed)
        return row

    @classmethod
    def from_json(cls, row: Json) -> Self:
        """The row that `to_json` wrote."""
        # 1. The entries of some rows
        success = None
        if row["success"] is not None:
            success = Estimate(row["success"], row["low"], row["high"])
        has_named = "named_episodes" in row
        passes: dict[str, dict[int, Estimate]] = {"pass_at": {}, "pass_all": {}}
        for kind, by_k in passes.items():
            for k, mean in row.get(kind, {}).items():
                by_k[int(k)] = Estimate(mean, row[f"{kind}_low"][k], row[f"{kind}_high"][k])
        calibration = row.get("calibration", {})

        # 2. The entries of every row
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
        """The row as eval.csv has it.

        The env's figures are columns; one whose name is taken is called env_NAME. pass@k and pass^k
        have a column for each k.
        """
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
        """The estimate of success, of the return, or of another figure; None if there is none."""
        if figure == "success":
            return self.success
        if figure == RETURN:
            return self.total_return
        return self.figures.get(figure)


# -------------------------------------------------------------------------------------- differences


@dataclass(frozen=True)
class Difference:
    """A paired difference between two players: the first minus the second.

    It is the mean over the tasks that both finished.
    """

    figure: str
    """The name of the figure: success, return, or a figure of the env."""
    level: str
    first: str
    """Name of the first player."""
    second: str
    """Name of the second player."""
    difference: float
    low: float | None
    """Lower end of the 95 % interval; None if unknown."""
    high: float | None
    """Upper end of the 95 % interval; None if unknown."""
    p: float
    """Two-sided p of this comparison alone."""
    tasks: int
    """The number of tasks that both finished."""
    clusters: int
    """The number of clusters that these tasks come from."""

    @property
    def label(self) -> str:
        """The name of the difference in a table."""
        return f"{self.first} − {self.second}"

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval is known and excludes 0."""
        if self.low is None or self.high is None:
            return False
        return not self.low <= 0 <= self.high

    def to_json(self) -> dict[str, Any]:
        """The difference as eval.json has it."""
        return asdict(self)


@dataclass(frozen=True)
class AblationEffect(Difference):
    """The difference between an arm of a recipe and the same arm without one part of it."""

    ablation: str
    """The name of the part that was left out."""

    @property
    @override
    def label(self) -> str:
        return self.ablation

    @override
    def to_json(self) -> dict[str, Any]:
        return {"ablation": self.ablation} | asdict(self)
