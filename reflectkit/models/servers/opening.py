"""Opens the sampler of a server: what is there is checked before anything is sampled."""

from __future__ import annotations

from pathlib import Path

from reflectkit.core.config import flag
from reflectkit.core.errors import ConfigError
from reflectkit.core.eventloop import wait_for
from reflectkit.models.facts import base_of, check_role, config_of, context_of, load_tokenizer
from reflectkit.models.sampler import Opening
from reflectkit.models.servers.sampler import ServerSampler
from reflectkit.models.servers.settings import KEYS, ServerSettings
from reflectkit.models.servers.sglang import Sglang
from reflectkit.models.servers.store import Store
from reflectkit.models.servers.vllm import Vllm
from reflectkit.models.servers.wire import Wire

SERVERS: dict[str, type[Vllm] | type[Sglang]] = {"vllm": Vllm, "sglang": Sglang}


def open_server(kind: str, url: str, opening: Opening, settings: ServerSettings) -> ServerSampler:
    """A sampler of the model behind `url`, checked before anything is sampled.

    Raises
    ------
    CheckpointError: the policy's folder is not usable. ConfigError, GoneError: the server is not.
    """
    wire = Wire(
        url,
        KEYS[kind],
        timeout_s=settings.server_timeout_s,
        patience_s=settings.server_patience_s,
        connections=settings.server_connections,
    )
    folder, player = Path(opening.checkpoint), opening.player
    role = player.role if player else check_role(opening.checkpoint, opening.role)
    tokenizer = player.tokenizer if player else load_tokenizer(opening.checkpoint)
    base = base_of(folder) or opening.checkpoint
    server = SERVERS[kind](wire)
    if player is not None and not hasattr(player.model, "peft_config") and not server.whole_models:
        raise ConfigError(
            f"--sampler {kind}:{url} loads adapters while it runs, but no whole models; train an adapter (--lora-r 16),"
            " or use sglang:URL"
        )
    store = Store(settings.adapter_dir, settings.server_adapter_dir)
    vocabulary = getattr(config_of(base), "vocab_size", None) or len(tokenizer)
    sampler = ServerSampler(server, tokenizer, role, context_of(opening.checkpoint), vocabulary, base, store)
    setting = "reflector_served_model" if opening.role == "reflection" else "served_model"
    wait_for(sampler.check(getattr(settings, setting), flag(setting)))
    if player is None and (folder / "adapter_config.json").is_file():
        wait_for(sampler.load(folder))
    return sampler
