"""The class that SkyRL makes of each row: an env of ours behind skyrl_gym's interface.

Importing this needs the package skyrl-gym. `skyrl.register` names the class `skyrl:SkyRLEnv`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from reflectkit.env import rules_of
from reflectkit.errors import DataError, EnvironmentFailure, IllegalActionError
from reflectkit.eventloop import shared_result_of
from reflectkit.integrations.skyrl import View, setup_of
from reflectkit.models.labels import encodable
from reflectkit.types import Task, from_json


class SkyRLEnv(BaseTextEnv):  # type: ignore[misc, unused-ignore]
    """An env of reflectkit behind skyrl_gym's interface; see `reflectkit.integrations.skyrl`.

    env: its name. env_config: settings from SkyRL's own configuration, over the registered ones.
    extras: a row of `rows`; its max_turns, which SkyRL adds, is also the env's horizon.

    An answer that is no legal action takes a turn, and the model reads what is wrong. Where the
    env's engine or simulated user fails, the episode ends with reward 0 and the metric `failed`:
    SkyRL has no way to leave it out.

    Raises ConfigError, DataError for wrong settings or a row that `rows` did not make.
    """

    def __init__(
        self,
        env: str,
        env_config: Mapping[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        # 1. The problem
        setup = setup_of(env, {**settings, **dict(env_config or {})})
        row = extras or {}
        try:
            self.task = from_json(Task, json.loads(row["task"]), path="SkyRL's row")
            self.seed = int(row["seed"])
        except (KeyError, TypeError, ValueError):
            fix = "make the rows with reflectkit.integrations.skyrl.rows"
            raise DataError("SkyRL's row", f"has no task and seed; {fix}") from None

        # 2. The environment. SkyRL's limit on turns is its horizon, too
        self.max_turns = row.get("max_turns") or setup.horizon_at(self.task.level)
        self.inner: Any = setup.make(self.max_turns)
        self.view = View(rules_of(self.inner))

        # 3. The metrics
        self.failure = ""
        """Why the env's engine or user failed; empty while it has not."""
        self.total = 0.0
        self.illegal = 0
        self.figures = dict[str, float]()
        self.success: bool | None = False

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """The first prompt: that of the row, but with SkyRL's limit on turns where the rules name
        one.
        """
        try:
            observation = shared_result_of(self.inner.reset(self.task, self.seed))
            return self.view.first(observation), {}
        except EnvironmentFailure as failure:
            self.failure = str(failure)
            return prompt, {"failure": self.failure}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Carry out the model's answer."""
        # 1. The step. Failures and illegal answers are told to SkyRL
        self.turns += 1
        is_last = self.turns >= self.max_turns
        try:
            if self.failure:
                raise EnvironmentFailure(self.failure)
            result = shared_result_of(self.inner.step(self.view.read(action)))
        except EnvironmentFailure as failure:
            self.failure = str(failure)
            return self._output([], 0.0, True, {"failure": self.failure})
        except IllegalActionError as error:
            self.illegal += 1
            messages = [{"role": "user", "content": encodable(str(error))}]
            penalty = self.inner.truncation_penalty(0) if is_last else 0.0
            return self._output(messages, penalty, is_last, {"illegal": str(error)})

        # 2. The figures of the episode so far
        self.figures |= result.info.get("figures", {}) | result.info.get("last_figures", {})
        self.success = result.info.get("success")

        # 3. The end; illegal answers may have taken the env's last steps
        is_over = result.terminated or result.truncated
        penalty = self.inner.truncation_penalty(0) if is_last and not is_over else 0.0
        messages = self.view.next(result.observation)
        return self._output(messages, result.reward + penalty, is_over or is_last, result.info)

    def close(self) -> None:
        """Give back what the env holds."""
        self.inner.close()

    def get_metrics(self) -> dict[str, float]:
        """Success, if it is reported, return, turns, illegal answers, and the env's own figures, of
        an episode.
        """
        metrics = {} if self.success is None else {"success": float(self.success)}
        return {
            **metrics,
            "return": self.total,
            "turns": float(self.turns),
            "illegal": float(self.illegal),
            "failed": float(bool(self.failure)),
            **self.figures,
        }

    def _output(
        self,
        messages: list[dict[str, str]],
        reward: float,
        done: bool,
        metadata: dict[str, Any],
    ) -> BaseTextEnvStepOutput:
        """What a step returns to SkyRL."""
        self.total += reward
        return BaseTextEnvStepOutput(
            observations=[] if done else messages,
            reward=reward,
            done=done,
            metadata=metadata,
            postprocessed_action=None,
        )
