"""What a model's folder says without its weights: role, base of an adapter, config, tokenizer. No
code in it is run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reflectkit.errors import CheckpointError, DataError
from reflectkit.files import stage_of
from reflectkit.jsonl import read_json
from reflectkit.keys import masked
from reflectkit.models.hub import hub_options, looks_local, silence_libraries
from reflectkit.runs.run import checkpoints, refuse_missing
from reflectkit.types import ModelFacts, from_json

ROLE_FILE = "reflectkit.json"
REFLECTOR_FOLDER = "reflector"
"""Name of the folder of a trained reflector in a checkpoint of rlft."""
SERVICE = "service"
"""The fact of a checkpoint whose weights are on a training service: engine, base, rank, and the
path there.
"""
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
SAID_NOWHERE_ELSE = (
    ROLE_FILE,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""Files that say how a model reads and answers. Without one, defaults would stand in for what it
learned.
"""
SIZES = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 10_000,
    "hidden_size": 10**6,
    "vocab_size": 10**8,
    "max_position_embeddings": 10**9,
}
"""Upper limits of the sizes in a model's config; building a larger model would take all memory
before it fails.
"""
STATE_ELSEWHERE = ("deepseek_v4", "minimax", "recurrent_gemma", "rwkv", "xlstm")
"""Types of models whose state lies in their layers or in caches of their own, where it does not
allow for padding.
"""
BASE_FOLDER = "base_folder"
"""Key in the role file of the path of an adapter's base."""
BASE_WEIGHTS = "base_weights"
"""Key there of the digest of this base's weights, if it is a folder."""
BLOCK = 4096
"""Bytes of a tensor that are read for this digest, at each of its ends."""


def model_facts(source: Path) -> dict[str, Any]:
    """The facts saved with a model: role, env, reflector, …; empty if there are none that can be
    read.
    """
    try:
        facts = read_json(source / ROLE_FILE)
    except DataError:
        return {}
    return dict(facts) if isinstance(facts, dict) else {}


CALIBRATION = "calibration"
"""The fact of a checkpoint that is the temperature of its probabilities where it plays; training
ignores it.
"""


def calibration_of(source: Path) -> float:
    """The temperature that `rlft --calibrate` fitted to the probabilities of `source`; 1 if it did
    not.

    Raises CheckpointError if that is no number above 0.
    """
    value = model_facts(source).get(CALIBRATION, 1.0)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise CheckpointError(
        f"{source / ROLE_FILE}: {CALIBRATION} is {value!r:.60}, expected a number above 0;"
        " restore the file"
    )


QUESTIONS = "questions"
"""The fact of a typed reflector that lists the questions which it was trained on."""
BETTER = ("validation_return", "validation_probability")
"""The facts of a checkpoint that say how good it was on held-out problems or rows."""


def best_checkpoint(checkpoints: Iterable[Path]) -> Path | None:
    """The one of `checkpoints` that was best when it was validated, the last of equals; None if
    none was.
    """
    best, best_score = None, -math.inf
    for path in checkpoints:
        facts = model_facts(path)
        for name in BETTER:
            value = facts.get(name)  # None if it was no number
            if value is not None and value >= best_score:
                best, best_score = path, value
    return best


def check_model_folder(folder: Path) -> None:
    """Raises CheckpointError if `folder` is not a model's, but a run or what has only its name."""
    # 1. There is none
    if not folder.is_dir():
        others = checkpoints(folder.parent)
        near = (
            f"; there is {others[-1]}"
            if others
            else "; run `reflectkit sft`, or name another folder"
        )
        raise CheckpointError(f"no such model folder: {folder}{near}")
    # 2. A run
    inside = checkpoints(folder)
    if stage := stage_of(folder):
        if inside:
            advice = f"name one in it, e.g. {inside[-1]}"
        elif stage not in ("sft", "rlft"):
            advice = "name a run of sft or rlft"
        elif (folder / "report.json").is_file():
            advice = "it has no checkpoint any more: run it again with --force"
        else:
            advice = "it has not finished: run the same command again to resume it"
        raise CheckpointError(f"{folder} is a run of {stage}, not a checkpoint; {advice}")
    # 3. Another folder
    if not (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file():
        near = (
            f"; name a checkpoint in it, e.g. {inside[-1]}"
            if inside
            else "; name a run of sft or rlft"
        )
        raise CheckpointError(f"{folder} is not a model folder{near}")


def checked_facts(folder: Path, role: str | None) -> ModelFacts:
    """The facts in `folder`.

    Raises CheckpointError if it is not a model, or not for `role`.
    """
    # 1. Whether it is a model folder
    check_model_folder(folder)
    # 2. Whether its files are those that are read
    is_adapter = (folder / "adapter_config.json").is_file()
    if is_adapter and not (folder / "adapter_model.safetensors").is_file():
        raise CheckpointError(
            f"{folder} has no adapter_model.safetensors; other formats can run code and are not"
            " read"
        )
    if not has_tokenizer(folder) and not is_adapter:
        raise CheckpointError(
            f"{folder} has no tokenizer (tokenizer.json); copy the one the model was trained with"
        )
    # An adapter without a tokenizer has its base's
    refuse_missing(folder, SAID_NOWHERE_ELSE if has_tokenizer(folder) else (ROLE_FILE,))
    # 3. Whether it was trained for this role
    if not (folder / ROLE_FILE).is_file():
        return {}
    try:
        facts = from_json(ModelFacts, read_json(folder / ROLE_FILE))
    except DataError:
        raise CheckpointError(
            f"{folder / ROLE_FILE} is damaged; restore it, or make the checkpoint again"
        ) from None
    trained_for = facts.get("role")
    if role == "reflection" and trained_for not in ("reflection", None):
        raise CheckpointError(
            f"{folder} is a {trained_for} model, not a reflector; give one made by `sft --role"
            " reflection`"
        )
    if role == "policy" and trained_for == "reflection":
        raise CheckpointError(
            f"{folder} is a reflector, not a policy; give one made by `sft --role policy` or"
            " `plain`"
        )
    return facts


def has_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer is in `folder`; an adapter without one has its base's."""
    return any((folder / name).is_file() for name in TOKENIZERS)


def check_role(source: str | Path, role: str | None) -> str | None:
    """What `source` was trained for; None if nothing says so. Raises CheckpointError if that is not
    `role`.
    """
    return checked_facts(Path(source), role).get("role") if looks_local(source) else None


def base_of(folder: Path) -> str | None:
    """The base model of the adapter in `folder`: its folder, or its hub id; None without an
    adapter.

    A relative path in the adapter's config starts at the folder in which the adapter was trained,
    which may not be the working directory. The checkpoint records where the base is relative to
    itself; one without that record is taken to be, like its base, somewhere below the folder in
    which it was trained.

    Raises CheckpointError: the config is damaged, or the base is not there.
    """
    path = folder / "adapter_config.json"
    if not path.is_file():
        return None
    # 1. What the adapter's config calls it
    try:
        name = read_json(path)["base_model_name_or_path"]
        if not isinstance(name, str):
            raise TypeError("it does not name a base model")
    except (DataError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged ({first_line(error)}); make the checkpoint again"
        ) from None
    # 2. Where it may be: where the checkpoint recorded it, then upwards from the folder
    here = Path(os.path.realpath(folder))
    places = [parent / name for parent in here.parents] if "/" in name else []
    recorded = model_facts(folder).get(BASE_FOLDER)
    if isinstance(recorded, dict) and recorded.get("name") == name:
        places.insert(0, here / str(recorded.get("path")))
    for place in places:
        if (place / "config.json").is_file():
            same = os.path.isdir(name) and os.path.samefile(place, name)
            return name if same else os.path.realpath(place)
    if looks_local(name) and not os.path.isdir(name):
        raise CheckpointError(
            f"{folder} is an adapter of {name}, which is missing; put that model there again"
        )
    return name


def base_facts(
    model: Any,
    adapter: str,
    folder: Path,
    weights: str,
) -> dict[str, Any]:
    """What a checkpoint in `folder` records about the base of `adapter`: the digest of its weights,
    and where it is if its path is a relative one.

    weights: their digest when they were loaded, see `digest_of_weights`; empty if unknown.
    """
    facts: dict[str, Any] = {BASE_WEIGHTS: weights} if weights else {}
    name = model.peft_config[adapter].base_model_name_or_path
    if name and not os.path.isabs(name) and os.path.isdir(name):
        path = os.path.relpath(os.path.realpath(name), os.path.realpath(folder))
        facts[BASE_FOLDER] = {"name": name, "path": path}
    return facts


def refuse_other_base(folder: Path, base: str | None) -> None:
    """Raises CheckpointError if the adapter in `folder` was trained on other weights than its
    `base` has now.
    """
    recorded = model_facts(folder).get(BASE_WEIGHTS)
    if base is None or recorded is None:
        return
    if digest_of_weights(base) not in ("", recorded):
        raise CheckpointError(
            f"{folder} is an adapter of {base}, which has other weights now than in training;"
            " restore that model, or train the adapter again"
        )


def digest_of_weights(model: str | Path) -> str:
    """A digest of the tensors in folder `model`, whatever files they are in: their names, types and
    shapes, and the first and last bytes of each. Empty for what is no folder with weights.

    Raises CheckpointError if they cannot be read.
    """
    # 1. Where the tensors are
    places = {}
    for path in Path(model).glob("model*.safetensors"):
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(size, path.stat().st_size)))
            for name, tensor in header.items():
                if name != "__metadata__":
                    begin, end = (8 + size + offset for offset in tensor["data_offsets"])
                    places[name] = path, begin, end, tensor["dtype"], tensor["shape"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise unusable(model, "damaged weights", error) from None
    if not places:
        return ""

    # 2. What they are
    content = hashlib.sha256()
    for name, (path, begin, end, *kind) in sorted(places.items()):
        content.update(f"{name} {kind}\n".encode())
        with path.open("rb") as file:
            for place in (begin, max(begin, end - BLOCK)):
                file.seek(place)
                content.update(file.read(max(0, min(BLOCK, end - place))))
    return content.hexdigest()


def context_of(source: str | Path) -> int | None:
    """The context length of model `source` in tokens, from its config alone; None if the config
    does not say.
    """
    return getattr(config_of(base_of(Path(source)) or source), "max_position_embeddings", None)


def config_of(source: str | Path) -> Any:
    """The language model's config of folder or hub id `source`. Raises CheckpointError if it is not
    a usable one.
    """
    fetching = hub_options(source)
    from transformers import AutoConfig, PretrainedConfig

    try:
        _refuse_kernels(source, PretrainedConfig.get_config_dict(str(source), **fetching)[0])
        config = AutoConfig.from_pretrained(
            str(source), trust_remote_code=False, **fetching
        ).get_text_config()
    except CheckpointError:
        raise
    except Exception as error:  # the library raises many types
        raise unusable(source, "no usable config", error) from None
    # What cannot be read, and sizes that no model has
    if config.model_type in STATE_ELSEWHERE:
        raise CheckpointError(
            f"{source}: models of type {config.model_type} keep a state that padding spoils;"
            " use another"
        )
    for name, most in SIZES.items():
        value = getattr(config, name, None)
        if value is not None and not (isinstance(value, int) and 0 < value <= most):
            raise CheckpointError(
                f"{source}: config.json: {name} is {value!r:.60}, expected a whole number from 1 to"
                f" {most:,}; restore the file"
            )
    return config


def _refuse_kernels(
    source: str | Path,
    part: Any,
    setting: str = "",
) -> None:
    """Raises CheckpointError where a config names code on a hub as an implementation of attention
    or the like.

    part: the config, or what is in it at `setting`.
    """
    if isinstance(part, dict):
        for name, value in part.items():
            _refuse_kernels(
                source, value, setting or (name if name.endswith("_implementation") else "")
            )
    elif setting and isinstance(part, str) and "/" in part:
        raise CheckpointError(
            f"{source}: config.json: {setting} is {part!r:.60}, code from a hub, which is"
            " never run; remove the entry"
        )


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer of folder or hub id `source`, with the attribute `generation_end_ids`, which a
    tokenizer does not have of itself: the tokens with which the model's answers end by its
    generation config.

    Raises CheckpointError.
    """
    if looks_local(source):
        checked_facts(Path(source), None)
        if not has_tokenizer(Path(source)):
            return load_tokenizer(str(base_of(Path(source))))
    fetching = hub_options(source)
    from transformers import AutoTokenizer

    silence_libraries()
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(source), padding_side="left", trust_remote_code=False, **fetching
        )
    except Exception as error:  # the library raises many types where there is no usable tokenizer
        raise unusable(source, "no usable tokenizer", error) from None
    tokenizer.generation_end_ids = _generation_end_ids(base_of(Path(source)) or source)
    return wherever_read(tokenizer)


def _generation_end_ids(source: str | Path) -> tuple[int, ...]:
    """The end tokens in the generation config of model `source`, or in its config, which older
    models have alone.

    Raises CheckpointError: they are not token ids.
    """
    from transformers.utils import cached_file

    fetching = hub_options(source)
    for name in ("generation_config.json", "config.json"):
        try:
            path = cached_file(
                str(source), name, _raise_exceptions_for_missing_entries=False, **fetching
            )
        except OSError as error:  # the hub did not answer
            raise unusable(source, f"no usable {name}", error) from None
        if path is None:
            continue
        # The first file that lists some
        try:
            listed = read_json(Path(path))["eos_token_id"]
        except (DataError, TypeError):
            raise CheckpointError(f"{path} is damaged; restore it") from None
        except KeyError:
            continue
        if listed is None:
            continue
        ids = listed if isinstance(listed, list) else [listed]
        if not all(type(token) is int for token in ids):
            raise CheckpointError(
                f"{path}: eos_token_id is {listed!r:.60}, expected token ids; restore the file"
            )
        return tuple(ids)
    return ()


def wherever_read(tokenizer: Any) -> Any:
    """`tokenizer`, which will be saved with the same bytes whether it was read with HF_HUB_OFFLINE
    or without.
    """
    tokenizer.init_kwargs["local_files_only"] = False
    return tokenizer


def unusable(
    source: str | Path,
    what: str,
    error: Exception,
) -> CheckpointError:
    """The error for a model that transformers refuses. what: the part of it."""
    if "trust_remote_code" in str(error):
        return CheckpointError(
            f"{source} brings Python code along, and that of models is never run (no"
            " --trust-remote-code); install it as a package that registers the model with"
            " transformers, see docs/your-own-model.md"
        )
    return CheckpointError(
        f"{source}: {what} ({first_line(error)}); if its files are damaged or incomplete,"
        " restore them"
    )


def first_line(error: BaseException) -> str:
    """The first line of `error`'s message, and the second if the first ends with a colon, in at
    most 200 characters; the name of its type where it has none.

    >>> first_line(RuntimeError("Errors in Model:\\n\\tsize mismatch for weight"))
    'Errors in Model: size mismatch for weight'
    """
    text = masked(str(error)).strip() or type(error).__name__
    first, *others = text.splitlines()
    if first.endswith(":") and others:
        first = f"{first} {others[0].strip()}"
    return first[:200]
