"""Taxi on gymnasium's map, and on maps that are drawn."""

from reflectkit.envs.taxi.env import Taxi as Taxi
from reflectkit.envs.taxi.maps import TaxiMaps as TaxiMaps
