"""serve: answer programs with a trained policy, which a reflector may comment for: OpenAI's chat
completions, and decisions in the forms of OpenAI and System One.

The reflector's comment is put before each answer here; the program never sees it. With --record,
each answer is kept with its tokens, their log-probabilities, the probabilities of a decision, and
the version of the weights.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from reflectkit.agents.mismatches import comments_mismatch
from reflectkit.agents.player_refs import Player
from reflectkit.agents.players import Players, PlayersSetup
from reflectkit.chat.config import ChatConfig, DecisionConfig, key_of, parse_endpoint
from reflectkit.config import Config, Rule, option
from reflectkit.console import Progress, Report
from reflectkit.env import Agent, Context, Env
from reflectkit.errors import ConfigError, EnvironmentFailure, ReflectkitError
from reflectkit.eventloop import LoopThread
from reflectkit.jsonl import append, end_last_line, refuse_device
from reflectkit.models.refs import ModelRef
from reflectkit.runs.run import RunConfig
from reflectkit.sampling.config import SamplerConfig
from reflectkit.sampling.engine import PlayerEngineConfig
from reflectkit.seeding import derive
from reflectkit.text import pluralize
from reflectkit.types import Decision, ToolUse, to_json

if TYPE_CHECKING:
    from reflectkit.envs.adapters.endpoint import DecisionRequest

EXAMPLES = (
    "reflectkit serve --policy results/my-agent/rl --reflector results/my-agent/reflector",
    (
        "reflectkit serve --policy HuggingFaceTB/SmolLM2-135M-Instruct --port 9000 --record"
        " answers.jsonl"
    ),
)
MOST_ORDERS = 64
CHOOSES = "learned to choose, and not to write"
"""What is said of a policy that cannot answer in words."""
TOKEN = "REFLECTKIT_TOKEN"
"""The environment variable with the key that programs must send."""


class ServeConfig(Config):
    """Settings of serve."""

    policy: ModelRef = option(
        help="Checkpoint, run or hub id of the policy; or a decision model elsewhere, decisions:MODEL"
        " or"
        " systemone:MODEL.",
        essential=True,
    )
    reflector: ModelRef | None = option(
        None,
        help="The same for the model that comments before each answer.",
        essential=True,
    )
    host: str = option(
        "127.0.0.1", help=f"Address to listen on; any but this one needs {TOKEN}.", essential=True
    )
    port: int = option(
        8000, help="Port to listen on; 0: any free one.", ge=0, le=65535, essential=True
    )
    record: Path | None = option(
        None, help="File to which each answer is added, with its tokens.", essential=True
    )
    temperature: float = option(
        1.0, help="Sampling temperature where the program names none.", ge=0, essential=True
    )
    max_new_tokens: int = option(
        512, help="Maximum length of an answer; the program may ask for less.", ge=1, essential=True
    )
    option_orders: int = option(
        1,
        help=(
            "Read the options of a decision in this many orders, and answer with the mean"
            " probabilities."
        ),
        ge=1,
        le=MOST_ORDERS,
    )
    device: str = option("auto", help="auto, cpu, cuda, …")
    sampler: SamplerConfig = SamplerConfig()
    engine: PlayerEngineConfig = PlayerEngineConfig()
    chat: ChatConfig = ChatConfig()
    run: RunConfig = RunConfig()

    @property
    def decisions(self) -> DecisionConfig:
        """A decision model is asked what a program asks, and nothing else."""
        return DecisionConfig(plain_questions=True)

    @override
    def contradictions(self) -> Iterator[Rule]:
        from reflectkit.envs.adapters.endpoint import LOOPBACK

        # 1. The models
        name = str(self.policy)
        if self.policy.decides:
            yield self.reflector, f"--policy {name} reads no comments; leave out --reflector"
            endpoint = parse_endpoint(name, self.chat.base_url, "--policy", "", decides=True)
            self.chat.check_budget(endpoint)
        chat = f"--policy {name} is a chat model, which answers programs itself; give a checkpoint"
        yield self.policy.is_chat, chat

        # 2. Who can ask
        is_open = self.host not in LOOPBACK and not os.environ.get(TOKEN)
        advice = f"set {TOKEN} to a key that programs must send"
        yield is_open, f"--host {self.host} is open to others; {advice}"


class Programs(Env):
    """The programs that ask."""

    name = "program"


CONFIG = ServeConfig


def run(config: ServeConfig, progress: Progress) -> Report:
    """Serve until interrupted. Raises CheckpointError, and ConfigError if the address or --record
    cannot be used.
    """
    # 1. The file of answers can be written
    if config.record is not None:
        refuse_device(config.record)
        try:
            end_last_line(config.record)
        except OSError as error:
            raise ConfigError(
                f"--record {config.record}: {error.strerror}; name another file"
            ) from None

    # 2. The players, whose warnings come before the long load
    with TemporaryDirectory(prefix="reflectkit-serve-") as folder:
        player = Player("policy", config.policy, config.reflector)
        player = player.resolved(config.run.data_dir, progress)
        if warning := comments_mismatch(player):
            progress.news(f"warning: {warning}")
        progress.news(f"serve: loading {config.policy}")
        setup = PlayersSetup(config, (player,), Programs, Path(folder), forgets_unusable=True)
        for part in player.api_models:
            key_of(setup.endpoint_of(part))

        # 3. The server, until Ctrl-C
        players = Players(setup)
        thread = LoopThread("reflectkit-endpoint")
        facts = {} if player.checkpoint is None else player.checkpoint.facts
        chooses = facts.get("acts") == "choice"
        server = PolicyServer(players.agent(player), config, chooses=chooses)
        try:
            thread.result(server.serve(progress))
        except KeyboardInterrupt:
            progress.news(f"answered {pluralize(server.answered, 'request')}")
        finally:
            thread.close()
            server.thread.close()
            players.close()
        return Report("serve", Path(folder), {"answered": server.answered})


class PolicyServer:
    """Answers requests; those that come at the same time share a batch. chooses: whether the policy
    learned to choose, and not to write.
    """

    def __init__(self, agent: Agent, config: ServeConfig, *, chooses: bool = False) -> None:
        from reflectkit.agents.deciding import Decider
        from reflectkit.envs.adapters.endpoint import Conversations

        self.conversations = Conversations()
        self.thread = LoopThread("reflectkit-agent")
        self.answered = 0
        self._agent, self._config, self._chooses = agent, config, chooses
        self._decider = Decider(agent, config.option_orders)
        getattr(agent, "dialogue", None)  # made here, so that all requests share what it remembers
        self._numbers, self._env = itertools.count(), Programs()

    def application(self) -> Any:
        """The web application."""
        from reflectkit.envs.adapters.endpoint import application, host_names

        hosts = host_names(self._config.host)
        name, token = str(self._config.policy), os.environ.get(TOKEN, "")
        return application(lambda session: Session(self, session), name, hosts=hosts, token=token)

    async def serve(self, progress: Progress) -> None:
        """Serve until cancelled."""
        from reflectkit.envs.adapters.endpoint import serving

        config = self._config
        async with serving(self.application(), config.host, config.port) as port:
            address = f"http://{config.host}:{port}/v1"
            progress.news(f"serving {config.policy} at {address} (Ctrl-C ends)")
            if self._chooses:
                progress.news(f"it {CHOOSES}: ask {address}/decisions")
            await asyncio.Event().wait()

    async def reply(self, name: str, request: Any) -> Any:
        """The answer to a request for a chat completion by session `name`. Raises RequestError."""
        from reflectkit.agents.deciding import TooLongError, check_characters
        from reflectkit.envs.adapters.endpoint import EndpointAnswer, RequestError
        from reflectkit.sampling.wire import GoneError

        # 1. A policy that writes, a prompt that may fit, and the agent, with the settings of this
        #    request
        if self._chooses:
            raise RequestError(f"{self._config.policy} {CHOOSES}: ask /v1/decisions")
        try:
            sizes = [len(message.content) for message in request.observation.messages]
            check_characters(self._agent, sum(sizes))
        except TooLongError as error:
            raise RequestError(str(error), 400, "context_length_exceeded") from None
        limit = min(request.max_tokens or self._config.max_new_tokens, self._config.max_new_tokens)
        agent: Any = copy.copy(self._agent)
        agent.max_new_tokens = limit
        if request.temperature is not None:
            agent.temperature = request.temperature

        # 2. Its decision, in the thread of the models
        context = Context(
            derive(self._config.run.seed, "serve", next(self._numbers)), self._env, request.turns
        )
        work = agent.decide(request.observation, context)
        try:
            decision: Decision = await asyncio.wrap_future(self.thread.submit(work))
        except GoneError as error:
            raise RequestError(str(error), 503, kind="api_error") from None
        except ReflectkitError as error:
            raise RequestError(str(error)) from None
        if decision.failure is not None:
            raise RequestError(decision.failure, 503)
        if decision.truncation_reason is not None:
            raise RequestError(decision.truncation_reason, 400, "context_length_exceeded")

        # 3. The record, and the answer
        self.record(
            {
                "session": name,
                "observation": to_json(request.observation),
                "decision": to_json(decision),
            }
        )
        self.answered += 1
        action = (
            decision.action
            if isinstance(decision.action, ToolUse)
            else ToolUse(str(decision.action))
        )
        tokens = len(decision.prompt_ids), len(decision.token_ids)
        return EndpointAnswer(action, decision.reflection, tokens, decision.cut)

    async def decide(self, name: str, request: DecisionRequest) -> dict[str, Any]:
        """The JSON value that answers a request for decisions by session `name`; the same for equal
        requests.

        Raises InvalidRequestError, RequestError.
        """
        from reflectkit.agents.deciding import QuestionTooLongError, TooLongError
        from reflectkit.decisions.bodies import invalid
        from reflectkit.envs.adapters.endpoint import RequestError
        from reflectkit.sampling.wire import GoneError

        # 1. The questions of the request
        names, questions = zip(*request.named_questions, strict=True)
        context = Context(derive(self._config.run.seed, "decisions"), self._env)
        work = self._decider.answer(request.text, questions, context)

        # 2. Their answers; an error names the field that is to blame
        try:
            decided, usage = await asyncio.wrap_future(self.thread.submit(work))
        except TooLongError as error:
            is_question = isinstance(error, QuestionTooLongError)
            field = "questions" if is_question else request.state_field
            raise invalid(str(error), "context_length_exceeded", field) from None
        except (EnvironmentFailure, GoneError) as error:
            raise RequestError(str(error), 503, kind="api_error") from None
        except ReflectkitError as error:
            raise invalid(str(error), "value_error", "questions") from None

        # 3. The record, by which outcomes find their decision, and the answer
        number = f"decision-{secrets.token_hex(8)}"
        for question_name, question, result in zip(names, questions, decided, strict=True):
            self.record(
                {
                    "session": name,
                    "id": number,
                    "question": question_name,
                    "options": question.names,
                    "observation": to_json(result.observation),
                    "decision": to_json(result.decision),
                }
            )
        self.answered += 1
        return request.response([result.answer for result in decided], usage, number)

    def record(self, line: dict[str, Any]) -> None:
        """Add `line` to the file of --record, if there is one."""
        if self._config.record is not None:
            append(self._config.record, [line])


class Session:
    """A session of the server: requests to /s/NAME/v1, or all others."""

    def __init__(self, server: PolicyServer, name: str) -> None:
        self.conversations, self._server, self._name = server.conversations, server, name

    async def answer(self, request: Any) -> Any:
        """The policy's answer to a request for a chat completion."""
        return await self._server.reply(self._name, request)

    async def decide(self, request: DecisionRequest) -> dict[str, Any]:
        """Its answer to a request for decisions."""
        return await self._server.decide(self._name, request)

    def reward(self, value: float) -> None:
        """Kept, if answers are."""
        self._server.record({"session": self._name, "reward": value})
