"""Plays one episode for slime: `generate`, for `--custom-generate-function-path`.

The file of `--custom-config-path` has a mapping `reflectkit:` with the settings below and those of
the environment. A prompt's own `metadata["reflectkit"]` overrides it, e.g. by `metadata_overrides`
of an evaluation set. The reflector is the model named "reflector" in the file of `--sglang-config`.

A conversation whose prompts only grow is one row; where a chat template rewrites the history, and
at each choice, a new row starts (`train/training_rows.py`). The rows share their `rollout_id`, so
that slime's loss counts the episode once.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from scipy.special import log_softmax

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.config import Config, build, option, parse_yaml
from reflectkit.envs.setup import PlugInConfig
from reflectkit.errors import CheckpointError, ConfigError, DataError, EnvironmentFailure
from reflectkit.eventloop import outside_loop
from reflectkit.integrations.slime.rewards import EPISODE
from reflectkit.jsonl import text_of
from reflectkit.models.checkpoint_metadata import context_of, load_tokenizer, model_facts
from reflectkit.rollouts.episode import Episode, play
from reflectkit.rollouts.wrappers import Checked, checked
from reflectkit.sampling.base import SampleOutput, SampleRequest
from reflectkit.seeding import derive
from reflectkit.train.training_rows import rows
from reflectkit.types import (
    SCORE,
    Decision,
    Observation,
    Status,
    Task,
    Thinking,
    Trajectory,
    Turn,
    from_json,
)

KEY = "reflectkit"
"""The settings in the file of --custom-config-path, and in a prompt's metadata."""
REFLECTOR = "reflector"
"""Name of the frozen second model in the file of --sglang-config."""
WHERE = f"{KEY} in --custom-config-path"
HELD_OUT = ("validate", "test", "unseen")
"""The splits that nobody trains on."""
LONGEST = 2**20
"""Context length, in tokens, of a model whose config does not say."""
UNFIT = ("partial_rollout", "group_rm", "use_rollout_routing_replay", "log_passrate")
"""Arguments of slime that do not go together with whole episodes of several rows."""
ROUTING_KEY = "X-SMG-Routing-Key"
"""The header by which `--router-policy consistent_hashing` sends an episode's requests to one
server.
"""

logger = logging.getLogger(__name__)
_spare: defaultdict[tuple[SlimeConfig, str], list[Checked]] = defaultdict(list)
"""Environments of ended episodes, by settings and level."""


class SlimeConfig(Config):
    """The settings of our part; slime's own arguments set the sampling, the lengths and the seed."""

    plugin: PlugInConfig
    thinking: Thinking = option(
        "on", help="Reasoning: on, off, or hidden (not shown to the model later)."
    )
    episode_tokens: int = option(
        0, help="Most tokens that the policy may write in an episode; 0: no limit.", ge=0
    )
    reflect_prob: float = option(
        1.0, help="Probability that the policy sees the reflector's comment at a step.", ge=0, le=1
    )
    reflect_temperature: float = option(
        0.0, help="Temperature of the comments; greedy ones are cached.", ge=0
    )
    one_row: bool = option(
        False,
        help=(
            "Return each episode as one Sample instead of a list; an error if an episode has"
            " several rows."
        ),
    )


@dataclass(frozen=True)
class Prompt:
    """A row of the prompt data, as `prompts.py` writes it. split: the file of problems that it was
    made of.
    """

    task: Task
    split: str
    config: SlimeConfig


def read_prompt(args: Any, metadata: Any) -> Prompt:
    """The prompt with the settings for its episode.

    Raises DataError: the metadata was not written by `python -m reflectkit.integrations.slime`.
    ConfigError: wrong settings.
    """
    # 1. The task
    if not isinstance(metadata, Mapping) or not {"task", "env"} <= metadata.keys():
        fix = (
            "write it with `python -m reflectkit.integrations.slime`, and use --metadata-key"
            " metadata"
        )
        raise DataError("prompt data", f"has no task; {fix}")
    task = from_json(Task, metadata["task"], path="prompt data")

    # 2. The settings: a prompt's own override those of the command line
    general, of_prompt = getattr(args, KEY, None) or {}, metadata.get(KEY) or {}
    config = _config(json.dumps({"env": metadata["env"], **general, **of_prompt}, default=str))
    if task.env != config.plugin.setup.env_name:
        raise ConfigError(
            f"task {task.id!r} is of env '{task.env}', but {WHERE} has env:"
            f" {config.plugin.env.name}; leave env out"
        )
    return Prompt(task, str(metadata.get("split", "")), config)


@cache
def _config(text: str) -> SlimeConfig:
    return build(SlimeConfig, json.loads(text), WHERE)


def reflector_of(args: Any) -> str | None:
    """The checkpoint of the reflector that --sglang-config serves, or None without one.

    Raises ConfigError: it is not frozen, or comes before the policy. DataError: the file cannot be
    read.
    """
    # 1. The models that SGLang serves
    path = getattr(args, "sglang_config", None)
    models = _served(str(path)) if path else []
    names = [model["name"] for model in models]
    if REFLECTOR not in names:
        return None

    # 2. The reflector among them, which slime must not update
    model = models[names.index(REFLECTOR)]
    if names[0] == REFLECTOR or model.get("update_weights") is not False:
        raise ConfigError(
            f"{path}: '{REFLECTOR}' must come after the policy and have update_weights: false"
        )
    return str(model.get("model_path") or args.hf_checkpoint)


@cache
def _served(path: str) -> list[dict[str, Any]]:
    models: list[dict[str, Any]] = parse_yaml(text_of(Path(path)), path)["sglang"]
    return models


@dataclass(frozen=True, slots=True)
class RouterAnswer:
    """One answer of the router. meta: SGLang's `meta_info`."""

    ask: SampleRequest
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    meta: Mapping[str, Any]


class RouterSampler:
    """Samples from a model behind SGLang's router: token ids in (`input_ids`), sampled ids and
    log-probs out.

    One of several labels is drawn from the whole vocabulary, as slime's loss is over the whole
    vocabulary: an answer that is none of them ends the episode. SGLang reports the labels' own
    log-probs (`token_ids_logprob`).

    url: of the router's `/generate`. context: tokens that the model can read. role: what it was
    fine-tuned for, if known. parameters: SGLang's sampling parameters, over which a request's own
    are laid. headers: of each request. stopped: whether slime has ended the rollout; no request is
    then sent. on_answer: called with each answer.
    """

    def __init__(
        self,
        url: str,
        tokenizer: Any,
        context: int,
        role: str | None,
        parameters: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        stopped: Callable[[], bool] = lambda: False,
        on_answer: Callable[[RouterAnswer], None] = lambda answer: None,
    ) -> None:
        self.url, self.tokenizer, self.context, self.role = url, tokenizer, context, role
        self.parameters, self.headers, self.stopped, self.on_answer = (
            parameters,
            headers,
            stopped,
            on_answer,
        )
        self.tokens = 0

    async def sample(self, ask: SampleRequest) -> SampleOutput:
        """What the model says.

        Raises EnvironmentFailure: the router fails, or slime has ended the rollout.
        CheckpointError: a label has several tokens.
        """
        import httpx
        from slime.utils.http_utils import post

        # 1. What slime can sample
        if any(len(label) > 1 for label in ask.labels):
            raise CheckpointError(
                f"one of {len(ask.labels)} labels is several tokens of this model, and slime"
                " samples one for each;"
                " train with `reflectkit rlft`, or use a model whose tokenizer has them"
            )
        room = self.context - len(ask.prompt_ids)
        if room < 1:
            return SampleOutput(
                too_long=(
                    f"the prompt is {len(ask.prompt_ids)} tokens, but the model reads"
                    f" {self.context}"
                )
            )

        # 2. The request
        parameters = {
            **self.parameters,
            "temperature": ask.temperature,
            "max_new_tokens": 1 if ask.labels else min(ask.max_new_tokens, room),
            "stop_token_ids": sorted(
                {*(self.parameters.get("stop_token_ids") or ()), *ask.stop_ids}
            ),
        }
        if "sampling_seed" in parameters:  # --sglang-enable-deterministic-inference
            parameters["sampling_seed"] = ask.seed % 2**31
        request = {
            "input_ids": list(ask.prompt_ids),
            "sampling_params": parameters,
            "return_logprob": True,
        }
        if ask.labels:
            request["token_ids_logprob"] = [token for (token,) in ask.labels]

        # 3. The answer
        if self.stopped():
            raise EnvironmentFailure("slime has ended the rollout")
        try:
            output = await post(self.url, request, headers=self.headers)
        except (httpx.HTTPError, ValueError) as error:  # a ValueError for a body that is not text
            raise EnvironmentFailure(f"{self.url}: {error or type(error).__name__}") from None
        answer = read_answer(ask, output)
        self.tokens += len(ask.prompt_ids) + len(answer.token_ids)
        self.on_answer(answer)
        if not ask.labels:
            return SampleOutput(answer.token_ids, answer.logprobs)

        # 4. Of a choice: one of the labels, with the log-probs of all
        if answer.token_ids not in ask.labels:
            word = self.tokenizer.decode(answer.token_ids)
            return SampleOutput(
                too_long=(
                    f"the policy answered {word!r}, which is none of the {len(ask.labels)} labels"
                )
            )
        try:
            by_token = {
                int(item[1]): float(item[0]) for item in answer.meta["output_token_ids_logprobs"][0]
            }
            logprobs = [by_token[token] for (token,) in ask.labels]
        except (TypeError, KeyError, IndexError, ValueError):
            raise EnvironmentFailure(
                "SGLang's answer has no output_token_ids_logprobs for the labels"
            ) from None
        return SampleOutput(
            answer.token_ids, answer.logprobs, tuple(log_softmax(logprobs).tolist())
        )

    async def publish(self, weights: Any, version: int) -> None:
        """Nothing: slime updates the servers' weights."""


def read_answer(ask: SampleRequest, output: Any) -> RouterAnswer:
    """The answer in what the router returned. Raises EnvironmentFailure if it has none, or was
    aborted.
    """
    try:
        # A router answers in this form also where it was aborted
        meta = output["meta_info"]
        if meta["finish_reason"]["type"] == "abort":
            raise EnvironmentFailure("SGLang aborted the request")
        pairs = [(float(item[0]), int(item[1])) for item in meta["output_token_logprobs"]]
    except (TypeError, KeyError, IndexError, ValueError, OverflowError):
        raise EnvironmentFailure(
            f"SGLang's answer has no token log-probs: {output!r:.200}"
        ) from None
    if not pairs or not all(math.isfinite(logprob) and token >= 0 for logprob, token in pairs):
        raise EnvironmentFailure(
            f"SGLang's answer has no token, or one without a finite log-prob: {pairs!r:.200}"
        )
    logprobs, token_ids = zip(*pairs, strict=True)
    return RouterAnswer(ask, token_ids, logprobs, meta)


async def generate(
    args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False
) -> Any:
    """`sample`'s episode: a list of its rows, or the last row alone in an evaluation and with
    `one_row`.

    `sampling_params["max_new_tokens"]` (`--rollout-max-response-len`) limits each answer of the
    policy. An episode whose infrastructure failed is one row that nothing is learned from, with
    status ABORTED and reward 0.

    Raises ConfigError, DataError, CheckpointError: slime's arguments, the settings or the prompt
    data are wrong.
    """
    # 1. Arguments that whole episodes do not fit
    wrong = [name for name in UNFIT if getattr(args, name, False)]
    if not evaluation and getattr(args, "rollout_top_p", 1.0) != 1:
        wrong.append("rollout_top_p")
    if wrong:
        raise ConfigError(
            f"--{wrong[0].replace('_', '-')} does not fit episodes of several rows; leave it out"
        )

    # 2. The problem; held-out ones are not trained on
    prompt = read_prompt(args, sample.metadata)
    if not evaluation and prompt.split in HELD_OUT:
        raise ConfigError(
            f"--prompt-data has tasks of the {prompt.split} split; train on train.jsonl"
        )

    # 3. Who plays. With consistent hashing, its requests go to one server
    answers: list[RouterAnswer] = []
    by_session = (
        bool(sample.session_id) and getattr(args, "router_policy", None) == "consistent_hashing"
    )
    policy = RouterSampler(
        *policy_model(args, evaluation),
        sampling_params,
        headers={ROUTING_KEY: sample.session_id} if by_session else None,
        stopped=lambda: _stopped(args),
        on_answer=answers.append,
    )
    agent = TwoPlayerAgent(
        policy,
        _reflector(args, prompt.config),
        temperature=float(sampling_params["temperature"]),
        reflect_prob=prompt.config.reflect_prob,
        max_new_tokens=int(sampling_params["max_new_tokens"]),
        episode_tokens=prompt.config.episode_tokens,
        thinking=prompt.config.thinking,
    )

    # 4. The episode, in an environment of an earlier one if there is any
    spare = _spare[prompt.config, prompt.task.level]
    env = (
        spare.pop()
        if spare
        else checked(outside_loop(prompt.config.plugin.setup.maker(prompt.task.level)))
    )
    trajectory = await play(episode_of(args, sample, prompt, evaluation), env, agent)
    if trajectory.status is Status.ABORTED:
        logger.warning("task %s failed: %s", prompt.task.id, trajectory.reason)
        env.close()
    else:
        spare.append(env)

    # 5. Its rows
    samples = to_samples(trajectory, answers, sample, policy.tokenizer)
    if evaluation:
        return samples[-1]
    if not prompt.config.one_row:
        return samples
    if len(samples) > 1:
        raise ConfigError(
            f"task {prompt.task.id!r}: its episode has {len(samples)} rows; leave out one_row"
        )
    return samples[0]


def episode_of(args: Any, sample: Any, prompt: Prompt, evaluation: bool) -> Episode:
    """The episode with its seeds: the samples of a group begin alike; the tries of an evaluation
    are independent.
    """
    # Training and evaluation draw from different seeds
    root = derive(getattr(args, "rollout_seed", 0), "evaluation" if evaluation else "training")
    if evaluation:
        start = derive(root, "start", prompt.task.id, sample.index)
        return Episode(prompt.task, derive(root, sample.index), prompt.task.id, start)
    start = derive(root, "start", sample.group_index)
    return Episode(prompt.task, derive(root, sample.index), str(sample.group_index), start)


def to_samples(
    trajectory: Trajectory, answers: Sequence[RouterAnswer], sample: Any, tokenizer: Any
) -> list[Any]:
    """The rows of an episode as copies of slime's `sample`. answers: of the policy, in order.

    A row's response begins with the first token that the policy wrote; tokens of the env in it are
    masked. An answer that is no legal label has ended the episode, and is trained with the rest.
    """
    # 1. The turns, and the answers after them, which are trained on, too
    turns = trajectory.turns
    for answer in answers[len(turns) :]:  # not played; its tokens are kept
        choices = Observation((), ("",) * len(answer.ask.labels))
        turns += (
            Turn(
                choices,
                Decision(0, None, answer.ask.prompt_ids, answer.token_ids, answer.logprobs),
                0,
            ),
        )

    # 2. The rows of text
    zeros, labels = (
        [[0.0] * len(turns)],
        dict.fromkeys((turn.observation.choices for turn in turns), ()),
    )
    status = type(sample).Status(trajectory.status.value)
    text = (
        []
        if trajectory.status is Status.ABORTED
        else rows([replace(trajectory, turns=turns)], zeros, zeros, labels)
    )

    # 3. A sample for each row
    own_answers = iter(answers)
    filled = []
    for row in text:
        copy_of = _blank(sample, trajectory, status)
        start = row.loss_mask.index(1)
        copy_of.tokens = list(row.tokens)
        copy_of.response_length = len(row.tokens) - start
        copy_of.loss_mask = list(row.loss_mask[start:])
        copy_of.rollout_log_probs = list(row.logprobs[start:])
        copy_of.response = tokenizer.decode(row.tokens[start:])
        for answer in itertools.islice(own_answers, max(row.decisions) + 1):
            copy_of.prefix_cache_info.add(dict(answer.meta))
            if "weight_version" in answer.meta:
                copy_of.weight_versions.append(answer.meta["weight_version"])
        filled.append(copy_of)
    if not filled:  # slime drops no samples: a row of two tokens with an empty mask
        copy_of = _blank(sample, trajectory, status)
        copy_of.tokens, copy_of.response, copy_of.response_length = [0, 0], "", 1
        copy_of.loss_mask, copy_of.rollout_log_probs, copy_of.remove_sample = [0], [0.0], True
        filled = [copy_of]

    # 4. How many rows an episode has
    for copy_of in filled:
        copy_of.metadata[EPISODE]["figures"]["rows"] = len(filled)
    return filled


def _blank(sample: Any, trajectory: Trajectory, status: Any) -> Any:
    """A copy of `sample` with the facts of the episode, and without tokens."""
    # 1. What slime reads
    result = copy.copy(sample)
    result.reward = 0.0 if trajectory.status is Status.ABORTED else trajectory.total_return
    result.status, result.remove_sample = status, False
    result.rollout_id = sample.index if sample.rollout_id is None else sample.rollout_id
    result.weight_versions, result.prefix_cache_info = [], type(sample.prefix_cache_info)()

    # 2. What its trackers log
    decisions = [turn.decision for turn in trajectory.turns]
    thoughts = [decision.thoughts for decision in decisions if decision.thoughts is not None]
    figures = {
        **trajectory.figures,
        **({} if trajectory.reported_success is None else {"success": float(trajectory.success)}),
        "return": trajectory.total_return,
        "truncated": float(trajectory.status is Status.TRUNCATED),
        "steps": len(decisions),
        "tokens": sum(len(decision.token_ids) for decision in decisions),
        "comments": sum(decision.reflection is not None for decision in decisions),
    }
    figures |= {"thought_tokens": sum(thoughts)} if thoughts else {}
    facts = {
        "task": trajectory.task.id,
        "seed": trajectory.seed,
        "reason": trajectory.reason,
        "figures": figures,
    }
    result.metadata = {**sample.metadata, EPISODE: facts}
    return result


def policy_model(args: Any, evaluation: bool) -> tuple[str, Any, int, str | None]:
    """(URL of slime's router, tokenizer, context, role) of the policy. Raises CheckpointError,
    ConfigError.
    """
    # slime's loss is over the whole vocabulary, not over the words of choices
    if _facts_of(Path(str(args.hf_checkpoint))).get("answer") in ("text", SCORE):
        raise ConfigError(
            f"{args.hf_checkpoint} answers with the words of choices; train it with"
            " `reflectkit rlft`"
        )
    tokenizer, context, role = _checkpoint(str(args.hf_checkpoint))
    # The shortest of all limits
    limit = getattr(args, "eval_max_context_len" if evaluation else "rollout_max_context_len", None)
    limits = [context, limit, getattr(args, "sglang_context_length", None)]
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    return url, tokenizer, min(length for length in limits if length), role


def _reflector(args: Any, config: SlimeConfig) -> Reflector | None:
    """The reflector behind its own router, or None without one. Raises CheckpointError,
    ConfigError.
    """
    # 1. Whether comments are read
    checkpoint = reflector_of(args)
    if checkpoint is None or config.reflect_prob == 0:
        return None

    # 2. Where the reflector is served
    routers = getattr(args, "sglang_model_routers", None) or {}
    if REFLECTOR not in routers:
        raise ConfigError(f"slime started no server for '{REFLECTOR}' of {args.sglang_config}")
    ip, port = routers[REFLECTOR]
    key = (f"http://{ip}:{port}/generate", checkpoint, config.reflect_temperature)

    # 3. One sampler for all episodes, which caches greedy comments
    if key not in _reflectors:
        tokenizer, context, role = _checkpoint(checkpoint)
        if role not in ("reflection", None):
            raise ConfigError(
                f"{checkpoint} is a {role} model, not a reflector; serve one made by `sft"
                " --role reflection`"
            )
        sampler = RouterSampler(
            key[0], tokenizer, context, role, {}, stopped=lambda: _stopped(args)
        )
        _reflectors[key] = Reflector(sampler, temperature=config.reflect_temperature)
    return _reflectors[key]


_facts_of = cache(model_facts)  # asked for each episode
_reflectors: dict[tuple[str, str, float], Reflector] = {}
"""By URL, checkpoint and temperature: their comments are cached, as their weights do not change."""


@cache
def _checkpoint(source: str) -> tuple[Any, int, str | None]:
    """(tokenizer, context length in tokens, role) of folder or hub id `source`. Raises
    CheckpointError.
    """
    return (
        load_tokenizer(source),
        context_of(source) or LONGEST,
        _facts_of(Path(source)).get("role"),
    )


def _stopped(args: Any) -> bool:
    """Whether slime has enough episodes, and aborts the others."""
    from slime.rollout import sglang_rollout

    return bool(sglang_rollout.GenerateState(args).aborted)
