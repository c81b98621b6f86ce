"""Load and save a player: a model, its tokenizer, and a small file with the role that it was
trained for.

Only safetensors are read and written, and no code that comes with a model is run.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from reflectkit.errors import CheckpointError, ConfigError, DivergedError
from reflectkit.jsonl import replacing_folder, write_json, write_text
from reflectkit.models.chat import Dialogue
from reflectkit.models.checkpoint_metadata import (
    ROLE_FILE,
    SERVICE,
    base_facts,
    base_of,
    checked_facts,
    config_of,
    digest_of_weights,
    first_line,
    load_tokenizer,
    model_facts,
    refuse_other_base,
    unusable,
)
from reflectkit.models.hub import hub_options, looks_local
from reflectkit.runs.run import refuse_damage
from reflectkit.text import pluralize
from reflectkit.types import ANSWERS

ALL_LINEAR = "all-linear"  # peft's own word
REPACKS = "support_avx512bf16_for_cpu"  # bitsandbytes' own name
POLICY_ADAPTER = "default"  # peft's own name for the first adapter of a model


@dataclass(frozen=True)
class LoadedModel:
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
    """What it was trained to answer a choice with, see `types.Answer`; empty if unknown."""
    weights_digest: str = ""
    """That of the weights, or of those of an adapter's base, when they were loaded; empty for new
    ones, and for those of a hub.
    """

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
    def vocabulary(self) -> int:
        """The number of tokens that the model has embeddings for; the tokenizer may have fewer."""
        return int(getattr(self.model.config.get_text_config(), "vocab_size", None) or 2**31)

    @property
    def pad_id(self) -> int:
        """The padding id; padding is masked, so any id will do."""
        return int(
            next(
                token
                for token in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
                if token is not None
            )
        )


def load_player(
    source: str | Path,
    role: str | None = None,
    *,
    device: str = "auto",
    dtype: str | None = None,
    quantize: str | None = None,
) -> LoadedModel:
    """The model and tokenizer in folder `source`, or of hub id `source`.

    role: what it will be used as ("policy" or "reflection"); a checkpoint trained for the other one
    is refused. device: "auto" (a GPU if there is one), "cpu", "cuda", … dtype: name of a torch
    dtype. quantize: "none", "8bit" or "4bit", by bitsandbytes; only an adapter can then be trained.
    Both default to those the checkpoint was saved with, or to float32 and none.

    Raises CheckpointError: no such folder, no tokenizer, damaged weights, the wrong role, or an id
    that cannot be fetched.
    """
    # 1. Whether the folder is a model for this role, whose files are as they were written
    folder = Path(source)
    facts = checked_facts(folder, role) if looks_local(source) else {}
    if looks_local(source):
        refuse_damage(folder)
        refuse_service(folder)
    base_name = base_of(folder)
    refuse_other_base(folder, base_name)
    fetching = hub_options(base_name or source)

    # 2. How to load it
    dtype = dtype or facts.get("dtype", "float32")
    quantize = quantize or facts.get("quantize", "none")
    name = str(source)
    tokenizer = load_tokenizer(source)
    config_of(base_name or source)
    place = pick_device(device)
    options = _loading_options(dtype, quantize, place)
    if fetching:
        options |= fetching | {"adapter_kwargs": dict(fetching)}

    # 3. An adapter on its base, or a whole model; no tensor may be missing
    try:
        if base_name is not None:
            base, _ = _whole_model(base_name, options)
            model = _adapter_on(base, base_name, folder)
        else:
            model, unexpected_names = _whole_model(name, options)
            if unexpected_names and (folder / ROLE_FILE).is_file():  # written by save_player
                count, first = len(unexpected_names), min(unexpected_names)
                fault = f"config.json has no place for {count} of the saved tensors, e.g. {first}"
                raise CheckpointError(f"{name}: {fault}; restore the file")
    except CheckpointError:
        raise
    except Exception as error:  # truncated, not safetensors, of another shape, …
        raise unusable(name, "cannot load the model", error) from None

    # 4. Its device
    if quantize == "none":
        model.to(place)
    if quantize == "4bit":
        # bitsandbytes repacks weights on some CPUs, which not every shape allows
        for module in model.modules():
            if hasattr(module, REPACKS):
                setattr(module, REPACKS, False)
    return LoadedModel(
        model,
        tokenizer,
        facts.get("role"),
        dtype,
        quantize,
        answer=facts.get("answer", ""),
        weights_digest=digest_of_weights(base_name or source),
    )


def _loading_options(dtype: str, quantize: str, place: torch.device) -> dict[str, Any]:
    """Options of transformers for a model. dtype, quantize: see `load_player`. place: its device."""
    kind = getattr(torch, dtype)
    options: dict[str, Any] = {"dtype": kind, "use_safetensors": True, "trust_remote_code": False}
    if quantize == "none":
        return options
    from transformers import BitsAndBytesConfig

    nf4: dict[str, Any] = {}
    if quantize == "4bit":
        nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": kind}
    bits = BitsAndBytesConfig(**{f"load_in_{quantize}": True}, **nf4)
    return options | {"quantization_config": bits, "device_map": {"": place}}


def _whole_model(name: str, options: Mapping[str, Any]) -> tuple[Any, Collection[str]]:
    """(the model `name`, names of tensors that it has no place for). Raises CheckpointError if some
    are missing.
    """
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(name, output_loading_info=True, **options)
    _refuse_missing(name, report["missing_keys"])
    return model, report["unexpected_keys"]


def _adapter_on(base: Any, base_name: str, folder: Path) -> Any:
    """The adapter in `folder` on the model `base`, called `base_name`. Raises CheckpointError if
    tensors are missing.
    """
    from peft import PeftModel

    from reflectkit.models.lora import join_products

    _resize_embeddings(base, folder)
    model = PeftModel.from_pretrained(base, str(folder), is_trainable=True)
    model.peft_config[POLICY_ADAPTER].base_model_name_or_path = base_name
    _refuse_missing_adapter(model, folder)
    join_products(model)
    return model


def refuse_service(folder: Path) -> None:
    """Raises CheckpointError if the weights of checkpoint `folder` are on a training service."""
    if record := model_facts(folder).get(SERVICE):
        raise CheckpointError(
            f"the weights of {folder} are on a training service ({record.get('engine')}), and this"
            " needs them here; see `reflectkit export`"
        )


def _resize_embeddings(base: Any, folder: Path) -> None:
    """Give `base` as many embeddings as the adapter in `folder` was trained with; it brings the
    weights of new ones.
    """
    from peft import PeftConfig

    # 1. How many embeddings the adapter's tensors have, by how peft may have saved them
    layers = {base.get_input_embeddings(), base.get_output_embeddings()}
    names = [
        f"base_model.model.{name}" for name, module in base.named_modules() if module in layers
    ]
    axes = {
        "weight": 0,
        "base_layer.weight": 0,
        "token_adapter.base_layer.weight": 0,
        "lora_embedding_A": 1,
        "lora_B.weight": 0,
    }
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
        keys = set(file.keys())
        sizes = {
            file.get_slice(f"{name}.{suffix}").get_shape()[axis]
            for name in names
            for suffix, axis in axes.items()
            if f"{name}.{suffix}" in keys
        }
    # 2. The base gets as many; an adapter of single tokens names them in its config
    rows = base.get_input_embeddings().weight.shape[0]
    if sizes:
        rows_needed = max(sizes)
    else:
        last = max(_trained_tokens(PeftConfig.from_pretrained(str(folder))), default=0)
        rows_needed = max(rows, last + 1)
    if rows_needed != rows:
        with torch.random.fork_rng():
            base.resize_token_embeddings(rows_needed, mean_resizing=False)


def _trained_tokens(config: Any) -> list[int]:
    """The tokens whose embeddings alone an adapter with this `config` of peft's trains."""
    tokens = getattr(config, "trainable_token_indices", None) or []
    return list(itertools.chain(*tokens.values())) if isinstance(tokens, dict) else list(tokens)


def with_adapter(
    player: LoadedModel,
    rank: int,
    alpha: int,
    seed: int,
    dropout: float = 0.0,
    targets: str = "",
) -> LoadedModel:
    """`player` with a new LoRA adapter, which alone is trained (arXiv 2106.09685).

    seed: for its weights. dropout: of what the adapter reads, 0 … 1. targets: the layers that it
    changes, "all-linear" or names separated by commas; "": peft's choice for this kind of model, or
    all linear ones where it has none.

    Raises ConfigError: it has an adapter, or no such layers.
    """
    from peft import LoraConfig, PeftModel, get_peft_model
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    from reflectkit.models.lora import join_products

    if isinstance(player.model, PeftModel):
        raise ConfigError(
            "the model already has a LoRA adapter, which will be trained further; omit --lora-r"
        )
    # 1. The layers that it changes
    has_default_targets = (
        player.model.config.model_type in TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    )
    choice = (
        targets if targets in ("", ALL_LINEAR) else [name.strip() for name in targets.split(",")]
    )
    target_modules = choice or (None if has_default_targets else ALL_LINEAR)
    layers = {
        name.rpartition(".")[2]
        for name, part in player.model.named_modules()
        if hasattr(part, "in_features")
    }
    # 2. The adapter, with weights by the seed
    with torch.random.fork_rng():
        torch.manual_seed(seed % 2**63)
        settings = LoraConfig(
            r=rank,
            lora_alpha=alpha,
            lora_dropout=dropout,
            target_modules=target_modules,
            task_type="CAUSAL_LM",
        )
        try:
            adapted = get_peft_model(player.model, settings)
        except ValueError:  # no such layers, or an out_proj that peft cannot adapt
            usable = ",".join(sorted(layers - {"out_proj", "lm_head"}))
            raise ConfigError(
                f"peft cannot adapt {targets or ALL_LINEAR}; use --lora-targets {usable}"
            ) from None
    join_products(adapted)
    return replace(player, model=adapted)


def load_pair(
    policy: str | Path,
    reflector: str | Path,
    *,
    device: str = "auto",
    dtype: str | None = None,
    quantize: str | None = None,
) -> tuple[LoadedModel, LoadedModel]:
    """(policy, reflector): two LoRA adapters on one base, with half the memory of two models; see
    `load_player`.

    Raises CheckpointError: one of them is not an adapter, or their bases or the way they are loaded
    differ.
    """
    # 1. Whether both are adapters of one base, loaded alike
    bases = {}
    for name, role in ((policy, "policy"), (reflector, "reflection")):
        folder = Path(name)
        facts = checked_facts(folder, role) if looks_local(name) else {}
        if not (folder / "adapter_config.json").is_file():
            raise CheckpointError(
                f"{name} is not a LoRA adapter, so it cannot share a base; omit --share-base"
            )
        bases[role] = (
            base_of(folder),
            facts.get("dtype", "float32"),
            facts.get("quantize", "none"),
        )
    if bases["policy"] != bases["reflection"]:
        one, other = ", ".join(map(str, bases["policy"])), ", ".join(map(str, bases["reflection"]))
        raise CheckpointError(
            f"the two adapters do not share a base: {policy} is on {one}; {reflector} on {other}"
        )
    # 2. The policy on its base, then the reflector's adapter next to it
    loaded = load_player(policy, "policy", device=device, dtype=dtype, quantize=quantize)
    actor = replace(loaded, adapter=POLICY_ADAPTER)
    _add_adapter(actor.model, reflector, "reflection")
    return actor, replace(actor, role="reflection", adapter="reflection")


@dataclass(frozen=True)
class Reference:
    """The frozen player that training started from, for a KL penalty. copy: a separate model; None:
    the player's base alone or with its adapter called `adapter`, so that there is no second copy.
    """

    player: LoadedModel
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

    def pairs(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """(this player's, the present player's) weights by name: those that the latter trains."""
        ours = dict((self.copy or self.player.model).named_parameters())
        active_adapter = f".{self.player.adapter or POLICY_ADAPTER}."
        our_adapter = f".{self.adapter}."
        result = {}
        for name, weight in self.player.model.named_parameters():
            if weight.requires_grad:
                our_name = name if self.copy else name.replace(active_adapter, our_adapter)
                result[name] = (ours[our_name], weight)
        return result

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Move towards the present player: a moving average that keeps `decay` of itself."""
        for average, weight in self.pairs().values():
            average.lerp_(weight.to(average.dtype), 1 - decay)

    @torch.no_grad()
    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take the place that `pairs` had when its weights were saved."""
        for name, (average, _) in self.pairs().items():
            average.copy_(weights[name])


def averaged_player(player: LoadedModel) -> Reference:
    """A moving average of `player`, which begins as it is now: another adapter if it has one, else
    a copy.
    """
    if not hasattr(player.model, "peft_config"):
        return Reference(player, copy=copy.deepcopy(player.model).eval().requires_grad_(False))
    active, average = player.adapter or POLICY_ADAPTER, Reference(player, adapter="average")
    with torch.random.fork_rng():
        player.model.add_adapter("average", player.model.peft_config[active])
    player.model.set_adapter(active)
    average.follow(0.0)
    return average


def starting_player(
    player: LoadedModel,
    source: str | Path,
    fresh_adapter: bool,
    device: str = "auto",
    role: str = "policy",
) -> Reference:
    """What training started from: `source`, or the base of an adapter that was new then. role: as
    for `load_player`.

    Raises CheckpointError if `source` cannot be loaded.
    """
    if fresh_adapter:
        return Reference(player)
    if (Path(source) / "adapter_config.json").is_file():
        active, name = (
            player.adapter or POLICY_ADAPTER,
            "reference" if role == "policy" else f"{role}-reference",
        )
        _add_adapter(player.model, source, name)
        player.model.set_adapter(active)
        return Reference(player, adapter=name)
    start = load_player(source, role, device=device, dtype=player.dtype, quantize=player.quantize)
    return Reference(player, copy=start.model.eval().requires_grad_(False))


def _add_adapter(
    model: Any,
    folder: str | Path,
    name: str,
) -> None:
    """Add another adapter to `model`, called `name`. Raises CheckpointError."""
    try:
        refuse_damage(Path(folder))
        refuse_other_base(Path(folder), base_of(Path(folder)))
        model.load_adapter(str(folder), adapter_name=name)
        _refuse_missing_adapter(model, Path(folder), name)
    except CheckpointError:
        raise
    except Exception as error:  # truncated, of another shape, …
        raise CheckpointError(f"{folder}: cannot load the adapter ({first_line(error)})") from None


def _refuse_missing_adapter(
    model: Any,
    folder: Path,
    name: str = POLICY_ADAPTER,
) -> None:
    """Raises CheckpointError if the adapter in `folder` lacks tensors of the model's adapter
    `name`.
    """
    from peft import get_peft_model_state_dict

    with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
        _refuse_missing(
            str(folder), set(get_peft_model_state_dict(model, adapter_name=name)) - set(file.keys())
        )


def _refuse_missing(name: str, missing: Collection[str]) -> None:
    """Raises CheckpointError if tensors are missing, which transformers and peft would fill with
    random values.
    """
    if missing:
        raise CheckpointError(
            f"{name}: the weights lack {pluralize(len(missing), 'tensor')}, e.g."
            f" {min(missing)}; make it again"
        )


def checkpoint_gradients(model: Any) -> None:
    """Keep only each layer's input for the backward pass and recompute the rest: less memory for
    about a third more time.

    The layers are put in training mode, which they require for this, but not the modules inside
    them, such as dropout.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    # the method's name since transformers 5.20 or so, and the one before
    enable = (
        getattr(bare, "activation_checkpointing_enable", None) or bare.gradient_checkpointing_enable
    )
    enable({"use_reentrant": False})
    for module in bare.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


@torch.no_grad()
def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether no value in `tensors` is NaN or infinite. Integer tensors, e.g. quantised weights,
    are skipped, and so are the parts of sharded ones that other processes have.
    """
    floats = []
    for tensor in tensors:
        part: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if part.is_floating_point() and part.numel():
            floats.append(part.detach())
    return math.isfinite(torch.nn.utils.get_total_norm(floats, norm_type=math.inf))


def save_player(
    folder: Path,
    player: LoadedModel,
    facts: dict[str, Any] | None = None,
    write_rest: Callable[[Path], None] | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write model, tokenizer and role to `folder` atomically.

    facts: JSON values saved with the role. write_rest: writes more files into the folder that it is
    given. weights: the model's, if it does not hold them itself.

    Raises DivergedError: a weight is NaN or infinite; nothing is written.
    """
    if not all_finite(player.model.parameters() if weights is None else weights.values()):
        raise DivergedError(
            f"{folder.name} was not written: some of its weights are NaN or infinite"
        )

    # 1. Of a model with adapters, only this player's; it records where its base is
    all_facts: dict[str, Any] = {
        "role": player.role,
        "dtype": player.dtype,
        "quantize": player.quantize,
    }
    if player.answer in ANSWERS[1:]:
        all_facts["answer"] = player.answer
    options: dict[str, Any] = {}
    adapter = None
    if hasattr(player.model, "peft_config"):
        adapter = player.adapter or POLICY_ADAPTER
        options["selected_adapters"] = [adapter]
        all_facts |= base_facts(player.model, adapter, folder, player.weights_digest)
    if weights is not None:
        options["state_dict"] = dict(weights)
    all_facts |= facts or {}

    # 2. The folder, which takes its place when all is written
    with replacing_folder(folder) as staging:
        player.model.save_pretrained(staging, safe_serialization=True, **options)
        # peft puts those of other names into folders of their own
        if adapter is not None and adapter != POLICY_ADAPTER:
            for file in (staging / adapter).iterdir():
                file.replace(staging / file.name)
            (staging / adapter).rmdir()
        player.tokenizer.save_pretrained(staging)
        write_json(staging / ROLE_FILE, all_facts)
        if write_rest is not None:
            write_rest(staging)


def export(
    source: Path,
    target: Path,
    dtype: str,
    card: str,
    facts: Mapping[str, Any],
) -> LoadedModel:
    """Write the model of checkpoint `source` to `target`, its adapter merged into unquantised
    weights of `dtype`.

    card: text of the model card. facts: saved with the role. The generation config lists all tokens
    that end an answer.

    Raises CheckpointError: see `load_player`; or merging the adapter would change what the model
    says.
    """
    player = load_player(source, device="cpu", dtype=dtype, quantize="none")
    model, adapter = player.model, hasattr(player.model, "peft_config")
    if adapter:
        token_ids = _probe_ids(player)
        expected_TV = _logits(model, token_ids)
        _untie(model)
        try:
            model = model.merge_and_unload()
        except NotImplementedError as error:  # aLoRA, which acts on a part of the tokens
            raise CheckpointError(
                f"{source}: an adapter of this kind cannot be merged ({first_line(error)}); use it"
                " as it is, an adapter on its base"
            ) from None
    stop_ids = Dialogue(player.tokenizer, plain=player.role is not None).stop_ids
    if stop_ids and model.can_generate():
        model.generation_config = _ending_with(stop_ids, model.generation_config)
    if player.role is not None:  # it learned from plain text
        player.tokenizer.chat_template = None
    whole = LoadedModel(model, player.tokenizer, player.role, dtype, answer=player.answer)

    def write_card_and_check(staging: Path) -> None:
        write_text(staging / "README.md", card)
        if adapter:
            model.to("meta")  # the weights are in the folder now
            _refuse_difference(staging, token_ids, expected_TV, dtype)

    save_player(target, whole, dict(facts), write_rest=write_card_and_check)
    return whole


def _ending_with(stop_ids: Collection[int], config: Any) -> Any:
    """The generation config with these end tokens; without other settings where transformers would
    not write them, as Llama 2's temperature without sampling.
    """
    changed = copy.deepcopy(config)
    changed.eos_token_id = sorted(stop_ids)
    try:
        changed.validate(strict=True)
    except ValueError:
        ids = {"bos_token_id": config.bos_token_id, "pad_token_id": config.pad_token_id}
        return type(config)(eos_token_id=changed.eos_token_id, **ids)
    return changed


PROBED = 64
"""Tokens whose logits are compared before and after an adapter is merged."""
ROUNDING = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""How far merging may move a logit by rounding, as a share of the largest."""


def _probe_ids(player: LoadedModel) -> torch.Tensor:
    """Token ids (1, T): those whose embeddings alone the adapter trained, and others, spread over
    the vocabulary.
    """
    trained_ids = _trained_tokens(player.model.peft_config[POLICY_ADAPTER])
    count = min(PROBED, player.context)
    last = player.model.get_input_embeddings().weight.shape[0] - 1
    spread = [number * last // (count - 1) for number in range(count)]
    return torch.tensor([[*trained_ids, *spread][:count]])


@torch.no_grad()
def _logits(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    """Float32 logits (T, V) after each of `token_ids` (1, T)."""
    return model.eval()(token_ids, use_cache=False).logits[0].float()


def _untie(model: Any) -> None:
    """Give the head of `model` weights of its own where it shares those of the embeddings and its
    adapter changes one of the two: merged into shared weights, the change would be in both.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [model.get_input_embeddings(), model.get_output_embeddings()]
    if not any(isinstance(layer, BaseTunerLayer) for layer in layers):
        return
    embedding, head = (
        layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer for layer in layers
    )
    if head is not None and head.weight is embedding.weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        model.config.get_text_config().tie_word_embeddings = False
        model.config.tie_word_embeddings = False


def _refuse_difference(
    folder: Path,
    token_ids: torch.Tensor,
    expected_TV: torch.Tensor,
    dtype: str,
) -> None:
    """Raises CheckpointError if the model in `folder` has other logits than those expected."""
    from transformers import AutoModelForCausalLM

    merged = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False
    )
    difference = float((_logits(merged, token_ids) - expected_TV).abs().max())
    limit = ROUNDING[dtype] * max(1.0, float(expected_TV.abs().max()))
    if not difference <= limit:
        raise CheckpointError(
            f"merging this adapter changes what the model says (a logit by {difference:.3g}, of"
            f" which rounding explains {limit:.2g}), so nothing was written; use the checkpoint as"
            " it is, an adapter on its base"
        )


def pick_device(name: str) -> torch.device:
    """The torch device called `name`; "auto" is a GPU if there is one. On a GPU, cuDNN's attention
    is switched off.
    """
    # cuDNN builds a plan for each new shape of a batch, and here nearly every batch has another
    # one: 0.8 s of the 1.9 s of an `rlft` update on an H100. The other kernels need no plan.
    torch.backends.cuda.enable_cudnn_sdp(False)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
        if reason.startswith("Expected one of"):  # forty kinds
            reason = "no such device"
        raise ConfigError(f"--device {name}: {reason}; use auto, cpu, cuda or mps") from None
