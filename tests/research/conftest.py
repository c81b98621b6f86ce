"""The fixtures of the stages' tests."""

from tests.commands.conftest import corridor_folder, taxi_data

__all__ = ["corridor_folder", "taxi_data"]
