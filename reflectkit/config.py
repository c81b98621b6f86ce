"""Settings as nested, frozen pydantic models, and their flat names: flags, recipe keys and keys of
config.json.

A command's settings are a tree of `Config`s. A leaf of the tree is a setting; its name is a flag of
the command, so no two leaves share a name. `build` makes a tree from values by name, and `flat`
takes it apart again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticUndefined, core_schema

from reflectkit import foreign_names
from reflectkit.errors import ConfigError, DataError, refuse, unknown_name
from reflectkit.jsonl import lone_surrogate

Kind = TypeVar("Kind", bound="Config")
REQUIRED: Any = PydanticUndefined
"""The default of a setting without one."""
MORE = "More settings"
"""The panel of the help with a command's own settings that are not essential."""
LAST = "Every command"
"""The panel of the help with the settings of all commands."""

Rule = tuple[object, str]
"""A contradiction of settings: whether it applies, and what is wrong, with the fix."""


class FromText:
    """A type of settings that is parsed from text; `str` gives the text back."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """What `text` means. Raises ValueError."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        instance = core_schema.is_instance_schema(cls)
        return core_schema.custom_error_schema(
            instance, "text", custom_error_message="Input should be text"
        )


class Config(BaseModel):
    """Settings: fields made by `option`, and further `Config`s.

    Values are checked strictly: "3" is no number.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )

    @classmethod
    def from_flat(cls, **values: Any) -> Self:
        """The tree with these values by their flat names. Raises what `build` raises."""
        return build(cls, values)

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults, by flat name, that follow from the other settings that are given, `values`."""
        return {}

    def contradictions(self) -> Iterable[Rule]:
        """The rules for settings that do not go together. The first that applies is raised as a
        ConfigError.
        """
        return ()

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        for applies, mistake in self.contradictions():
            refuse(applies, mistake)
        return self

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables, by name, that act as settings. They are part of a run's identity,
        and shown first.
        """
        return {}

    @property
    def notes(self) -> list[str]:
        """What to tell before a command begins."""
        return []

    @field_validator("*", mode="before")
    @classmethod
    def _accept(cls, value: Any, info: ValidationInfo) -> Any:
        """Convert text to a path, lists and single texts to a tuple, and a choice's values to its
        own settings.
        """
        # 1. A choice's values become its settings, by the class that the choice decides
        field = cls.model_fields[str(info.field_name)]
        choice = _choice(field)
        if choice is not None:
            settings_class = choice.settings_class(info.data)
            if isinstance(value, settings_class):
                return value
            return settings_class.model_validate(value)

        # 2. A flag that is given once is a list of one
        if get_origin(field.annotation) is tuple:
            values = [value] if isinstance(value, str | Path) else value
            if isinstance(values, list | tuple):
                return tuple(_usable(part, field) for part in values)
            return values
        return _usable(value, field)


def _usable(value: Any, field: FieldInfo) -> Any:
    """`value`, with text as a path where the setting is one.

    Raises ValueError for what no setting can have.
    """
    # 1. Bytes of a file's name that are not valid text
    if isinstance(value, str | Path) and lone_surrogate(str(value)):
        raise ValueError(f"{str(value)!r:.60} is not valid UTF-8")

    # 2. Text as what it names
    parsed = parsed_type(field.annotation)
    if (parsed or is_path(field.annotation)) and isinstance(value, str):
        if not value or "\0" in value:
            raise ValueError(
                "is empty or holds a NUL character; name a file or folder (. for the current one)"
            )
        value = parsed.parse(value) if parsed else Path(value)
    elif parsed and isinstance(value, Path):
        value = parsed.parse(str(value))

    # 3. What numpy, JSON readers and YAML can hold
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("must fit into 64 bits")
    return value


class NoSettings(Config):
    """The settings of a choice that has none."""


@dataclass(frozen=True)
class ChosenSettings:
    """A sub-config whose class depends on other settings, such as an env's on `env`."""

    by: tuple[str, ...]
    """The attributes of these settings, in the same `Config`."""
    settings: Callable[..., type[Config]]
    """From their values to the class."""
    names: Callable[[], Iterable[str]]
    """The values whose settings the command's page lists."""

    def settings_class(self, values: Mapping[str, Any]) -> type[Config]:
        """The class of the settings. values: of the attributes so far; a wrong one is missing."""
        choosing_values = [values.get(name) for name in self.by]
        if all(isinstance(value, str) for value in choosing_values):
            return self.settings(*choosing_values)
        return NoSettings


def option(
    default: Any = REQUIRED,
    *,
    help: str,
    essential: bool = False,
    identity: bool = True,
    name: str = "",
    argument: bool = False,
    **bounds: Any,
) -> Any:
    """A setting with its `help` and bounds (`ge`, `gt`, `le`, `lt`); without `default` it is
    required.

    essential: whether `--help` shows it; `--help-all` shows all. identity: whether it may change
    the results of a run. name: its flat name, if that is not the attribute's. argument: whether it
    is an argument of the command instead of a flag.
    """
    extra: Any = {"essential": essential, "identity": identity, "name": name, "argument": argument}
    return Field(default, description=help, json_schema_extra=extra, **bounds)


def chosen_by(
    *by: str, settings: Callable[..., type[Config]], names: Callable[[], Iterable[str]] = lambda: ()
) -> Any:
    """A sub-config whose class the settings `by` choose; see `ChosenSettings`."""
    extra: Any = {"choice": ChosenSettings(by, settings, names)}
    return Field(default_factory=dict, validate_default=True, json_schema_extra=extra)


def _extra(field: FieldInfo, key: str, default: Any = None) -> Any:
    """What `option` or `chosen_by` noted under `key`."""
    extra = field.json_schema_extra
    return extra.get(key, default) if isinstance(extra, dict) else default


def _choice(field: FieldInfo) -> ChosenSettings | None:
    """The choice that decides the class of a sub-config; None for another field."""
    choice: ChosenSettings | None = _extra(field, "choice")
    return choice


def _name(attribute: str, field: FieldInfo) -> str:
    """The flat name of a setting."""
    return _extra(field, "name") or attribute


def by_flat_name(kind: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` by attribute of `kind`, as those of a constructor's arguments, by flat name."""
    result = {}
    for attribute, value in values.items():
        field = kind.model_fields.get(attribute)
        result[attribute if field is None else _name(attribute, field)] = value
    return result


def _sub_config(field: FieldInfo) -> type[Config] | None:
    """The class of a sub-config; None for a setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Config) else None


def flag(name: str) -> str:
    """The command-line flag of setting `name`: `save_steps` → `--save-steps`; `from_` → `--from`, a
    Python keyword.
    """
    return "--" + name.rstrip("_").replace("_", "-")


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union without None, or `hint` alone."""
    is_union = isinstance(hint, UnionType) or get_origin(hint) is Union
    kinds = get_args(hint) if is_union else (hint,)
    return tuple(kind for kind in kinds if kind is not NoneType)


def is_path(hint: Any) -> bool:
    """Whether a setting with this type is a path, or a list of them."""
    return hint is Path or Path in get_args(hint)


def parsed_type(hint: Any) -> type[FromText] | None:
    """The type of a setting that is parsed from text; None for other settings."""
    kind, *others = alternatives(hint)
    if others or not isinstance(kind, type) or not issubclass(kind, FromText):
        return None
    return kind


@dataclass(frozen=True)
class Leaf:
    """A setting in a tree."""

    name: str
    """Its flat name."""
    path: tuple[str, ...]
    """The attributes that lead to it from the root."""
    field: FieldInfo
    default: Any
    """REQUIRED if it has none."""
    panel: str | None
    """The heading of its sub-config in the help; None for the command's own settings."""
    by: tuple[str, ...] = ()
    """The flat names of the settings whose choice decides that it exists."""

    @property
    def hint(self) -> Any:
        """Its type."""
        return self.field.annotation

    @property
    def help(self) -> str:
        """Its help text."""
        return self.field.description or ""

    @property
    def shown(self) -> str:
        """How errors and pages call it."""
        return self.name.upper() if self.is_argument else flag(self.name)

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument of the command instead of a flag."""
        return bool(_extra(self.field, "argument"))

    @property
    def is_identity(self) -> bool:
        """Whether it belongs to a run's identity."""
        return bool(_extra(self.field, "identity", True))


def leaves(kind: type[Config], values: Mapping[str, Any] | None = None) -> list[Leaf]:
    """The settings of the tree `kind`, with those of the choices in `values` (by flat name).

    Raises UnknownNameError for an unknown choice, and ConfigError if a choice's setting has a name
    that is taken.
    """
    result: dict[str, Leaf] = {}
    for leaf in _leaves(kind, values or {}, None, (), None, ()):
        if leaf.name in result:
            chosen = leaf if leaf.by else result[leaf.name]
            raise ConfigError(
                f"{chosen.panel}: its setting '{leaf.name}' is one of the command's already; rename"
                " it, or write a subclass whose constructor has no such argument"
            )
        result[leaf.name] = leaf
    return list(result.values())


def _leaves(
    kind: type[Config],
    values: Mapping[str, Any],
    defaults: Config | None,
    path: tuple[str, ...],
    panel: str | None,
    by: tuple[str, ...],
) -> Iterator[Leaf]:
    """The settings of `kind`, which `path` leads to from the root of the tree.

    values: by flat name. defaults: the instance whose values are the defaults, if the parent has
    one. panel, by: see `Leaf`.
    """
    choosing_values: dict[str, Any] = {}
    for attribute, field in kind.model_fields.items():
        # 1. A sub-config's default may set other values than its class does
        default = field.default if defaults is None else getattr(defaults, attribute)
        inner_path = (*path, attribute)

        # 2. The settings of a choice, under the name of what was chosen
        choice = _choice(field)
        if choice is not None:
            names = [_name(chooser, kind.model_fields[chooser]) for chooser in choice.by]
            owners = []
            for chooser, name in zip(choice.by, names, strict=True):
                owners.append(f"{name} '{choosing_values[chooser]}'")
            settings_class = choice.settings_class(choosing_values)
            owner = " and ".join(owners)
            yield from _leaves(settings_class, values, None, inner_path, owner, tuple(names))
            continue

        # 3. Those of a sub-config, under its heading
        inner = _sub_config(field)
        if inner is not None:
            inner_defaults = default if isinstance(default, Config) else None
            yield from _leaves(inner, values, inner_defaults, inner_path, heading(inner), by)
            continue

        # 4. A setting
        name = _name(attribute, field)
        choosing_values[attribute] = values.get(name, default)
        yield Leaf(name, inner_path, field, default, panel, by)


def panels(rows: Iterable[Leaf], minor: Collection[str] = ()) -> dict[str | None, list[Leaf]]:
    """The settings of a command as its help shows them: the essential ones under None, the others
    by panel.

    minor: names of settings that are not essential to this command.

    A command that marks none of its own settings as essential has only such. The arguments and the
    required ones come first, and the settings of every command last.
    """
    # 1. The order; sorting is stable, so the rest stays in the order of the fields
    rows = sorted(rows, key=lambda leaf: (not leaf.is_argument, leaf.default is not REQUIRED))

    # 2. The panel of each
    marks_none = not any(_extra(leaf.field, "essential") for leaf in rows if leaf.panel is None)
    by_title: dict[str | None, list[Leaf]] = {None: []}
    for leaf in rows:
        is_needed = leaf.default is REQUIRED or leaf.is_argument or _extra(leaf.field, "essential")
        is_essential = is_needed or (leaf.panel is None and marks_none)
        title = leaf.panel or MORE
        if is_essential and leaf.name not in minor:
            by_title[None].append(leaf)
        else:
            by_title.setdefault(title, []).append(leaf)

    # 3. The settings of every command last
    titles = sorted(by_title, key=lambda title: title == LAST)
    return {title: by_title[title] for title in titles}


def heading(kind: type[Config]) -> str:
    """The heading of a sub-config in the help: its docstring up to the first colon or full stop."""
    text = kind.__doc__ or kind.__name__
    return text.partition(":")[0].partition(".")[0].strip()


def choosers(kind: type[Config]) -> dict[str, ChosenSettings]:
    """The choices in the tree, by the flat names of the settings that make them."""
    result: dict[str, ChosenSettings] = {}
    for field in kind.model_fields.values():
        choice = _choice(field)
        inner = _sub_config(field)
        if choice is not None:
            for chooser in choice.by:
                result[_name(chooser, kind.model_fields[chooser])] = choice
        elif inner is not None:
            result |= choosers(inner)
    return result


def choices(kind: type[Config]) -> dict[str, list[Leaf]]:
    """The settings of each known choice that has any, by owner, e.g. "env 'memory'"."""
    result = {}
    for chooser, choice in choosers(kind).items():
        for name in choice.names():
            rows = leaves(choice.settings(name))
            if rows:
                result[f"{chooser} '{name}'"] = rows
    return result


def unknown_setting(kind: type[Config], name: str, names: Iterable[str], where: str) -> ConfigError:
    """The error for an unknown setting: its new name, the choice that has it, or the nearest name.

    kind: the class of the settings. names: those that are known. where: the command or step.
    """
    # 1. A name of another toolkit
    names = list(names)
    prefix = f"{where}: " if where else ""
    settings_by_owner = choices(kind)
    all_names = set(names)
    for rows in settings_by_owner.values():
        all_names.update(leaf.name for leaf in rows)
    meaning = foreign_names.meaning(name, all_names)
    if meaning:
        return ConfigError(prefix + meaning)

    # 2. A setting that another command has in another place
    if name == "reflector" and "policy" in names:
        return ConfigError("--reflector belongs to its policy here: --policy NAME=POLICY+REFLECTOR")

    # 3. A setting of a choice that was not made
    owners = []
    for owner, rows in settings_by_owner.items():
        if any(leaf.name == name for leaf in rows):
            owners.append(owner)
    if owners:
        advice = f"{flag(name)} is a setting of {' and '.join(owners)}; leave it out"
        return ConfigError(prefix + advice)

    # 4. A misprint
    return unknown_name(f"setting of {where or 'this'}", name, names)


def build(kind: type[Kind], values: Mapping[str, Any], where: str = "") -> Kind:
    """The tree `kind` from `values` by flat name, e.g. a recipe's step.

    Raises
    ------
    UnknownNameError: a key that is no setting; ConfigError: a value of the wrong type or out of its
    bounds, a missing one, a contradiction, or a setting of another choice. Both name `where`, the
    command or step.
    """
    # 1. The names, with defaults that follow from what is given
    values = kind.implied(values) | dict(values)
    rows = leaves(kind, values)
    names = {leaf.name for leaf in rows}
    for key in values:
        if key not in names:
            raise unknown_setting(kind, str(key), names, where)

    # 2. The tree
    tree: dict[str, Any] = {}
    for leaf in rows:
        if leaf.default is REQUIRED and leaf.name not in values:
            raise ConfigError(f"{where or 'this'} needs {leaf.shown} ({leaf.help.rstrip('.')})")
        inner = tree
        for attribute in leaf.path[:-1]:
            inner = inner.setdefault(attribute, {})
        inner[leaf.path[-1]] = values.get(leaf.name, leaf.default)

    # 3. Types, bounds and contradictions
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise _value_error(error, rows, where) from None


def build_known(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """The tree `kind` from those of `values` that are settings of it, as a record of a run has those
    of other parts, too. Raises what `build` raises.
    """
    names = {leaf.name for leaf in leaves(kind, values)}
    return build(kind, {name: value for name, value in values.items() if name in names})


def _value_error(error: ValidationError, rows: Sequence[Leaf], where: str) -> ConfigError:
    """The first fault of `error` as one line, with the flag, the value and what is allowed."""
    # 1. The setting; a contradiction has none
    fault = error.errors(include_url=False)[0]
    value = fault["input"]
    text = fault["msg"].removeprefix("Value error, ")
    prefix = f"{where}: " if where else ""
    culprit = None
    for leaf in rows:
        if leaf.path == fault["loc"][: len(leaf.path)]:
            culprit = leaf
            break
    if culprit is None:
        return ConfigError(prefix + text)

    # 2. One of a few values
    if fault["type"] == "literal_error" and isinstance(value, str):
        allowed = [str(each) for each in literals(culprit.hint) if each]
        return unknown_name(culprit.shown, value, allowed)

    # 3. What our own checks say, and what pydantic says
    if fault["type"] == "value_error":
        return ConfigError(f"{prefix}{culprit.shown} {text}")
    text = text.replace("Input should", "must").replace("a valid tuple", "a list")
    value_text = str(value).lower() if isinstance(value, bool) else f"{value!r:.60}"
    return ConfigError(f"{prefix}{culprit.shown} {text}, got {value_text}")


def literals(hint: Any) -> list[Any]:
    """The values of a setting of this type that has only some; none for other types."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    values = []
    for part in get_args(hint):
        values += literals(part)
    return values


def flat(config: Config, *, identity_only: bool = False) -> dict[str, Any]:
    """The settings by flat name."""
    result: dict[str, Any] = {}
    for attribute, field in type(config).model_fields.items():
        value = getattr(config, attribute)
        if isinstance(value, Config):
            result |= flat(value, identity_only=identity_only)
        elif not identity_only or _extra(field, "identity", True):
            result[_name(attribute, field)] = value
    return result


def identifying(config: Config) -> dict[str, Any]:
    """The settings that belong to a run's identity, and the environment variables that act as
    settings, as JSON values by flat name.
    """
    values = flat(config, identity_only=True) | variables(config)
    return {name: as_plain(value) for name, value in sorted(values.items())}


def tree(config: Config) -> Iterator[Config]:
    """`config` and all configs in it."""
    yield config
    for attribute in type(config).model_fields:
        part = getattr(config, attribute)
        if isinstance(part, Config):
            yield from tree(part)


def variables(config: Config) -> dict[str, str]:
    """The environment variables that act as settings of the tree."""
    result: dict[str, str] = {}
    for part in tree(config):
        result |= part.environment
    return result


def notes_of(config: Config) -> list[str]:
    """What to tell before a command with these settings begins."""
    return [note for part in tree(config) for note in part.notes]


def non_default(config: Config, *names: str) -> list[str]:
    """The settings among `names`, or of all, that differ from their defaults."""
    values = flat(config)
    # Defaults depend on the choices that were made
    defaults = {leaf.name: leaf.default for leaf in leaves(type(config), values)}
    result = []
    for name in names or values:
        if values.get(name, ...) != defaults.get(name, ...):
            result.append(name)
    return result


def command_words(config: Config, names: Iterable[str]) -> list[str]:
    """The settings `names` of `config` as flags with their values, as they are typed."""
    values = flat(config)
    words: list[str] = []
    for name in names:
        value = values[name]
        if isinstance(value, bool):
            words.append(flag(name) if value else flag(f"no_{name}"))
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [flag(name), str(each)]
    return words


def with_values(config: Kind, **values: Any) -> Kind:
    """`config` with other values by flat name, which are not checked again."""
    update: dict[str, Any] = {}
    for attribute, field in type(config).model_fields.items():
        value = getattr(config, attribute)
        name = _name(attribute, field)
        if isinstance(value, Config):
            update[attribute] = with_values(value, **values)
        elif name in values:
            update[attribute] = values[name]
    return config.model_copy(update=update)


def check_own_settings(kind: Any, whose: str) -> None:
    """Raises ConfigError unless `kind` is a `Config` of settings that can be flags.

    whose: the beginning of the message.
    """
    # 1. A class of settings
    if not (isinstance(kind, type) and issubclass(kind, Config)):
        raise ConfigError(
            f"{whose}: its settings must be a subclass of reflectkit.Config, not {kind!r:.80}"
        )

    # 2. Whose types are known
    try:
        kind.model_rebuild()
    except NameError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{whose}: its settings: {reason}; import it outside of `if TYPE_CHECKING`"
        ) from None

    # 3. And can be flags
    for name, field in kind.model_fields.items():
        kinds = alternatives(field.annotation)
        simple_kinds = (str, int, float, bool, Path, tuple[str, ...], tuple[Path, ...])
        is_simple = kinds[0] in simple_kinds or get_origin(kinds[0]) is Literal
        if len(kinds) != 1 or not is_simple:
            allowed = "str, int, float, bool, Path, Literal, tuple[str, ...] or tuple[Path, ...]"
            raise ConfigError(f"{whose}: its setting '{name}' needs one of the types {allowed}")


def as_plain(value: Any) -> Any:
    """A setting's value as JSON: paths and models become text, tuples lists."""
    if isinstance(value, Path | FromText):
        return str(value)
    if isinstance(value, tuple | list):
        return [as_plain(part) for part in value]
    return value


def parse_yaml(text: str, where: Path | str) -> Any:
    """The value of YAML `text`, in which a key given twice is an error and 1e-4 a number, as in
    YAML 1.2.

    Raises DataError, naming `where` and the line.
    """
    import yaml

    try:
        value = yaml.load(text, _loader())
        json.dumps(value, default=str)  # raises for an alias that contains itself
        return value
    # ValueError: such as a date of a 13th month
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        reason = " ".join(str(getattr(error, "problem", error)).split())
        raise DataError(where, f"not YAML: {reason}", line=line) from None


@cache
def _loader() -> Any:
    """The class that reads YAML."""
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML without repeated keys."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            """The mapping of `node`. Raises MarkedYAMLError for a key given twice."""
            keys = []
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    keys.append(key.value)
            for number, key in enumerate(keys):
                if key in keys[:number]:
                    mark = node.value[number][0].start_mark
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key!r:.60} is given twice", problem_mark=mark
                    )
            return super().construct_mapping(node, deep)

    number = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    return Loader
