"""A program as an environment: it asks an endpoint of OpenAI's form, and the agent is who answers.

Each episode starts the program with its own address. Each chat request is a step, and so is each
question of a request for decisions. The program's own tools, prompts and loop stay as they are; it
imports nothing of ours.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shlex
import signal
import sys
import tempfile
import zlib
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import field_validator
from typing_extensions import override

from reflectkit.config import Config, option
from reflectkit.decisions.questions import Answer, Usage
from reflectkit.env import Action, Env, StepResult, Taskset, check_choice
from reflectkit.envs.adapters import env_type
from reflectkit.envs.adapters.command_files import CommandFiles
from reflectkit.envs.adapters.endpoint import (
    LOOPBACK,
    ChatRequest,
    Conversations,
    DecisionRequest,
    EndpointAnswer,
    RequestError,
    application,
    serving,
)
from reflectkit.envs.adapters.plain import ToolTasks
from reflectkit.envs.adapters.prompts import DatasetSettings
from reflectkit.envs.adapters.rewards import CompletionIds, chat_messages, score
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure
from reflectkit.eventloop import LoopThread
from reflectkit.jsonl import text_of
from reflectkit.keys import SECRET, hide_environment, masked
from reflectkit.registry import from_here
from reflectkit.types import Decision, Message, Observation, Task, ToolUse

Value = TypeVar("Value")

OUTPUT_BYTES = 1 << 16
"""Bytes of a program's output that are kept, the last ones."""
OUTPUT_CHARACTERS = 2000
"""Characters of it that an episode's record keeps."""
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
"""Environment variables that every program gets."""
OPENAI_ADDRESSES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
"""Where programs look for the address of OpenAI: its package, and older versions, LiteLLM,
LangChain and LlamaIndex.
"""
OTHER_ADDRESSES = (
    "AZURE_OPENAI_ENDPOINT", "AZURE_API_BASE", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE", "ANTHROPIC_API_URL",
)  # fmt: skip
"""Where they look for the addresses of Azure and Anthropic: they get one that refuses, also for a
key from a file.
"""
SUPERVISOR = str(Path(__file__).with_name("supervise.py"))
LONGEST_TITLE = 80
"""Characters of the command in the name of a program's folders."""
CLOSED = "the episode is over"


class ProgramSettings(DatasetSettings):
    """Settings of a program."""

    pass_env: tuple[str, ...] = option(
        (),
        help=(
            "Environment variable that the program gets, besides PATH, HOME and the like (repeat"
            " the flag)."
        ),
    )
    input: tuple[Path, ...] = option(
        (),
        help="File or folder that the program uses and its command does not name: a change of it"
        " makes a new run (repeat the flag).",
    )
    program_timeout_s: float = option(
        120.0,
        help=(
            "Seconds between two requests of the program, and after the last, before it is killed."
        ),
        gt=0,
    )
    program_memory_mb: int = option(
        0,
        help="Address space of the program in MB; 0: no limit.",
        ge=0,
    )
    only_decisions: bool = option(
        False,
        help=(
            "The program asks for decisions alone, so the policy needs no words: --model tiny can"
            " learn it."
        ),
    )

    @property
    @override
    def environment(self) -> dict[str, str]:
        """The passed variables, each as a digest of its value."""
        digests = {}
        for name in self.pass_env:
            if name in os.environ:
                text = f"{name}={os.environ[name]}".encode(errors="surrogateescape")
                digests[f"${name}"] = f"digest {hashlib.sha256(text).hexdigest()[:16]}"
        return digests

    @field_validator("pass_env")
    @classmethod
    def _no_keys(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if SECRET.search(name):
                raise ValueError(f"{name} looks like a key, which no program gets; leave it out")
        return names


@dataclass(eq=False)
class _Pending:
    """What waits for the agent. answer: to a chat request; to a question, the index of its option.

    request: None for a question.
    """

    observation: Observation
    answer: asyncio.Future[Any]
    request: ChatRequest | None = None


@dataclass(frozen=True)
class _Exit:
    """The program ended. output, errors: the ends of what it printed, and of its standard error,
    without keys.
    """

    code: int
    output: str
    errors: str


UNFIT = "a value of the problem cannot be an argument of the program"
OTHER_WAY = "pass a short column in its place, such as an id that the program looks up"


class _Run:
    """One run of the program; everything but `__init__` happens in the endpoint's thread."""

    def __init__(self, *, only_decisions: bool) -> None:
        self.only_decisions = only_decisions
        self.conversations = Conversations()
        self.events: asyncio.Queue[_Pending | _Exit] = asyncio.Queue()
        self.reward_value: float | None = None
        """What the program posted."""
        self.unmatched = self.overrides = self._decision_count = 0
        self.closed = False
        self._waiting: set[_Pending] = set()
        self._process: Any = None
        self._watching: asyncio.Task[None] | None = None

    async def answer(self, request: ChatRequest) -> EndpointAnswer:
        """What the agent answers; requests that come at once are answered one after the other."""
        if self.only_decisions:
            raise RequestError("a chat in a program of --only-decisions; leave out that flag")
        answer: EndpointAnswer = await self._ask(request.observation, request)
        return answer

    async def decide(self, request: DecisionRequest) -> dict[str, Any]:
        """The answers to its questions, each of which is a step. The option that the agent took has
        probability 1, so that the program acts on it, whether it reads the answer or the
        probabilities.
        """
        state, answers = request.text, []
        for _, question in request.named_questions:
            index = await self._ask(question.observation(state))
            probabilities = [0.0] * len(question.options)
            probabilities[index] = 1.0
            answers.append(Answer(tuple(probabilities)))
        self._decision_count += 1
        return request.response(answers, Usage(), f"decision-{self._decision_count}")

    async def _ask(
        self,
        observation: Observation,
        request: ChatRequest | None = None,
    ) -> Any:
        """The agent's answer, when it is this request's turn."""
        if self.closed:
            raise RequestError(CLOSED, 410)
        pending = _Pending(observation, asyncio.get_running_loop().create_future(), request)
        self._waiting.add(pending)
        self.events.put_nowait(pending)
        try:
            return await pending.answer
        finally:
            self._waiting.discard(pending)

    def reward(self, value: float) -> None:
        """The program reports its reward; once."""
        if self.reward_value is not None:
            raise RequestError("this episode has its reward", 409)
        self.reward_value = value

    async def start(
        self,
        command: list[str],
        environment: Mapping[str, str],
        memory: int,
    ) -> None:
        """Start the program. Raises ConfigError if no process can be started, and EnvironmentFailure
        if it cannot get these arguments.
        """
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
        supervised = (sys.executable, "-I", "-S", SUPERVISOR, str(memory), *command)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *supervised,
                env=environment,
                start_new_session=True,
                **pipes,
            )
        except ValueError as error:  # a NUL, or half of a surrogate pair
            raise EnvironmentFailure(f"{UNFIT}: {error}; {OTHER_WAY}") from None
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise EnvironmentFailure(f"{UNFIT}: {error.strerror}; {OTHER_WAY}") from None
            raise ConfigError(
                f"cannot start {command[0]}: {error.strerror}; run fewer episodes at once"
            ) from None
        self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        """Note the end of the program."""
        output, errors = await asyncio.gather(
            _end_of(self._process.stdout), _end_of(self._process.stderr)
        )
        self.events.put_nowait(_Exit(await self._process.wait(), masked(output), masked(errors)))

    async def next(self, timeout_s: float) -> _Pending | _Exit:
        """The next request that somebody still waits for, or the end. Raises EnvironmentFailure
        after the timeout.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    event = await self.events.get()
                    if isinstance(event, _Exit) or not event.answer.done():
                        return event
        except TimeoutError:
            await self.stop()
            raise EnvironmentFailure(
                f"the program took longer than {timeout_s:g} s; raise --program-timeout-s"
            ) from None

    async def stop(self) -> None:
        """Kill what is left of the program; requests that wait are refused."""
        self.closed = True
        for pending in self._waiting:
            if not pending.answer.done():
                pending.answer.set_exception(RequestError(CLOSED, 410))
        if self._process is not None:
            self._process.stdin.close()
        # The watch ends with the output, which something that left the group may hold
        if self._watching is not None:
            await asyncio.wait([self._watching], timeout=5)
            self._watching.cancel()


async def _end_of(stream: asyncio.StreamReader) -> str:
    """The last bytes of `stream`, read to its end."""
    output = bytearray()
    while True:
        piece = await stream.read(1 << 16)
        if not piece:
            break
        output += piece
        del output[:-OUTPUT_BYTES]
    return output.decode(errors="replace")


class _Endpoint:
    """The server of this process, in its own thread, which is started with the first program."""

    def __init__(self) -> None:
        self.thread = LoopThread("reflectkit-endpoint")
        self.runs: dict[str, _Run] = {}
        self._port: asyncio.Future[int] | None = None
        atexit.register(self.thread.close)

    async def port(self) -> int:
        """The port; the server runs until the process ends."""
        if self._port is None:
            self._port = asyncio.get_running_loop().create_future()
            self._serving = asyncio.ensure_future(self._serve(self._port))
        return await self._port

    async def _serve(self, port: asyncio.Future[int]) -> None:
        app = application(self.runs.get, "policy", hosts=LOOPBACK, any_model=True)
        # Any free port
        async with serving(app, LOOPBACK[0], 0) as number:
            port.set_result(number)
            await asyncio.Event().wait()


@cache
def _endpoint(process: int) -> _Endpoint:
    return _Endpoint()


class Program(Env):
    """Programs; `env_of` makes the class of one.

    The reward is that of `--reward`, functions of the transcript; without one, the number that the program posts to
    `$REFLECTKIT_URL/reward`, or writes into the file `$REFLECTKIT_REWARD_FILE`, or else prints last. A program that
    fails, takes too long or gives no reward makes an ABORTED episode. A reward of 1 or more is a success.
    """

    name = "program"
    acts = "tools"
    default_horizon = 30
    Settings: ClassVar[type[Config]] = ProgramSettings
    taskset: ClassVar[Taskset] = ToolTasks()
    command: ClassVar[tuple[str, ...]] = ()
    _run: Any = None
    _folder: Any = None
    _pending: Any = None
    """What waits for an answer."""
    _chat: list[Message]
    """The last conversation, for reward functions."""
    _decisions: list[Message]
    """All questions with their answers, likewise."""
    _first: int
    """How many messages the first chat request has; 0 before it."""
    _is_paid: bool
    """Whether a step had the reward that the program posted."""
    _is_cut: bool
    """Whether the answer ended at its maximum length."""

    @classmethod
    @override
    def action_kind(cls, settings: Any) -> Literal["choice", "tools", "text"]:
        """Calls of tools, which a mixed program wants as well as choices, unless it asks for
        decisions alone.
        """
        return "choice" if settings.only_decisions else "tools"

    @classmethod
    @override
    def own_files(cls, settings: Any) -> list[Path]:
        """The files that the command runs, and those of --input."""
        return [*map(from_here, cls._files(settings).files), *settings.input]

    @classmethod
    @override
    def unknown_files(cls, settings: Any) -> str:
        """What the command runs whose files cannot be known, unless --input names some."""
        opaque = ", ".join(dict.fromkeys(cls._files(settings).opaque))
        if not opaque or settings.input:
            return ""
        return (
            f"--env program: not all files that {opaque} uses are known; name them with --input"
            " FILE, or a change of them makes no new run"
        )

    @classmethod
    def _files(cls, settings: Any) -> CommandFiles:
        path = os.environ.get("PYTHONPATH", "") if "PYTHONPATH" in settings.pass_env else ""
        folders = [Path(folder).absolute() for folder in path.split(os.pathsep) if folder]
        return CommandFiles(cls.command, folders)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the program and wait for its first request. Raises EnvironmentFailure, and
        ConfigError if it cannot be started.
        """
        # Other episodes go on while this one waits for the end of the last
        if self._run is not None:
            await self._in_thread(self._run.stop())
        self.close()
        return await self._in_thread(self._begin(task, seed))

    def decided(self, decision: Decision) -> None:
        """Keep the tokens of the answer, for reward functions, and whether it was cut."""
        self._ids.add(decision)
        self._is_cut = decision.cut

    async def step(self, action: Action) -> StepResult:
        """Answer the request or question and wait for the next, or for the end.

        Raises IllegalActionError: an option that was not offered. EnvironmentFailure.
        """
        # 1. The answer
        observation = self._pending.observation
        answer: int | EndpointAnswer
        if observation.choices:
            answer = check_choice(action, observation.choices, self.name)
            choice = Message("assistant", observation.choices[answer])
            self._decisions += [*observation.messages, choice]
        else:
            use = action if isinstance(action, ToolUse) else ToolUse(str(action))
            answer = EndpointAnswer(use, cut=self._is_cut)
            self._chat = [*observation.messages, Message("assistant", use.text, use.calls)]
        # 2. What the program does then
        event = await self._in_thread(self._act(answer))
        if isinstance(event, _Exit):
            return await self._end(observation, event)
        # 3. A reward that was posted counts now, as the limit of steps may end the episode
        posted = None if self.settings.reward else self._run.reward_value
        if posted is None:
            return StepResult(self._observe(event), 0.0, False)
        reward = 0.0 if self._is_paid else float(posted)
        self._is_paid = True
        return StepResult(self._observe(event), reward, False, info={"success": posted >= 1})

    def close(self) -> None:
        """Kill the program, if it runs."""
        if self._run is not None:
            self._server.runs.pop(self._token, None)
            self._server.thread.result(self._run.stop())
            self._run = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def _server(self) -> _Endpoint:
        return _endpoint(os.getpid())

    async def _in_thread(self, work: Coroutine[Any, Any, Value]) -> Value:
        return await asyncio.wrap_future(self._server.thread.submit(work))

    async def _begin(self, task: Task, seed: int) -> Observation:
        # 1. Its run and its address
        self._folder = tempfile.TemporaryDirectory(prefix="reflectkit-program-")
        self._reward_file = Path(self._folder.name) / "reward"
        self._run = _Run(only_decisions=self.settings.only_decisions)
        self._pending, self._token = None, secrets.token_urlsafe(24)
        self._chat, self._decisions, self._first = [], [], 0
        self._is_paid = self._is_cut = False
        self._server.runs[self._token] = self._run
        url = f"http://{LOOPBACK[0]}:{await self._server.port()}/s/{self._token}"
        # 2. Its command, with the values of the task
        self._row: Mapping[str, Any] = task.data
        self._ids = CompletionIds()
        values = {"seed": seed, "task": task.data.get("prompt", task.id)} | task.data

        def value_of(match: re.Match[str]) -> str:
            # {{name}}, for braces that mean themselves
            if match[1]:
                return match[0][1:-1]
            if match[2] not in values:
                names = ", ".join(f"{{{name}}}" for name in values)
                raise ConfigError(
                    f"--env program: {match[0]} has no value; there are {names}. {{{match[0]}}} is"
                    " text"
                )
            value = values[match[2]]
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

        command = [re.sub(r"\{\{(\w+)\}\}|\{(\w+)\}", value_of, part) for part in self.command]
        # 3. Its environment: some of ours, and where to ask
        environment = {}
        for name in (*PASSED, *self.settings.pass_env):
            if name in os.environ:
                environment[name] = os.environ[name]
        environment |= {
            **dict.fromkeys(OPENAI_ADDRESSES, f"{url}/v1"),
            **dict.fromkeys(OTHER_ADDRESSES, f"{url}/not-served"),
            "OPENAI_API_KEY": "reflectkit",
            "REFLECTKIT_URL": url,
            "REFLECTKIT_REWARD_FILE": str(self._reward_file),
            "REFLECTKIT_SEED": str(values["seed"] if isinstance(values["seed"], int) else seed),
        }
        # 4. Start it, and wait for its first request
        hide_environment()
        await self._run.start(command, environment, self.settings.program_memory_mb << 20)
        event = await self._next()
        if isinstance(event, _Exit):
            raise EnvironmentFailure(
                f"the program ended without a request{_last_line(event.errors or event.output)}"
            )
        return self._observe(event)

    async def _act(self, answer: int | EndpointAnswer) -> _Pending | _Exit:
        """What the program does after `answer`."""
        # The program may have closed the connection meanwhile
        if not self._pending.answer.done():
            self._pending.answer.set_result(answer)
        return await self._next()

    async def _end(self, observation: Observation, event: _Exit) -> StepResult:
        """The result of the last action. Reward functions are called in the caller's thread."""
        # 1. The reward
        if self.settings.reward:
            messages = chat_messages([*self._chat, *self._decisions])
            # Without a chat, the first question is the prompt
            first = self._first or 1
            row = {**self._row, "prompt": messages[:first]}
            reward, info = await score(self.settings.reward, row, messages[first:], self._ids.ids)
        else:
            total = self._reward(event)
            reward = 0.0 if self._is_paid else total
            info = {"success": total >= 1}
        # 2. What the program did that the policy may not see
        figures = info.get("figures", {})
        if self._run.unmatched:
            figures["unmatched"] = float(self._run.unmatched)
        if self._run.overrides:
            figures["overridden"] = float(self._run.overrides)
        output = (event.errors + event.output)[-OUTPUT_CHARACTERS:]
        info |= {"figures": figures, "output": output}
        return StepResult(observation, reward, True, info=info)

    async def _next(self) -> _Pending | _Exit:
        """The next request, or the end. Raises EnvironmentFailure if the program failed; see
        `reset`.
        """
        event: _Pending | _Exit = await self._run.next(self.settings.program_timeout_s)
        if isinstance(event, _Exit) and event.code:
            # The supervisor's signal
            if event.code == -signal.SIGUSR1 and self._pending is None:
                raise ConfigError(
                    f"--env program: cannot start {event.output.strip()}; check the command"
                )
            last = _last_line(event.errors or event.output)
            raise EnvironmentFailure(f"the program ended with exit code {event.code}{last}")
        return event

    def _observe(self, pending: _Pending) -> Observation:
        self._pending = pending
        request = pending.request
        if request is not None:
            self._first = self._first or len(request.observation.messages)
            self._run.unmatched += request.unmatched
            has_limits = request.temperature is not None or request.max_tokens is not None
            self._run.overrides += has_limits
        return pending.observation

    def _reward(self, event: _Exit) -> float:
        """The reward of the program that ended. Raises EnvironmentFailure."""
        if self._run.reward_value is not None:
            return float(self._run.reward_value)
        # 1. The file, which has nothing else
        written = self._written_reward()
        if written:
            reward = _number(written)
            if reward is None:
                raise EnvironmentFailure(
                    f"the program gave no reward: its file has {written!r:.200}; write one number"
                )
            return reward

        # 2. Or else the last line that it printed
        lines = [line for line in event.output.splitlines() if line.strip()]
        reward = _number(lines[-1]) if lines else None
        if reward is None:
            raise EnvironmentFailure(
                f"the program gave no reward; print it as the last line{_last_line(event.output)}"
            )
        return reward

    def _written_reward(self) -> str:
        """What the program wrote into the file of its reward. Raises EnvironmentFailure."""
        if not self._reward_file.is_file():
            return ""
        try:
            return text_of(self._reward_file).strip()
        except DataError as error:
            raise EnvironmentFailure(
                f"the program gave no reward: its file is {error.message}"
            ) from None


def _number(text: str) -> float | None:
    """The finite number in `text`; None for anything else, such as `1_0`."""
    with contextlib.suppress(ValueError):
        number = float(text)
        if math.isfinite(number) and "_" not in text:
            return number
    return None


def _last_line(output: str) -> str:
    """The end of an error message: the last line of `output`, if there is one."""
    lines = [line for line in output.splitlines() if line.strip()]
    return f"; its output ends: {lines[-1].strip():.200}" if lines else ""


@cache
def env_of(rest: str) -> type[Env]:
    """The env of the program that `rest` starts, e.g. "python my_agent.py {task}". Raises
    ConfigError.
    """
    try:
        command = tuple(shlex.split(rest))
    except ValueError as error:
        raise ConfigError(f"--env program: {error}: {rest:.80}") from None
    if not command:
        raise ConfigError(
            '--env program: write the command, e.g. program:"python my_agent.py {task}"'
        )
    # The most common mistake: the script is elsewhere
    script = command[1] if command[1:] and Path(command[0]).name.startswith("python") else ""
    if script.endswith(".py") and "{" not in script and not Path(script).exists():
        raise ConfigError(f"--env program: no file {script}; check the command")
    names = [Path(part).name for part in command]
    # A name for the folders of data and results
    title = "-".join(["program", *names])
    # Another program could have the same title
    if names[1:] != list(command[1:]) or len(title) > LONGEST_TITLE:
        title = f"{title[:LONGEST_TITLE]}-{zlib.crc32(shlex.join(command).encode()):08x}"
    return env_type(Program, title, command=command)
