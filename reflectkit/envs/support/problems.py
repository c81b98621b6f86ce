"""The tasks of env `support`: generated from a seed, each proven to be solvable."""

from __future__ import annotations

from typing import ClassVar

from reflectkit.config import Config, option
from reflectkit.console import Progress, figures_table
from reflectkit.envs.problems import Generated, ProblemGenerator
from reflectkit.envs.support.env import Support
from reflectkit.envs.support.generate import CUSTOMERS, shop
from reflectkit.envs.support.tasks import ONE, REFUSE, SEVERAL, make_task, source_of
from reflectkit.errors import ConfigError
from reflectkit.eventloop import result_of
from reflectkit.types import Task

INSTANCES = 400


class SupportTaskSettings(Config):
    """The generator's settings."""

    instances: int | None = option(
        None, help=f"Tasks of each level (one, several, refuse); default: {INSTANCES}.", ge=1
    )
    customers: int = option(CUSTOMERS, help="Customers of the generated shop.", ge=20)

    @property
    def number(self) -> int:
        """Number of tasks of each level."""
        return INSTANCES if self.instances is None else self.instances


class SupportTasks(ProblemGenerator):
    """Tasks with one request, with several, and with one that must be refused."""

    Settings: ClassVar[type[Config]] = SupportTaskSettings
    noun: ClassVar[str] = "tasks"
    settings: SupportTaskSettings

    def generate(self, progress: Progress) -> Generated:
        """`data.json` with all tasks. Raises ConfigError for a task that its own oracle cannot solve."""
        source = source_of(self.seed, self.settings.customers)
        database = shop(self.seed, self.settings.customers)
        levels = (ONE, SEVERAL, REFUSE)
        tasks: list[Task] = []
        with progress.bar("Tasks, each solved once", len(levels) * self.settings.number) as bar:
            for level in levels:
                for number in range(self.settings.number):
                    tasks.append(make_task(self.seed, number, level, database, source))
                    prove(tasks[-1])
                    bar.advance()
        figures = {"tasks": len(tasks), "customers": len({task.group for task in tasks})}
        figures |= {level: sum(task.level == level for task in tasks) for level in levels}
        path = self.folder / "data.json"
        return Generated({"data": tasks}, figures, (figures_table(f"Tasks in {path}", "count", figures),))


def prove(task: Task) -> int:
    """The number of steps in which the oracle solves `task` with its scripted user. Raises ConfigError if it fails."""
    steps = Support.horizons[task.level]
    env = Support(horizon=steps)
    result_of(env.reset(task, 0))
    for number in range(1, steps + 1):
        result = result_of(env.step(env.teacher().action()))
        if result.terminated:
            if not result.info["success"]:
                raise ConfigError(f"internal error: the oracle fails task {task.id}: {result.info}")
            return number
    raise ConfigError(f"internal error: the oracle does not end task {task.id} in {steps} steps")
