"""The package's own simulated user (its strategy "llm"), for figures that compare with published ones.

Departs from the package: nothing is asked when it is made, calls run in threads, and it keeps nothing, so that episodes
share it. Its answers are neither seeded nor kept in a journal.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from reflectkit.env import UserTurn
from reflectkit.envs.tau.package import installed
from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.eventloop import in_thread
from reflectkit.keys import masked
from reflectkit.types import Message

STOP = "###STOP###"
GREETING = "Hi! How can I help you today?"  # the package's, at the start of each conversation
TIMEOUT_S = 120.0
OFFLINE = "LITELLM_LOCAL_MODEL_COST_MAP"  # without it, importing litellm waits for a list of prices


def parse_simulator(text: str) -> tuple[str, str]:
    """(model, provider) of `MODEL@PROVIDER`. Raises ConfigError."""
    model, _, provider = text.rpartition("@")
    if not model or not provider:
        raise ConfigError(f"--simulator {text!r}: write MODEL@PROVIDER as litellm names them, e.g. gpt-4o@openai")
    return model, provider


class Simulator:
    """Asks `model` of `provider` through litellm; keys and addresses (OPENAI_API_BASE) come from the environment.

    Raises ConfigError if a package is missing.
    """

    def __init__(self, model: str, provider: str) -> None:
        self.model, self.provider = model, provider
        self._module = installed("tau_bench.envs.user")
        self._module.completion = _litellm().completion

    async def say(self, instructions: str, conversation: Sequence[Message], seed: int) -> UserTurn:
        """The user's next message; see `env.User`. Raises EnvironmentFailure if the model cannot be asked."""
        try:
            text = await in_thread(self._ask, instructions, conversation)
        except Exception as error:  # litellm's errors have many types, and no common base
            reason = " ".join(masked(str(error)).split()) or type(error).__name__
            raise EnvironmentFailure(f"the user {self.model}@{self.provider} cannot be asked: {reason:.200}") from None
        said = text.replace(STOP, " ").strip()
        return UserTurn(said, over=STOP in text)

    def _ask(self, instructions: str, conversation: Sequence[Message]) -> str:
        """What the package's user says after `conversation`."""
        kind = self._module.LLMUserSimulationEnv
        user = kind.__new__(kind)  # its constructor asks the model
        user.model, user.provider, user.total_cost = self.model, self.provider, 0.0
        user.messages = [
            {"role": "system", "content": user.build_system_prompt(instruction=instructions)},
            {"role": "user", "content": GREETING},
            *({"role": "assistant" if one.role == "user" else "user", "content": one.content} for one in conversation),
        ]
        return str(user.generate_next_message(user.messages) or "")


@cache
def simulator(model: str, provider: str) -> Simulator:
    """The simulator, which all envs of the process share. Raises ConfigError if a package is missing."""
    return Simulator(model, provider)


def _litellm() -> Any:
    """The package litellm, without its messages. Raises ConfigError if it is missing."""
    given = OFFLINE in os.environ
    os.environ.setdefault(OFFLINE, "True")
    try:
        litellm: Any = importlib.import_module("litellm")
    except ImportError as error:
        raise ConfigError(
            f"--simulator needs litellm ({error}): pip install litellm && pip install 'openai>=3.54', which it replaces"
            " by an older one"
        ) from None
    finally:
        if not given:
            del os.environ[OFFLINE]
    litellm.suppress_debug_info = True
    litellm.request_timeout = TIMEOUT_S
    return litellm
