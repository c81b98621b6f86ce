"""serve-env: serve an environment by the OpenEnv protocol, so that other libraries can train in it.

Each session has its own environment. `reset` takes `seed`, and optionally `level`, and `task` (an
id) or `index`; the levels are the splits of OpenEnv's task API. Without a token, in
OPENENV_API_KEY, it listens only to this machine.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from typing_extensions import override

from reflectkit.config import Config, Rule, option
from reflectkit.console import Progress, Report
from reflectkit.data.problems import Problems, read_records
from reflectkit.envs import SPLITS
from reflectkit.envs.setup import HORIZON_HELP, EnvConfig, EnvSetup, at_level, check_level
from reflectkit.errors import ConfigError
from reflectkit.keys import header_text
from reflectkit.runs.run import RunConfig, open_run
from reflectkit.types import Task

EXAMPLES = (
    "reflectkit serve-env --env taxi",
    "reflectkit serve-env --env support --task-file data/support/test.json --port 8001",
)
KEY = "OPENENV_API_KEY"


class ServeEnvConfig(Config):
    """Settings of serve-env."""

    env: EnvConfig
    level: str = option(
        "",
        help="The only level to serve; default: all, and the last for a reset without one.",
        essential=True,
    )
    task_file: Path | None = option(
        None, help="Problems; default: the env's own, or one per seed.", essential=True
    )
    horizon: int = option(0, help=HORIZON_HELP, ge=0)
    host: str = option(
        "127.0.0.1",
        help=f"Address to listen on; one of another machine's needs {KEY}.",
        essential=True,
    )
    port: int = option(8000, help="Port; 0: any that is free.", ge=0, le=65535, essential=True)
    sessions: int = option(64, help="Maximum number of sessions at a time.", ge=1, essential=True)
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run, self.horizon)

    @override
    def contradictions(self) -> Iterator[Rule]:
        if self.level:
            check_level(self.env.name, self.level)
        is_open = not is_loopback(self.host) and not header_text(KEY)
        advice = f"set {KEY} to a token that clients must send"
        yield is_open, f"--host {self.host} lets other machines in: {advice}"


CONFIG = ServeEnvConfig


def run(config: ServeEnvConfig, progress: Progress) -> Report:
    """Serve until Ctrl-C. Raises ConfigError, DataError."""
    import uvicorn

    from reflectkit.envs.adapters.endpoint import host_names, listening

    # 1. The application
    tasks = tasks_of(config)
    try:
        from reflectkit.envs.adapters.openenv_server import app_of

        token, seed = header_text(KEY), config.run.seed
        hosts = host_names(config.host)
        app = app_of(config.setup, tasks, config.sessions, token, seed, hosts)
    except ImportError as error:
        raise ConfigError(
            f"serve-env needs {error.name}; run pip install 'reflectkit[openenv]'"
        ) from None

    # 2. The server, until Ctrl-C
    with (
        open_run("serve-env", config, [], again=True) as current,
        listening(config.host, config.port) as listener,
    ):
        host, port = listener.getsockname()[:2]
        progress.news(f"{config.env.name} is at http://{host}:{port}; Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
        return current.finish({}, [])


def tasks_of(config: ServeEnvConfig) -> dict[str, list[Task]]:
    """The problems by level, in the env's order of levels. Raises ConfigError, DataError."""
    name, kind = config.env.name, config.env.kind
    levels = [config.level] if config.level else list(kind.levels)

    # 1. From the environment's own list or seeds
    if config.task_file is None:
        problems = Problems(config.setup)
        list_of = partial(problems.seeds, SPLITS[0]) if problems.by_seed else config.setup.listed
        return {level: list_of(level) for level in levels}

    # 2. From a file, which need not have problems of all levels
    tasks = [record.task for record in read_records(config.task_file, kind.name)]
    if not config.level:
        levels_in_file = {task.level for task in tasks}
        levels = [level for level in levels if level in levels_in_file]
    return {level: at_level(name, tasks, level, config.task_file) for level in levels}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
