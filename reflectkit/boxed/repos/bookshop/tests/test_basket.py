"""Tests of the basket."""

from app.orders.basket import Basket, Line


def test_three_crime_novels_cost_ten_euros():
    basket = Basket("s1")
    for number, cents in (("a", 450), ("b", 500), ("c", 600)):
        basket.add(Line(number, "CRIME", cents))
    assert basket.total_cents() == 1000


def test_same_copy_twice_is_ignored():
    basket = Basket("s2")
    basket.add(Line("a", "ART", 450))
    basket.add(Line("a", "ART", 450))
    assert len(basket.lines) == 1
