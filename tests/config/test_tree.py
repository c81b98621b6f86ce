"""Trees of settings: their flat names, choices, defaults and identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectkit import Config, option
from reflectkit.config import build, chosen_by, flat, identifying, leaves, non_default, parse_yaml, with_values
from reflectkit.errors import ConfigError, DataError, UnknownNameError


class Fruit(Config):
    """Settings of a fruit."""

    seeds: int = option(3, help="How many seeds.", ge=0)


class Bread(Config):
    """Settings of a bread."""

    slices: tuple[str, ...] = option((), help="Names of the slices.")


KINDS: dict[str, type[Config]] = {"fruit": Fruit, "bread": Bread}


class Drink(Config):
    """Drink: what to drink. The rest is no heading."""

    hot: bool = option(False, help="Hot.", name="hot_drink")
    cups: int = option(1, help="Cups.", identity=False)


class Meal(Config):
    """A meal."""

    food: str = option(help="What to eat.")
    settings: Any = chosen_by("food", settings=KINDS.__getitem__, names=lambda: KINDS)
    drink: Drink = Drink(cups=2)
    place: Path | None = option(None, help="Where.")


def test_flat_names_make_the_tree_and_come_back() -> None:
    values = {"food": "bread", "slices": ["a"], "hot_drink": True, "place": "here"}
    meal = build(Meal, values)
    assert meal.settings == Bread(slices=("a",))
    assert (meal.drink, meal.place) == (Drink(hot=True, cups=2), Path("here"))
    assert flat(meal) == {"food": "bread", "slices": ("a",), "hot_drink": True, "cups": 2, "place": Path("here")}
    assert build(Meal, flat(meal)) == meal


def test_a_parents_default_is_the_default_of_its_leaves() -> None:
    assert {leaf.name: leaf.default for leaf in leaves(Meal, {"food": "fruit"})}["cups"] == 2
    assert non_default(Meal.from_flat(food="fruit", cups=1)) == ["food", "cups"]


def test_identity_is_a_property_of_the_field() -> None:
    meal = Meal.from_flat(food="bread", slices="b", cups=9, place="here")
    assert identifying(meal) == {"food": "bread", "hot_drink": False, "place": "here", "slices": ["b"]}


def test_a_setting_of_another_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="lunch: --slices is a setting of food 'bread'; leave it out"):
        build(Meal, {"food": "fruit", "slices": ["a"]}, "lunch")
    with pytest.raises(UnknownNameError, match="did you mean 'seeds'"):
        build(Meal, {"food": "fruit", "seedz": 1}, "lunch")


def test_no_two_leaves_share_a_name() -> None:
    class Twice(Config):
        seeds: int = option(1, help="Taken.")
        food: str = option("fruit", help="What to eat.")
        settings: Any = chosen_by("food", settings=KINDS.__getitem__)

    with pytest.raises(ConfigError, match="food 'fruit': its setting 'seeds' is one of the command's already"):
        leaves(Twice)

    class Kitchen(Config):
        """Kitchen: where."""

        seeds: int = option(1, help="Taken.")
        food: str = option("fruit", help="What to eat.")
        settings: Any = chosen_by("food", settings=KINDS.__getitem__)

    class Within(Config):
        kitchen: Kitchen = Kitchen()

    with pytest.raises(ConfigError, match="food 'fruit': its setting 'seeds'"):
        leaves(Within)


def test_values_are_replaced_anywhere_in_the_tree() -> None:
    meal = with_values(Meal.from_flat(food="fruit"), seeds=5, hot_drink=True)
    assert (meal.settings.seeds, meal.drink.hot, meal.food) == (5, True, "fruit")
    with pytest.raises(Exception, match="frozen"):
        meal.food = "bread"  # type: ignore[misc]


def test_the_nested_form_is_checked_alike() -> None:
    assert Meal(food="fruit", settings={"seeds": 1}) == Meal.from_flat(food="fruit", seeds=1)
    with pytest.raises(ValueError, match=r"settings\.seeds"):
        Meal(food="fruit", settings={"seeds": -1})


@pytest.mark.parametrize("text", ["1e-4", "0.1e-3", "+1e-4"])
def test_in_yaml_an_exponent_needs_no_point(text: str) -> None:
    assert parse_yaml(f"[{text}, 1e, 1e-4-final, 0x1f]", "names.yaml") == [1e-4, "1e", "1e-4-final", 31]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "x.yaml:3: .*'a' is given twice"),
        ("- &a {b: 1}\n- {<<: *a, c: 1, c: 2}", "'c' is given twice"),
        ("a: [", "x.yaml:1: not YAML"),
        ("[" * 1000, "not YAML"),
    ],
)
def test_what_is_wrong_with_yaml_is_one_line(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        parse_yaml(text, "x.yaml")
    assert "\n" not in str(caught.value)
    assert parse_yaml("- &a {b: 1}\n- {<<: *a, b: 2}", "x.yaml") == [{"b": 1}, {"b": 2}]
