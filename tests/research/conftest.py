"""The fixtures of the stages' tests."""

from tests.stages.conftest import corridor_folder, taxi_data

__all__ = ["corridor_folder", "taxi_data"]
