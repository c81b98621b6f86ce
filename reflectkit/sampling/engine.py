"""Engine: where the policy's weights are, and learn; `--engine` and the settings of a training
service.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from reflectkit.config import Config, NoSettings, Rule, chosen_by, option
from reflectkit.errors import refuse
from reflectkit.keys import check_address

LOCAL_ENGINE, TINKER = "local", "tinker"
"""Engines: this process, and services with the Tinker API."""
KEY = "TINKER_API_KEY"
"""The environment variable with the key of a service."""


class ServiceAccess(Config):
    """How to ask a training service."""

    service_model: str = option(
        "",
        help=(
            "Name of the policy's base on the training service; default: that of --model or"
            " --policy, or its path."
        ),
    )
    service_timeout_s: float = option(
        900.0,
        help="Seconds that the training service may take for an answer before the command stops.",
        gt=0,
        identity=False,
    )
    service_rows: int = option(
        0,
        help="Rows of a request to the training service are filled up to a multiple of this, for one"
        " that compiles a pass for each number of rows (SkyRL on JAX: its train_micro_batch_size);"
        " 0: never.",
        ge=0,
        identity=False,
    )


class ServiceSettings(ServiceAccess):
    """How to train on a service."""

    # US dollars, by which a budget is kept; the service does not say them
    price_read: float = option(
        0.0,
        help="US dollars per million tokens that the training service reads (its prefill).",
        ge=0,
        identity=False,
    )
    price_sampled: float = option(
        0.0, help="US dollars per million tokens of texts that it samples.", ge=0, identity=False
    )
    price_trained: float = option(
        0.0,
        help="US dollars per million tokens that it reads and differentiates.",
        ge=0,
        identity=False,
    )

    @property
    def prices(self) -> dict[str, float]:
        """US dollars for a million tokens, by their kind."""
        return {
            "read": self.price_read,
            "sampled": self.price_sampled,
            "trained": self.price_trained,
        }


def is_service(name: str) -> bool:
    """Whether the engine called `name` is a training service."""
    return name != LOCAL_ENGINE


def service_url(name: str) -> str:
    """The address of the service `name`; "" for the hosted one. Raises ConfigError, without showing
    a password.
    """
    # "tinker" is the hosted service, "tinker:URL" another; "tinker:" is a slip
    kind, colon, address = name.partition(":")
    refuse(
        kind != TINKER or (colon and not address),
        f"--engine {kind}: write {LOCAL_ENGINE}, {TINKER} for the hosted service, or your own as"
        f" {TINKER}:http://localhost:8000",
    )
    if address:
        check_address(f"--engine {kind}:URL", address, KEY, "http://localhost:8000")
    return address.rstrip("/")


def _settings(name: str) -> type[Config]:
    return ServiceSettings if is_service(name) else NoSettings


class EngineConfig(Config):
    """Engine: where the policy's weights are, and learn."""

    name: str = option(
        LOCAL_ENGINE,
        name="engine",
        help=f"{LOCAL_ENGINE} (this machine), or a training service with the Tinker API, which trains"
        f" a LoRA adapter (--lora-r): {TINKER}:URL for your own, e.g. SkyRL's, or {TINKER} for the"
        " hosted one.",
    )
    settings: Any = chosen_by("name", settings=_settings, names=lambda: ("tinker:URL",))

    @override
    def contradictions(self) -> Iterator[Rule]:
        # A wrong address is refused there
        if self.remote:
            service_url(self.name)
        yield from ()

    @property
    def remote(self) -> bool:
        """Whether a service holds the policy's weights."""
        return is_service(self.name)


class PlayerEngineConfig(Config):
    """Engine: the training service where weights are that only play."""

    name: str = option(
        "",
        name="engine",
        help=f"Training service where checkpoints that were trained on one, and its bases, play:"
        f" {TINKER}:URL, or {TINKER} for the hosted one. Default: for each checkpoint, the address at"
        " which it was trained.",
        identity=False,
    )
    settings: Any = chosen_by(
        "name",
        settings=lambda name: ServiceAccess if name else NoSettings,
        names=lambda: ("tinker:URL",),
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        # A wrong address is refused there
        if self.name:
            service_url(self.name)
        yield from ()
