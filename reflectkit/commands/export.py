"""export: write a checkpoint as a plain Hugging Face folder with a model card; a LoRA adapter is
merged.

The folder loads with `AutoModelForCausalLM.from_pretrained` and with reflectkit's own commands.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reflectkit.commands import STAGES, config_class
from reflectkit.config import REQUIRED, Config, as_plain, build_known, leaves, option, with_values
from reflectkit.console import Progress, Report, figures_table
from reflectkit.data.problems import Problems
from reflectkit.envs import env_class
from reflectkit.envs.setup import EnvConfig, EnvSetup, chat_settings
from reflectkit.errors import ConfigError, ReflectkitError, refuse
from reflectkit.eventloop import result_of
from reflectkit.files import stage_of
from reflectkit.jsonl import read_json
from reflectkit.models.checkpoint_metadata import QUESTIONS, SERVICE, base_of, model_facts
from reflectkit.models.refs import ModelRef
from reflectkit.prompts import (
    ACTION_MARKER,
    REFLECTION_MARKER,
    policy_prompt,
    reflection_prompt,
    thinking_prompt,
)
from reflectkit.runs.run import Run, RunConfig, open_run
from reflectkit.sampling.engine import PlayerEngineConfig
from reflectkit.types import DType, Observation
from reflectkit.version import VERSION

EXAMPLES = (
    "reflectkit export --policy results/taxi-tiny/reflect-rl/checkpoint-36 --out-dir taxi-policy",
    "reflectkit export --policy results/taxi-tiny/reflect-rl/checkpoint-36 --out-dir taxi-policy"
    " --dtype bfloat16 --license apache-2.0",
)
MINOR = ("seed",)  # nothing is random
READS = {
    "reflection": f"an observation and `{REFLECTION_MARKER}`; it answers with one line about it",
    "typed": (
        f"an observation, a question about it, the options as {{listed}} and `{ACTION_MARKER}`; it"
        f" answers with {{answer}}"
    ),
    "policy": (
        f"an observation, a reflection model's comment, {{listed}} and `{ACTION_MARKER}`; it"
        f" answers with {{answer}}"
    ),
    "plain": f"an observation, {{listed}} and `{ACTION_MARKER}`; it answers with {{answer}}",
    "think": (
        f"an observation, {{listed}} and `{REFLECTION_MARKER}`; it writes a line and, after"
        f" `{ACTION_MARKER}` on the"
        " next one, answers with {answer}"
    ),
}
ANSWERED = {
    "label": ("numbered actions", "a number"),
    "text": ("a list of actions", "the words of one of them"),
    "score": (
        "no actions",
        (
            "a score of each action, read alone: the end token's logit after its words and the"
            " end token"
        ),
    ),
}
"""How the actions are listed, and what is answered, by the form of the answer."""
LASTING_FACTS = (
    "env",
    "prompts",
    "step",
    "reflector",
    "model",
    "acts",
    "calibration",
    QUESTIONS,
)
"""Facts of a checkpoint that hold for its export, too."""


class ExportConfig(Config):
    """Settings of export."""

    policy: Path = option(help="Checkpoint of sft or rlft, or a run, for its best or newest one.")
    out_dir: Path = option(
        help="Folder to write; it must not exist, unless it is an earlier export (with --force)."
    )
    dtype: DType = option("float32", help="float32, bfloat16 or float16.")
    license: str = option(
        "",
        help=(
            "Licence identifier for the card, e.g. apache-2.0; the base model's licence binds you."
        ),
    )
    engine: PlayerEngineConfig = PlayerEngineConfig()
    run: RunConfig = RunConfig()


CONFIG = ExportConfig


def run(config: ExportConfig, progress: Progress) -> Report:
    """Write the folder. Raises CheckpointError, and ConfigError if something else is in its place."""
    # 1. Resolve: what is exported
    checkpoint = ModelRef.parse(str(config.policy)).checkpoint(progress)
    config = with_values(config, policy=checkpoint.path)
    checkpoint.require()
    with open_run("export", config, [config.policy]) as current:
        if current.done:
            return current.done
        if checkpoint.facts.get(SERVICE):
            return bring_home(config, current, progress)
        _check_target(config)

        # 2. Write the folder
        figures = _write_folder(config, progress)

        # 3. Report
        title = f"Exported to {config.out_dir}"
        current.tables.append(figures_table(title, "value", figures))
        return current.finish(figures, [config.out_dir])


def _check_target(config: ExportConfig) -> None:
    """Raises ConfigError if --out-dir is something else than an earlier export of the checkpoint."""
    target = config.out_dir
    earlier = model_facts(target).get("exported_from")
    if target.exists() and earlier is None:
        raise ConfigError(f"{target} already exists and is not an export; choose another --out-dir")
    if earlier not in (None, str(config.policy)) and not config.run.force:
        raise ConfigError(
            f"{target} already exists, from {earlier}; choose another --out-dir (or use --force)"
        )


def _write_folder(config: ExportConfig, progress: Progress) -> dict[str, Any]:
    """Write the weights, the facts that still hold, and the card; returns figures of the model."""
    progress.news(f"export: loading {config.policy}")
    from reflectkit.models.load import export

    with progress.bar(f"export {config.policy}", 1) as bar:
        # 1. The facts
        origin_facts = model_facts(config.policy)
        base = base_of(config.policy)
        facts = {}
        for name in LASTING_FACTS:
            if origin_facts.get(name) is not None:
                facts[name] = origin_facts[name]
        facts |= {"base": base, "exported_from": str(config.policy)}

        # 2. The card, and the files
        prompt = prompt_at_start(config, origin_facts)
        text = card(config, origin_facts, base, prompt)
        player = export(config.policy, config.out_dir, config.dtype, text, facts)
        bar.advance()
    return {
        "role": player.role,
        "parameters": sum(weight.numel() for weight in player.model.parameters()),
        "dtype": config.dtype,
        "merged": base is not None,
    }


def bring_home(config: ExportConfig, current: Run, progress: Progress) -> Report:
    """Write the adapter of a checkpoint whose weights are on a training service, as peft does, on
    the same base.

    Raises ConfigError if the service does not give it out, or the folder exists.
    """
    from reflectkit.eventloop import run_sync
    from reflectkit.jsonl import replacing_folder, write_json
    from reflectkit.models.checkpoint_metadata import ROLE_FILE, load_tokenizer, model_facts
    from reflectkit.sampling.service import opened_adapter, record_of, saved_on, unpack

    source, target = config.policy, config.out_dir
    refuse(
        target.exists() and not config.run.force,
        f"{target} already exists; choose another --out-dir",
    )
    record = record_of(source)
    facts = model_facts(source)
    del facts[SERVICE]
    service, base = saved_on(record, config.engine)
    tokenizer, rank = load_tokenizer(str(source)), int(record["rank"])

    # The service gives an adapter out as an archive
    async def fetch(archive: Path) -> None:
        adapter = await opened_adapter(service, base, rank, 0, record, tokenizer)
        await adapter.archive(archive)
        await adapter.close()

    with progress.bar(f"export {source}", 1) as bar, replacing_folder(target) as staging:
        archive = staging / "adapter.tar.gz"
        run_sync(fetch(archive))
        unpack(archive, record["base"], staging, service.url)
        archive.unlink()
        tokenizer.save_pretrained(staging)
        write_json(staging / ROLE_FILE, facts | {"exported_from": str(source)})
        bar.advance()
    figures = {
        "role": facts.get("role"),
        "rank": record["rank"],
        "base": record["base"],
        "merged": False,
    }
    current.tables.append(figures_table(f"Exported to {target}", "value", figures))
    return current.finish(figures, [target])


CARD = """---
{header}
---

# {name}

A {role} model for the environment `{env}`, trained with reflectkit {version}. It reads {reads}.
{prompt}
## Made from

{made_from}

## Training metrics

| figure | value |
|---|---|
{figures}

Rates are for sampled play on training problems; `reflectkit evaluate` measures held-out ones.

## Settings

Those that are not the defaults of reflectkit {version}:

```json
{settings}
```

## Use

To act with it:

```python
import reflectkit

agent = reflectkit.load_agent({players})
act = agent.act("what is seen, as the environment shows it"{choices})
print(act.action, act.comment, act.probabilities)
```

As a plain language model:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained({folder})
tokenizer = AutoTokenizer.from_pretrained({folder})
```
"""


def card(config: ExportConfig, facts: dict[str, Any], base: str | None, prompt: str) -> str:
    """The model card: description, origin, metrics, settings and use. facts: of the checkpoint.
    base: of an adapter. prompt: an example.
    """
    # 1. What the model is
    role = facts.get("role") or "chat"
    run_dir, target = config.policy.parent, json.dumps(str(config.out_dir))
    origin, reflector = base or facts.get("model"), facts.get("reflector")
    chooses = _chooses(facts)

    # 2. The header that the hub reads
    header: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reflectkit", "reinforcement-learning"],
    }
    if config.license:
        header["license"] = config.license
    if isinstance(origin, str) and origin.count("/") == 1 and not Path(origin).exists():
        header["base_model"] = origin

    # 3. Where it comes from, and its figures
    base_text = "the weights that training began with"
    if origin:
        base_text = f"`{origin}`{', its LoRA adapter merged' if base else ''}"
    made_from = [f"- checkpoint: `{config.policy}`", f"- base: {base_text}"]
    if reflector:
        made_from.append(f"- comments by: `{reflector}`")
    figures = figures_table("", "value", _metrics(run_dir)).rows

    # 4. How it is loaded: a policy with its reflector, if it reads comments
    players = target
    if role == "reflection":
        players = f'"PATH/OF/ITS/POLICY", reflector={target}'
    elif role == "policy" or reflector:
        players += f", reflector={json.dumps(str(reflector or 'PATH/OF/ITS/REFLECTOR'))}"
    return CARD.format(
        header="\n".join(f"{name}: {json.dumps(value)}" for name, value in header.items()),
        name=config.out_dir.name,
        role=role,
        env=facts.get("env", "unknown"),
        version=VERSION,
        reads=_reads(facts, chooses=chooses),
        prompt=prompt and EXAMPLE.format(prompt=prompt),
        made_from="\n".join(made_from),
        figures="\n".join(f"| {name} | {value} |" for name, value in figures),
        settings=json.dumps(_chosen_settings(run_dir), indent=1, ensure_ascii=False),
        players=players,
        choices=', choices=["one action", "another"]' if chooses else "",
        folder=target,
    )


def _chooses(facts: Mapping[str, Any]) -> bool:
    """Whether a checkpoint with these facts chooses among actions, or comments on such choices."""
    role = facts.get("role")
    if role == "reflection" or facts.get("acts") == "choice" or facts.get("answer") in ANSWERED:
        return True
    if role:  # earlier versions did not record it
        with contextlib.suppress(ReflectkitError):
            return env_class(str(facts.get("env"))).acts == "choice"
    return False


def _reads(facts: Mapping[str, Any], *, chooses: bool) -> str:
    """What the model reads, and how it answers."""
    role = facts.get("role") or "chat"
    if chooses:
        kind = "typed" if facts.get(QUESTIONS) else role
        listed, answer = ANSWERED.get(facts.get("answer", ""), ANSWERED["label"])
        return READS.get(kind, READS["policy"]).format(listed=listed, answer=answer)
    form = "" if role == "chat" else " as plain text, without a chat template"
    comments = ", with comments" if facts.get("reflector") else ""
    return f"what the environment shows{form}{comments}; it answers with text or tool calls"


def _metrics(run_dir: Path) -> dict[str, Any]:
    """The figures in the report of a run, also those of held-out problems before and after training."""
    # 1. Single numbers
    recorded = _recorded(run_dir / "report.json", "figures")
    metrics = {name: value for name, value in recorded.items() if not isinstance(value, dict)}

    # 2. Held-out problems
    held_out = recorded.get("held_out")
    if not isinstance(held_out, dict):
        return metrics
    for when, numbers in held_out.items():
        if when == "random" or not isinstance(numbers, dict):
            continue
        for name in ("success", "return"):
            if name in numbers:
                metrics[f"{name} {when} training, most likely actions"] = numbers[name]
    return metrics


EXAMPLE = """
At the start of a held-out problem, with a place for a comment if it has one:

~~~~~~text
{prompt}
~~~~~~
"""
LONGEST_PROMPT = 4000  # characters in the card


def prompt_at_start(config: ExportConfig, facts: dict[str, Any]) -> str:
    """What the model reads at the start of a held-out problem; "" where its environment cannot be
    played here.
    """
    observation = None
    # Its code, its files or what it needs may be missing, or fail
    with contextlib.suppress(Exception):
        observation = _first_observation(config, str(facts["env"]))
    if observation is None or facts.get(QUESTIONS):
        return ""
    role, form = facts.get("role"), facts.get("answer", "label")
    comment = "…" if role == "policy" else None
    if role == "reflection":
        prompt = reflection_prompt(observation)
    elif role == "think":
        prompt = thinking_prompt(observation, form)
    elif observation.choices:
        prompt = policy_prompt(observation, comment, form)
    else:
        from reflectkit.models.chat import Dialogue
        from reflectkit.models.checkpoint_metadata import load_tokenizer

        prompt = Dialogue(load_tokenizer(config.policy), plain=role is not None).text(
            observation, comment
        )
    return prompt[:LONGEST_PROMPT]


def _first_observation(config: ExportConfig, env: str) -> Observation | None:
    """None for an environment in another process, or one that asks a chat model."""
    # The settings of the environment as they were in training
    recorded = _recorded(config.policy.parent / "config.json", "settings") | {"env": env}
    # Other settings of the run do not matter here
    settings = build_known(EnvConfig, recorded)
    if settings.kind.remote or chat_settings(settings.settings):
        return None
    setup = EnvSetup.of(settings, config.run)
    level = settings.kind.levels[-1]
    with contextlib.closing(setup.maker(level)()) as game:
        return result_of(game.reset(Problems(setup).tasks("test", level)[0], 0))


def _chosen_settings(run_dir: Path) -> dict[str, Any]:
    """The settings of the run in `run_dir` that differ from the defaults of its command."""
    settings, stage = _recorded(run_dir / "config.json", "settings"), stage_of(run_dir)
    if stage not in STAGES:
        return settings
    defaults = {leaf.name: as_plain(leaf.default) for leaf in leaves(config_class(stage), settings)}
    return {
        name: value for name, value in settings.items() if value != defaults.get(name, REQUIRED)
    }


def _recorded(path: Path, part: str) -> dict[str, Any]:
    """A part of a run's file; empty if it is missing."""
    return dict(read_json(path)[part]) if path.is_file() else {}
