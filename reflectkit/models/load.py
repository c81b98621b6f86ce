"""Load and save a player: a model, its tokenizer, and a small file with the role that it was trained for.

Only safetensors are read and written, and no code that comes with a model is run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from reflectkit.core.config import ANSWERS, DTYPES, QUANTIZE
from reflectkit.core.errors import CheckpointError, ConfigError, DataError, DivergedError
from reflectkit.core.identity import read_record
from reflectkit.core.jsonl import TEMPORARY_PREFIX, read_json, write_json
from reflectkit.core.text import counted
from reflectkit.models.checks import all_finite
from reflectkit.models.hub import hub_options, looks_local
from reflectkit.models.silence import silence_libraries

ROLE_FILE = "reflectkit.json"
BASE_FOLDER = "base_folder"
"""Key in it of where the base of an adapter lies."""
ALL_LINEAR = "all-linear"  # peft's own word
REPACKS = "support_avx512bf16_for_cpu"  # bitsandbytes' own name
POLICY_ADAPTER = "default"  # peft's own name for the first adapter of a model
SIZES = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 10_000,
    "hidden_size": 10**6,
    "vocab_size": 10**8,
    "max_position_embeddings": 10**9,
}
"""Upper limits of the sizes in a model's config."""


@dataclass(frozen=True)
class Player:
    """A causal language model with its tokenizer."""

    model: Any
    """A transformers model, perhaps with LoRA adapters."""
    tokenizer: Any
    """Its tokenizer."""
    role: str | None
    """What it was trained for; None if unknown."""
    dtype: str = "float32"
    """Data type of the weights, or of those of an adapter's base; see `load_player`."""
    quantize: str = "none"
    """Quantisation of the same weights."""
    adapter: str | None = None
    """Name of its LoRA adapter, if several players share a base."""
    answer: str = ""
    """What it was trained to answer a choice with, "label" or "text"; empty if unknown."""

    def activate(self) -> None:
        """Activate this player's adapter; to be called before each use of a shared model."""
        if self.adapter is not None and self.model.active_adapter != self.adapter:
            self.model.set_adapter(self.adapter)

    @property
    def context(self) -> int:
        """The context length in tokens."""
        config = self.model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", None) or 2**20)

    @property
    def pad_id(self) -> int:
        """The padding id; padding is masked, so any id will do."""
        return int(next(i for i in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0) if i is not None))


def load_player(
    source: str | Path,
    role: str | None = None,
    *,
    device: str = "auto",
    dtype: str | None = None,
    quantize: str | None = None,
) -> Player:
    """The model and tokenizer in folder `source`, or of hub id `source`.

    Parameters
    ----------
    role: what it will be used as ("policy" or "reflection"); a checkpoint trained for the other one is refused. device:
    "auto" (a GPU if there is one), "cpu", "cuda", … dtype: name of a torch dtype. quantize: "none", "8bit" or "4bit",
    by bitsandbytes; only an adapter can then be trained. Both default to those the checkpoint was saved with, or to
    float32 and none.

    Raises
    ------
    CheckpointError: no such folder, no tokenizer, damaged weights, the wrong role, or an id that cannot be fetched.
    """
    folder = Path(source)
    facts = _check_folder(folder, role) if looks_local(source) else {}
    base_name = base_of(folder)
    fetching = hub_options(base_name or source)
    from transformers import AutoModelForCausalLM

    dtype, quantize = dtype or facts.get("dtype", "float32"), quantize or facts.get("quantize", "none")
    name = str(source)
    tokenizer = load_tokenizer(source)
    _config(base_name or source)
    place = pick_device(device)
    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "use_safetensors": True, "trust_remote_code": False}
    if fetching:
        options |= fetching | {"adapter_kwargs": dict(fetching)}
    if quantize != "none":
        options |= {"quantization_config": _quantization(quantize, dtype), "device_map": {"": place}}
    try:
        if base_name is not None:
            from peft import PeftModel

            base, report = AutoModelForCausalLM.from_pretrained(base_name, output_loading_info=True, **options)
            _refuse_missing(base_name, report["missing_keys"])
            model: Any = PeftModel.from_pretrained(base, name, is_trainable=True)
            model.peft_config[POLICY_ADAPTER].base_model_name_or_path = base_name
            _refuse_missing(name, _adapter_keys(model) - _written_keys(folder))
        else:
            model, report = AutoModelForCausalLM.from_pretrained(name, output_loading_info=True, **options)
            _refuse_missing(name, report["missing_keys"])
            if (folder / ROLE_FILE).is_file() and (
                extra := report["unexpected_keys"]
            ):  # written here, so there should be none
                what = f"config.json has no place for {len(extra)} of the saved tensors, e.g. {min(extra)}"
                raise CheckpointError(f"{name}: {what}; restore the file")
    except CheckpointError:
        raise
    except Exception as error:  # truncated, not safetensors, of another shape, …
        raise _unusable(name, "cannot load the model", error) from None
    if quantize == "none":
        model.to(place)
    if quantize == "4bit":
        for module in model.modules():  # bitsandbytes repacks weights on some CPUs, which not every shape allows
            if hasattr(module, REPACKS):
                setattr(module, REPACKS, False)
    return Player(model, tokenizer, facts.get("role"), dtype, quantize, answer=facts.get("answer", ""))


def check_role(source: str | Path, role: str | None) -> str | None:
    """What `source` was trained for; None if nothing says so. Raises CheckpointError if that is not `role`."""
    return _check_folder(Path(source), role).get("role") if looks_local(source) else None


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer of folder or hub id `source`. Raises CheckpointError."""
    if looks_local(source):
        _check_folder(Path(source), None)
    fetching = hub_options(source)
    from transformers import AutoTokenizer

    silence_libraries()
    try:
        return AutoTokenizer.from_pretrained(str(source), padding_side="left", trust_remote_code=False, **fetching)
    except Exception as error:  # the library raises many types where there is no usable tokenizer
        raise _unusable(source, "no usable tokenizer", error) from None


def context_of(source: str | Path) -> int | None:
    """The context length of model `source` in tokens, from its config alone; None if the config does not say."""
    return getattr(_config(base_of(Path(source)) or source), "max_position_embeddings", None)


def _config(source: str | Path) -> Any:
    """The language model's config of folder or hub id `source`. Raises CheckpointError if it is not a usable one."""
    fetching = hub_options(source)
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=False, **fetching).get_text_config()
    except Exception as error:  # the library raises many types here too
        raise _unusable(source, "no usable config", error) from None
    for name, most in SIZES.items():
        value = getattr(config, name, None)
        if value is not None and not (isinstance(value, int) and 0 < value <= most):
            raise CheckpointError(
                f"{source}: config.json: {name} is {value!r:.60}, expected a whole number from 1 to {most:,}; restore"
                " the file"
            )
    return config


def with_adapter(player: Player, rank: int, alpha: int, seed: int, dropout: float = 0.0, targets: str = "") -> Player:
    """`player` with a new LoRA adapter, which alone is trained (arXiv 2106.09685).

    seed: for its weights. dropout: of what the adapter reads, 0 … 1. targets: the layers that it changes, "all-linear"
    or names separated by commas; "": peft's choice for this kind of model, or all linear ones where it has none.

    Raises
    ------
    ConfigError: it has an adapter, or no such layers.
    """
    from peft import LoraConfig, PeftModel, get_peft_model
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    if isinstance(player.model, PeftModel):
        raise ConfigError("the model already has a LoRA adapter, which will be trained further; omit --lora-r")
    has_default_targets = player.model.config.model_type in TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    named = targets if targets in ("", ALL_LINEAR) else [name.strip() for name in targets.split(",")]
    target_modules = named or (None if has_default_targets else ALL_LINEAR)
    with torch.random.fork_rng():
        torch.manual_seed(seed % 2**63)
        settings = LoraConfig(
            r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=target_modules, task_type="CAUSAL_LM"
        )
        try:
            adapted = get_peft_model(player.model, settings)
        except ValueError:
            layers = sorted(
                {name.rpartition(".")[2] for name, part in player.model.named_modules() if hasattr(part, "in_features")}
            )
            raise ConfigError(f"--lora-targets {targets}: the model's layers are {', '.join(layers)}") from None
    return replace(player, model=adapted)


def load_pair(
    policy: str | Path,
    reflector: str | Path,
    *,
    device: str = "auto",
    dtype: str | None = None,
    quantize: str | None = None,
) -> tuple[Player, Player]:
    """(policy, reflector): two LoRA adapters on one base, with half the memory of two models; see `load_player`.

    Raises
    ------
    CheckpointError: one of them is not an adapter, or their bases or the way they are loaded differ.
    """
    bases = {}
    for name, role in ((policy, "policy"), (reflector, "reflection")):
        folder = Path(name)
        facts = _check_folder(folder, role) if looks_local(name) else {}
        if not (folder / "adapter_config.json").is_file():
            raise CheckpointError(f"{name} is not a LoRA adapter, so it cannot share a base; omit --share-base")
        bases[role] = (base_of(folder), facts.get("dtype", "float32"), facts.get("quantize", "none"))
    if bases["policy"] != bases["reflection"]:
        one, other = ", ".join(map(str, bases["policy"])), ", ".join(map(str, bases["reflection"]))
        raise CheckpointError(f"the two adapters do not share a base: {policy} is on {one}; {reflector} on {other}")
    loaded = load_player(policy, "policy", device=device, dtype=dtype, quantize=quantize)
    actor = replace(loaded, adapter=POLICY_ADAPTER)
    _add_adapter(actor.model, reflector, "reflection")
    return actor, replace(actor, role="reflection", adapter="reflection")


@dataclass(frozen=True)
class Reference:
    """The frozen player that training started from, for a KL penalty. copy: a separate model; None: the player's base
    alone or with its adapter called `adapter`, so that there is no second copy.
    """

    player: Player
    copy: Any = None
    adapter: str | None = None

    @contextlib.contextmanager
    def model(self) -> Iterator[Any]:
        """The starting player's model, while the context is open."""
        if self.copy is not None:
            yield self.copy
        elif self.adapter is None:
            with self.player.model.disable_adapter():
                yield self.player.model
        else:
            self.player.model.set_adapter(self.adapter)
            try:
                yield self.player.model
            finally:
                self.player.model.set_adapter(self.player.adapter or POLICY_ADAPTER)


def starting_player(
    player: Player, source: str | Path, fresh_adapter: bool, device: str = "auto", role: str = "policy"
) -> Reference:
    """What training started from: `source`, or the base of an adapter that was new then. role: as for `load_player`.

    Raises CheckpointError if `source` cannot be loaded.
    """
    if fresh_adapter:
        return Reference(player)
    if (Path(source) / "adapter_config.json").is_file():
        active, name = player.adapter or POLICY_ADAPTER, "reference" if role == "policy" else f"{role}-reference"
        _add_adapter(player.model, source, name)
        player.model.set_adapter(active)
        return Reference(player, adapter=name)
    start = load_player(source, role, device=device, dtype=player.dtype, quantize=player.quantize)
    return Reference(player, copy=start.model.eval().requires_grad_(False))


def base_of(folder: Path) -> str | None:
    """The base model of the adapter in `folder`: its folder, or its hub id; None without an adapter.

    A relative path in the adapter's config starts at the folder in which the adapter was trained, which may not be the
    working directory. The checkpoint says where the base lies as seen from itself; an older one is taken to lie, like
    its base, somewhere below the folder in which it was trained.

    Raises
    ------
    CheckpointError: the config is damaged, or the base is not there.
    """
    path = folder / "adapter_config.json"
    if not path.is_file():
        return None
    try:
        name = read_json(path)["base_model_name_or_path"]
        if not isinstance(name, str):
            raise TypeError("it does not name a base model")
    except (DataError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({_first_line(error)}); make the checkpoint again") from None
    here = Path(os.path.realpath(folder))
    recorded = _recorded_base(folder, name)
    places = [here / recorded] if recorded else []
    if "/" in name:
        places += [parent / name for parent in here.parents]
    for place in places:
        if (place / "config.json").is_file():
            same = os.path.isdir(name) and os.path.samefile(place, name)
            return name if same else os.path.realpath(place)
    if looks_local(name) and not os.path.isdir(name):
        raise CheckpointError(f"{folder} is an adapter of {name}, which is missing; put that model there again")
    return name


def _recorded_base(folder: Path, name: str) -> str:
    """Where the base that the adapter in `folder` calls `name` lies as seen from `folder`; empty if not recorded."""
    try:
        base = read_json(folder / ROLE_FILE)[BASE_FOLDER]
        return str(base["path"]) if base["name"] == name else ""
    except (DataError, KeyError, TypeError):
        return ""


def _base_fact(model: Any, adapter: str, folder: Path) -> dict[str, Any]:
    """What a checkpoint in `folder` records about the base of `adapter`: nothing unless that is a relative path."""
    name = model.peft_config[adapter].base_model_name_or_path
    if not name or os.path.isabs(name) or not os.path.isdir(name):
        return {}
    return {BASE_FOLDER: {"name": name, "path": os.path.relpath(os.path.realpath(name), os.path.realpath(folder))}}


def _add_adapter(model: Any, folder: str | Path, name: str) -> None:
    """Add another adapter to `model`, called `name`. Raises CheckpointError."""
    try:
        model.load_adapter(str(folder), adapter_name=name)
        _refuse_missing(str(folder), _adapter_keys(model, name) - _written_keys(Path(folder)))
    except CheckpointError:
        raise
    except Exception as error:  # truncated, of another shape, …
        raise CheckpointError(f"{folder}: cannot load the adapter ({_first_line(error)})") from None


def _adapter_keys(model: Any, name: str = POLICY_ADAPTER) -> set[str]:
    from peft import get_peft_model_state_dict

    return set(get_peft_model_state_dict(model, adapter_name=name))


def _written_keys(folder: Path) -> set[str]:
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
        return set(file.keys())


def _refuse_missing(name: str, missing: Collection[str]) -> None:
    if missing:
        raise CheckpointError(
            f"{name}: the weights lack {counted(len(missing), 'tensor')}, e.g. {min(missing)}; make it again"
        )


def checkpoint_gradients(model: Any) -> None:
    """Keep only each layer's input for the backward pass and recompute the rest: less memory for about a third more
    time.

    The layers are put in training mode, which they require for this, but not the modules inside them, such as dropout.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    bare.activation_checkpointing_enable({"use_reentrant": False})
    for module in bare.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


def save_player(
    folder: Path,
    player: Player,
    facts: dict[str, Any] | None = None,
    beside: Callable[[Path], None] | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write model, tokenizer and role to `folder` atomically.

    facts: JSON values saved with the role. beside: writes more files into the folder it is given. weights: the model's,
    if it does not hold them itself.

    Raises
    ------
    DivergedError: a weight is NaN or infinite; nothing is written.
    """
    if not all_finite(player.model.parameters() if weights is None else weights.values()):
        raise DivergedError(f"{folder.name} was not written: some of its weights are NaN or infinite")
    staging = folder.parent / f"{TEMPORARY_PREFIX}{folder.name}"
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir(parents=True)
    try:
        only, base = {}, {}
        if hasattr(player.model, "peft_config"):
            adapter = player.adapter or POLICY_ADAPTER
            only, base = {"selected_adapters": [adapter]}, _base_fact(player.model, adapter, folder)
        held = {} if weights is None else {"state_dict": dict(weights)}
        player.model.save_pretrained(staging, safe_serialization=True, **only, **held)
        if only and adapter != POLICY_ADAPTER:  # peft puts those of other names into folders of their own
            for file in (staging / adapter).iterdir():
                file.replace(staging / file.name)
            (staging / adapter).rmdir()
        player.tokenizer.save_pretrained(staging)
        loading = {"dtype": player.dtype, "quantize": player.quantize}
        answer = {"answer": player.answer} if player.answer == "text" else {}
        write_json(staging / ROLE_FILE, {"role": player.role} | loading | answer | base | (facts or {}))
        if beside is not None:
            beside(staging)
    except BaseException:  # a full disk must not stay full
        shutil.rmtree(staging, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(folder.with_name(f"{TEMPORARY_PREFIX}old-{folder.name}"))
    staging.rename(folder)
    shutil.rmtree(folder.with_name(f"{TEMPORARY_PREFIX}old-{folder.name}"), ignore_errors=True)


def pick_device(name: str) -> torch.device:
    """The torch device called `name`; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {name}: {_first_line(error)}; use cpu or auto") from None


def _quantization(quantize: str, dtype: str) -> Any:
    """The transformers setting for loading weights in 8 or 4 bits."""
    from transformers import BitsAndBytesConfig

    if quantize == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=getattr(torch, dtype)
    )


def _check_folder(folder: Path, role: str | None) -> dict[str, str]:
    """The facts in `folder`: role, dtype, quantize, answer.

    Raises CheckpointError if it is not a model, or not for `role`.
    """
    if not folder.is_dir():
        others = sorted(folder.parent.glob("checkpoint-*")) if folder.parent.is_dir() else []
        near = f"; there is {others[-1]}" if others else "; run `reflectkit sft`, or name another folder"
        raise CheckpointError(f"no such model folder: {folder}{near}")
    inside = sorted(folder.glob("checkpoint-*"))
    if not (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file():
        near = f"; name a checkpoint in it, e.g. {inside[-1]}" if inside else "; it has no config.json"
        raise CheckpointError(f"{folder} is not a model folder{near}")
    if isinstance(stage := read_record(folder).get("stage"), str):
        near = f"; name one in it, e.g. {inside[-1]}" if inside else ", without one; name a run of sft or rlft"
        raise CheckpointError(f"{folder} is a run of {stage}, not a checkpoint{near}")
    if (folder / "adapter_config.json").is_file() and not (folder / "adapter_model.safetensors").is_file():
        raise CheckpointError(f"{folder} has no adapter_model.safetensors; other formats can run code and are not read")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise CheckpointError(f"{folder} has no tokenizer (tokenizer.json); copy the one the model was trained with")
    if not (folder / ROLE_FILE).is_file():
        return {}
    try:
        facts = read_json(folder / ROLE_FILE)
        trained_for = facts.get("role")
        allowed = {"role": None, "dtype": DTYPES, "quantize": QUANTIZE, "answer": ANSWERS}
        loading = {name: facts[name] for name in allowed if isinstance(facts.get(name), str)}
        if any(values and loading.get(name, values[0]) not in values for name, values in allowed.items()):
            raise AttributeError
    except (DataError, AttributeError):
        raise CheckpointError(f"{folder / ROLE_FILE} is damaged; delete it or make the checkpoint again") from None
    if role == "reflection" and trained_for not in ("reflection", None):
        raise CheckpointError(
            f"{folder} is a {trained_for} model, not a reflector; give one made by `sft --role reflection`"
        )
    if role == "policy" and trained_for == "reflection":
        raise CheckpointError(f"{folder} is a reflector, not a policy; give one made by `sft --role policy` or `plain`")
    return loading


def _unusable(source: str | Path, what: str, error: Exception) -> CheckpointError:
    """The error for a model that transformers refuses. what: the part of it."""
    if "trust_remote_code" in str(error):
        return CheckpointError(
            f"{source} brings Python code along, and that of models is never run (no --trust-remote-code); install it"
            " as a package that registers the model with transformers, see docs/your-own-model.md"
        )
    return CheckpointError(f"{source}: {what} ({_first_line(error)})")


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
