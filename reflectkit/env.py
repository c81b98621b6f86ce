"""The nouns of playing: env, taskset, teacher and agent, what they exchange in a step, and who
answers an env.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from reflectkit.config import Config, NoSettings, build, by_flat_name, option
from reflectkit.errors import ConfigError, DataError, IllegalActionError, brief
from reflectkit.text import pluralize
from reflectkit.types import (
    Answer,
    Decision,
    Message,
    Observation,
    StateQuestion,
    Task,
    ToolUse,
    Trajectory,
    Turn,
)

LIKELY = StateQuestion("likely", "Which action leads to success?")
SUCCEEDS = StateQuestion("success", "Will this episode succeed?", ("yes", "no"))
"""The questions that every env can be asked."""
DEFAULT_HORIZON = 128
"""Steps of an episode where nobody says how many: more than most games take, which end by
themselves. Gymnasium's limits are other numbers, so that it is clear which one was reached.
"""
Action = int | str | ToolUse
"""The index of a choice, a text, or calls of tools."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of an action. observation: never None; at the end, the final view.

    reward: in the env's unit. terminated: the env ended the episode. truncated: a wrapper did.
    info: JSON values; `info["success"]` is a bool on the last step, or None or missing where there
    is no such thing: the return is then what players are compared by. `info["refused"]`, if an env
    sets it, is the number of parts of the action that could not be executed. `info["figures"]` and
    `info["last_figures"]`, on any step, are numbers by name, to report and compare: an episode's
    mean, or its last value.
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)


class Taskset:
    """The problems of an env, which has it as its attribute `taskset`."""

    env: Any
    """The env's class. Each class has a copy of the taskset of its own, which knows it."""
    settings: Any = None
    """The env's settings, where they are known (`with_settings`)."""
    needs_settings: ClassVar[bool] = False
    """Whether its problems depend on the env's settings."""
    content: ClassVar[type[Any] | None] = None
    """The dataclass that `Task.data` are, which is checked when a file of problems is read; None:
    they are not checked before they are played.
    """
    problem_generator: ClassVar[str] = ""
    """The `ProblemGenerator` with which `gen-task` makes problems, as "module:Class"; "" if there
    is none.
    """
    repositories_folder: ClassVar[str] = ""
    """If the problems are questions about the files of repositories, as in `auto_explore`: the
    folder of these in the env's data folder, which `filter-repo` fills. `gen-task` and
    `filter-task` make the problems.
    """
    records_folder: ClassVar[str] = ""
    """Subfolder of the env's data folder for records, splits and rows; "": the data folder itself.
    """
    split_by: ClassVar[tuple[str, ...]] = ("group",)
    """What `split` may keep in one split: "group" (`Task.group`), "repo" (the same, by the number
    of its problems) or "question" (each problem alone); the first unless told otherwise.
    """
    keeps_other_levels: ClassVar[bool] = True
    """Whether the records keep problems of levels other than the demonstrated one, for evaluation.
    """

    def of_env(self, env: type[Env]) -> Self:
        """A copy for the class `env`."""
        bound = copy.copy(self)
        bound.env = env
        return bound

    def with_settings(self, settings: Any) -> Self:
        """The problems of an env with these settings."""
        bound = copy.copy(self)
        bound.settings = settings
        return bound

    def __iter__(self) -> Iterator[Task]:
        """All problems of all levels, the easiest level first."""
        for level in self.env.levels:
            yield from self.tasks(level)

    def has(self, name: str) -> bool:
        """Whether method `name` is defined here or, in the case of `tasks`, in the env's class."""
        if name == "tasks" and hasattr(self.env, name):
            return True
        return getattr(type(self), name) is not getattr(Taskset, name)

    def tasks(self, level: str) -> list[Task]:
        """All problems of `level`, by default those that the env's classmethod `tasks` lists. An
        env that lists none takes its problems from a file.
        """
        if not hasattr(self.env, "tasks"):
            raise ConfigError(
                f"env '{self.env.name}' does not list its own problems; take them from a file, or"
                ' one of a seed, Task("mine", env.name, level, "mine", {"seed": 0})'
            )
        tasks: list[Task] = self.env.tasks(level)
        return tasks

    def example(self, level: str, seed: int) -> Task:
        """A problem for users without a file of them."""
        raise ConfigError(f"env '{self.env.name}' has no example of a problem; give --task-file")

    def at_level(self, task: Task, level: str) -> Task | None:
        """The same problem at another curriculum level, or None where it has no such version."""
        return task if task.level == level else None

    def cluster(self, task: Task) -> str:
        """What a problem is about, e.g. a file; problems of one cluster are not independent in the
        statistics.
        """
        return task.id

    def aspects(self, task: Task) -> Mapping[str, str]:
        """What the results of problems are broken down by, e.g. {"mood": "terse"}."""
        return {}

    def split_of(self, task: Task) -> str:
        """The split that a problem comes with: "train", "validate" or "test"; "" leaves it to
        `split`.
        """
        return ""

    def room_of(self, task: Task) -> str:
        """The room of a problem, if `split` can hold out rooms; else ""."""
        return str(task.data.get("room", ""))

    def kind_of_room(self, room: str) -> str:
        """The kind of a room; `split --unseen-rooms` holds out a share of each kind."""
        return room.rstrip("0123456789")

    def episode_steps(self, task: Task) -> int | None:
        """Number of steps of an episode of `task`, if it is known in advance."""
        return None

    def input_files(self, settings: Any, folder: Path, tasks: Sequence[Task]) -> list[Path]:
        """The files and folders that these tasks are set in, besides their records: inputs of a
        run.

        folder: the env's data folder.
        """
        return []


class Teacher:
    """What would be right in the current state of `env`. A subclass writes `action`, `comment`, or
    what else it knows.

    It keeps nothing between calls: `Env.teacher()` makes a new one each time.
    """

    noise: ClassVar[float] = 0.2
    """Probability that a step of a demonstration is a mistake."""
    negatives: ClassVar[int] = 0
    """Number of demonstrations with one mistake per problem."""

    def __init__(self, env: Any) -> None:
        self.env = env

    @classmethod
    def has(cls, *methods: str) -> bool:
        """Whether these are defined, instead of inherited from this base."""
        return all(inspect.getattr_static(cls, name) is not vars(Teacher)[name] for name in methods)

    def action(self) -> Action:
        """A best action: its index, the calls, or the text."""
        raise ConfigError(f"env '{self.env.name}' has no oracle teacher: it lacks action()")

    def answers(self) -> Mapping[str, Sequence[int]]:
        """The right options, as their indices, of the env's `questions()` whose answer is known
        now, by name.
        """
        best = self.best_actions() if self.has("action") else ()
        # Calls and texts are no options
        indices = [action for action in best if isinstance(action, int)]
        return {LIKELY.name: indices} if indices else {}

    def best_actions(self) -> Sequence[Action]:
        """All best actions, `action` first, where several are equally good."""
        return (self.action(),)

    def mistakes(self) -> Sequence[Action]:
        """Suboptimal actions that do not end the episode, for noisy demonstrations."""
        return ()

    def slips(self) -> Sequence[Action]:
        """The mistakes that a negative example can make now; none after it has made one."""
        return ()

    def note(self) -> str:
        """The mark of the last action: "" at the start, "good" or "mistake"."""
        return ""

    def comment(self, generator: random.Random) -> str:
        """A comment on the state, in one line; the generator picks the wording."""
        raise ConfigError(f"env '{self.env.name}' has no oracle teacher: it lacks comment()")

    def confirms(self, comment: str) -> bool:
        """Whether `comment` is readable and true of the state."""
        raise ConfigError(f"the teacher of env '{self.env.name}' lacks confirms()")

    @classmethod
    def check(cls, settings: Any) -> None:
        """Raises ConfigError if it cannot act and comment with these settings of the env."""

    @classmethod
    def drops_choices(cls, settings: Any) -> bool:
        """Whether choices depend on the seed, so that a demonstration cannot be replayed with every
        seed.
        """
        return False

    @classmethod
    def reward_of(cls, trajectory: Trajectory) -> float:
        """What `gen-trajectory --min-reward` looks at."""
        return trajectory.total_return

    @classmethod
    def is_demonstration(cls, trajectory: Trajectory) -> bool:
        """Whether a teacher's episode is kept as a demonstration."""
        return True

    @classmethod
    def fault(cls, trajectory: Trajectory) -> str:
        """Why a demonstration gives no SFT rows, as text after "3 demonstrations: "; "" if it gives
        some.
        """
        return ""


class Env:
    """An environment: what happens. It knows no model and no tokenizer.

    A subclass sets `name` and writes `reset` and `step`; the rest has defaults. `reset` and `step`
    return their results, or awaitables of them if the env waits for an engine in another process, a
    server or a simulated user.

    An env may also have: `rules`, the text that people and chat models read first (default: the
    docstring of the class); `choices`, the actions, if they are the same in every state; `legal()`,
    the legal texts where actions are free text; `state`, a short JSON name of the current state;
    and a classmethod `tasks(level)`, the problems of a level.
    """

    name: ClassVar[str]
    """Name of the env in tasks and records; default: the name of the class in lower case."""
    levels: ClassVar[tuple[str, ...]] = ("all",)
    """Curriculum stages, easiest first; the last is the full task."""
    horizons: ClassVar[Mapping[str, int]] = {}
    """Steps after which an episode is truncated, by level."""
    default_horizon: ClassVar[int] = DEFAULT_HORIZON
    """The same at the other levels. As nobody has chosen it, commands say how many episodes it cut
    off.
    """
    Settings: ClassVar[type[Config]] = NoSettings
    """A `Config`: its fields are flags of every command that makes envs, and keyword arguments of
    the constructor.

    `chat_models`, a mapping in it, has the settings that name a chat model which the env asks, each
    with the class that asks it, as "module:Class". The constructor gets an instance, made from the
    endpoint, a journal's path, the timeout in seconds, the number of calls at once and the budget
    in US dollars or None; or None where the setting is at its default. The server's address is the
    setting called the same plus `_url`; its budget, if any, the same plus `_max_usd`.
    """
    taskset: ClassVar[Taskset] = Taskset()
    """Which problems it has."""
    teacher_type: ClassVar[type[Teacher]] = Teacher
    """What would be right; the default knows nothing, which is enough for training by reward and
    for evaluation.
    """
    acts: ClassVar[Literal["choice", "tools", "text"]] = "choice"
    """How the agent acts: by a choice from a list, by calls of tools, or in words."""
    answers_with: ClassVar[Answer | Literal[""]] = ""
    """What a policy learns to answer from demonstrations unless `--answer` says otherwise. Empty:
    the number of a choice where all states have the same list, and its words where lists differ.
    """
    remote: ClassVar[bool] = False
    """Whether `reset` and `step` block while they wait; they are then called in threads."""
    max_concurrency: ClassVar[int] = 2**31
    """Maximum number of concurrent episodes."""
    advantages: ClassVar[Literal["episode", "step", "own"]] = "episode"
    """What GRPO compares in a group unless `--advantages` says otherwise: returns, returns-to-go,
    or own rewards.
    """
    baselines: ClassVar[tuple[str, ...]] = ()
    """Names of the rule-based players that `baseline(name)` implements."""
    methods: ClassVar[Mapping[str, int]] = {}
    """Published methods that play with any model, `--policy NAME:MODEL`, each with the most tokens
    of an answer. `method_messages(name)` is what the model is asked, and `method_action(name,
    answer)` the action that its answer stands for; it raises ValueError with the reason if it
    stands for none.
    """

    horizon: int | None = None
    """Steps after which the episode will be truncated; set by `make`, None if it is not known."""
    data_folder: Path | None = None
    """The env's folder for data, set by `make`."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.taskset = cls.taskset.of_env(cls)

    def __init__(self, *, horizon: int | None = None, **settings: Any) -> None:
        if horizon is not None:
            self.horizon = horizon
        by_name = by_flat_name(self.Settings, settings)
        # The types are part of the key, since 1 and True are equal
        values = tuple((name, type(value), value) for name, value in by_name.items())
        try:
            self.settings: Any = _build_settings(self.Settings, self.name, values)
        except TypeError:  # a list has no hash
            self.settings = build(self.Settings, by_name, f"env '{self.name}'")

    @classmethod
    def action_kind(cls, settings: Any) -> Literal["choice", "tools", "text"]:
        """How the agent acts with these settings."""
        return cls.acts

    @classmethod
    def horizon_of(cls, level: str) -> int:
        """Steps after which an episode at `level` is truncated, unless the user says otherwise."""
        return int(cls.horizons.get(level, cls.default_horizon))

    @classmethod
    def own_files(cls, settings: Any) -> list[Path]:
        """The user's files that the env runs besides the module of its class: inputs of a run, so
        that an edit makes a new one.
        """
        return []

    @classmethod
    def unknown_files(cls, settings: Any) -> str:
        """What to tell of files that it runs and that `own_files` cannot know; "" if there are
        none.
        """
        return ""

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`. Raises DataError if `task.data` is not valid for this env."""
        raise NotImplementedError

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """Raises IllegalActionError for an action that was not offered; it is not called after the
        end.
        """
        raise NotImplementedError

    def decided(self, decision: Decision) -> None:
        """Called in an episode before each `step`, with the agent's whole decision: its tokens, for
        example.
        """

    def close(self) -> None:
        """Give back what the env holds, e.g. a process or a connection; whoever made it calls this
        once. After an episode that took too long, a call of a `remote` env may still be under way.
        """

    def release(self) -> None:
        """Give back what only an episode needs, e.g. one of a server's few sessions; called after
        each, however it ended. A call of a `remote` env may still be under way.
        """

    @classmethod
    def questions(cls) -> Sequence[StateQuestion]:
        """What a typed reflector is asked about each state. The answers are those of
        `Teacher.answers`, or of played episodes: what was done in successful ones is LIKELY, and
        SUCCEEDS is whether they were successful.
        """
        return LIKELY, SUCCEEDS

    def teacher(self) -> Teacher:
        """The teacher of the current state, and of those to come."""
        return self.teacher_type(self)

    def truncation_penalty(self, steps_left: int) -> float:
        """The reward for ending the episode now, without an answer."""
        return 0.0


@lru_cache(maxsize=256)  # an env is made for each episode
def _build_settings(
    kind: type[Config],
    env: str,
    values: tuple[tuple[str, type, Any], ...],
) -> Config:
    return build(kind, {name: value for name, _, value in values}, f"env '{env}'")


@dataclass(frozen=True, slots=True)
class Context:
    """The context of one observation.

    seed: seed of this turn. env: for scripted teachers, and for its rules (`rules_of`). turns: the
    episode so far, oldest first, for agents that read the history.
    """

    seed: int
    env: Env
    turns: tuple[Turn, ...] = ()


@runtime_checkable
class Agent(Protocol):
    """Decides for one observation at a time; it may wait for other requests meanwhile."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The decision for `observation`."""
        ...


def rules_of(env: Env) -> str:
    """The rules that a person or a chat model reads first: the `rules` of `env`, or the docstring
    of its class.
    """
    rules = getattr(env, "rules", None)
    return inspect.cleandoc(rules if isinstance(rules, str) else type(env).__doc__ or "")


def cut_at_default(cut: int, episodes: int, limit: int) -> str:
    """What to tell of `cut` of so many episodes, which a default limit of so many steps cut off."""
    return (
        f"{cut} of {pluralize(episodes, 'episode')} reached {limit} steps, the default limit;"
        ' add --horizon N, or horizon = N to the class (horizons = {"LEVEL": N} to an Env)'
    )


DEMONSTRATES = ("action", "comment")
"""What a teacher needs for demonstrations."""


def check_teacher(teacher: Teacher | type[Teacher], env: str, *methods: str) -> None:
    """Raises ConfigError unless the teacher of `env` has these methods; by default, those for
    demonstrations.
    """
    missing = [name for name in methods or DEMONSTRATES if not teacher.has(name)]
    if missing:
        lacks = " and ".join(f"{name}()" for name in missing)
        raise ConfigError(
            f"env '{env}' has no oracle teacher: it lacks {lacks}; write a reflectkit.Teacher that"
            " has it, and name it in teacher_type"
        )


def teacher_of(env: Env, *methods: str) -> Teacher:
    """The teacher of `env`. Raises ConfigError unless it has these methods; see `check_teacher`."""
    teacher = env.teacher()
    check_teacher(teacher, env.name, *methods)
    return teacher


class Wrapper(Env):
    """Forwards everything to `env`, where the defaults of `Env` stand in for what it lacks. A
    subclass changes some of it.
    """

    def __init__(self, env: Env) -> None:
        self.env = env
        # Attributes of Env's class would be found before __getattr__ is asked
        for name in Env.__annotations__:
            if hasattr(env, name):
                vars(self)[name] = getattr(env, name)

    @property
    def rules(self) -> str:
        """The wrapped env's, and what the wrapper adds."""
        return rules_of(self.env)

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`."""
        return self.env.reset(task, seed)

    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """Take `action`."""
        return self.env.step(action)

    def decided(self, decision: Decision) -> None:
        """See `Env.decided`."""
        getattr(self.env, "decided", super().decided)(decision)

    def close(self) -> None:
        """See `Env.close`."""
        getattr(self.env, "close", super().close)()

    def release(self) -> None:
        """See `Env.release`."""
        getattr(self.env, "release", super().release)()

    def horizon_of(self, level: str) -> int:  # type: ignore[override]
        """The wrapped env's."""
        horizon: int = getattr(self.env, "horizon_of", super().horizon_of)(level)
        return horizon

    def teacher(self) -> Teacher:
        """The wrapped env's teacher."""
        teacher: Teacher = getattr(self.env, "teacher", super().teacher)()
        return teacher

    def questions(self) -> Sequence[StateQuestion]:  # type: ignore[override]
        """The wrapped env's questions."""
        questions: Sequence[StateQuestion] = getattr(self.env, "questions", super().questions)()
        return questions

    def truncation_penalty(self, steps_left: int) -> float:
        """The wrapped env's penalty."""
        penalty: float = getattr(self.env, "truncation_penalty", super().truncation_penalty)(
            steps_left
        )
        return penalty

    def __getattr__(self, name: str) -> Any:
        """What only the wrapped env has."""
        # Copying and unpickling look these up before __init__
        if name == "env" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What the user says, and whether they end the conversation with it."""

    text: str
    over: bool = False


class User(Protocol):
    """A user who is told who they are and what they want; it keeps nothing between calls, so that
    concurrent episodes share it.
    """

    def say(
        self, instructions: str, conversation: Sequence[Message], seed: int
    ) -> UserTurn | Awaitable[UserTurn]:
        """The user's next message.

        instructions: who the user is, what they want, and what they know. conversation: what user
        and agent have said to each other, oldest first; empty at the start. seed: of the turn, 0 ≤
        seed < 2**63.

        Raises EnvironmentFailure where nobody answers.
        """
        ...


ANSWER_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Query:
    """A question as the reader gets it.

    advice: what the reader is told about questions of this source, in place of its own advice; ""
    leaves it. tokens: most tokens of the answer.
    """

    question: str
    advice: str = ""
    tokens: int = ANSWER_TOKENS


@dataclass(frozen=True, slots=True)
class Claim:
    """An answer to be judged: the question, what a right answer has to meet, and the answer."""

    question: str
    rubric: str
    answer: str


class Reader(Protocol):
    """Answers questions from memories."""

    def answer(
        self, queries: Sequence[Query], memories: Sequence[Sequence[str]]
    ) -> list[str] | Awaitable[list[str]]:
        """An answer to each question, from the texts that were retrieved for it, best first;
        awaitable if the reader is a server.

        Raises EnvironmentFailure if the reader cannot be reached.
        """
        ...


class Judge(Protocol):
    """Decides whether answers meet their rubrics."""

    def verdicts(self, claims: Sequence[Claim]) -> list[bool] | Awaitable[list[bool]]:
        """Whether each answer is right; awaitable if the judge is a server. Raises
        EnvironmentFailure if the judge cannot be reached.
        """
        ...


class PromptSettings(Config):
    """Limits on the length of outputs and prompts."""

    result_tokens: int = option(
        400, help="Approximate number of tokens shown of a command's output.", ge=1
    )
    prompt_tokens: int = option(
        800,
        help="Approximate token limit of a prompt; the oldest commands are dropped first.",
        ge=50,
    )


class ChoiceEnv(Env):
    """An env whose observation is one text and whose actions are the same few choices in every
    state.

    A subclass sets `name`, `levels`, `choices`, and writes `_begin`, `_move` and `_text`.
    """

    choices: ClassVar[tuple[str, ...]]
    """The actions."""

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin `task`. Raises DataError for another env's task, a level or data that this env does
        not know.
        """
        check_task(task, self.name, self.levels)
        self._begin(task, seed)
        return self._observe()

    def step(self, action: Action) -> StepResult:
        """Take choice `action`. Raises IllegalActionError: not one of the choices."""
        # A user may have written _move, so its form is checked
        result: Any = self._move(check_choice(action, self.choices, self.name))
        if not isinstance(result, tuple) or len(result) != 3:
            raise ConfigError(
                f"_move() of env '{self.name}' returned {brief(result)}; return (reward, whether"
                " the episode is over, info to keep)"
            )
        reward, terminated, info = result
        return StepResult(self._observe(), reward, terminated, info=info)

    def _observe(self) -> Observation:
        return Observation((Message("user", self._text()),), self.choices)

    def _begin(self, task: Task, seed: int) -> None:
        raise NotImplementedError

    def _move(self, action: int) -> tuple[float, bool, dict[str, object]]:
        raise NotImplementedError

    def _text(self) -> str:
        raise NotImplementedError


def check_task(task: Task, name: str, levels: Sequence[str]) -> None:
    """Raises DataError for a task of another env than `name`, or of a level not in `levels`."""
    if task.env != name:
        raise DataError(task.id, f"is a task of env '{task.env}', not of '{name}'")
    if task.level not in levels:
        raise DataError(
            task.id, f"level {task.level!r} is none of {', '.join(levels)}", field="level"
        )


def check_choice(action: object, choices: Sequence[str], name: str) -> int:
    """`action`, if it is the index of one of the K `choices`; else raises IllegalActionError."""
    if not isinstance(action, int) or isinstance(action, bool) or not 0 <= action < len(choices):
        raise IllegalActionError(
            f"{name}: no action {action!r:.80}; choose 0 to {len(choices) - 1}"
        )
    return action


def task_int(task: Task, field: str, low: int, high: int) -> int:
    """`task.data[field]`, an integer from `low` to `high`. Raises DataError with the field's name."""
    value = task.data.get(field)
    # True is an int in Python, and no number in JSON
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise DataError(
            task.id,
            f"expected a whole number from {low} to {high}, found {value!r}",
            field=f"data.{field}",
        )
    return value
