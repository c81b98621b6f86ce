"""Programs as environments: requests are steps, rows are exact, and every way to fail is an ABORTED episode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.cli.main import main
from reflectkit.data.logs import logged_lessons
from reflectkit.data.sft_rows import lessons
from reflectkit.envs import make
from reflectkit.envs.adapters.endpoint import Conversations
from reflectkit.envs.setup import EnvConfig, EnvSetup
from reflectkit.errors import ConfigError
from reflectkit.jsonl import read_json, write_json, write_jsonl
from reflectkit.models.load import LoadedModel
from reflectkit.models.tiny import build_model
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.tools import use_of
from reflectkit.train import training_rows
from reflectkit.types import Decision, Message, Observation, Status, Task, ToolCall, ToolUse, Trajectory, to_json
from tests.fakes.players import Plays
from tests.models.test_chat import make_tokenizer, rows_of

HELPERS = """
import json, os, sys, time, urllib.request
URL = os.environ["REFLECTKIT_URL"]

def post(path, value):
    request = urllib.request.Request(URL + path, json.dumps(value).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))

def ask(messages, **more):
    return post("/v1/chat/completions", {"model": "m", "messages": messages, **more})["choices"][0]["message"]

TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {
    "type": "object", "properties": {"box": {"type": "integer"}}, "required": ["box"]}}}]

def decide(state, *questions):
    body = {"model": "any", "input": state, "questions": list(questions)}
    return post("/v1/decisions", body)["answers"]

def choice(*values):
    return {"type": "choice", "instructions": "Which desk?", "choices": [{"value": value} for value in values]}
"""
Play = Callable[..., list[Trajectory]]


LOOK, WORDS = use_of([ToolCall("look", {"box": 2})]), ToolUse("Box 2.")


@pytest.fixture
def play(tmp_path: Path) -> Play:
    def played(code: str, agent: Any, count: int = 1, horizon: int = 9, arguments: str = "", **settings: Any) -> Any:
        (tmp_path / "agent.py").write_text(HELPERS + textwrap.dedent(code), encoding="utf-8")
        env = f"program:{sys.executable} {tmp_path}/agent.py {arguments}"
        tasks = [Task(str(number), "program", "all", "", {"task": f"a b'{number}"}) for number in range(count)]
        return rollout([Episode(task, 0) for task in tasks], lambda: make(env, horizon, **settings), agent, width=50)

    return played


LOOKS = """
messages = [{"role": "user", "content": sys.argv[1]}]
for _ in range(3):
    message = ask(messages, tools=TOOLS, temperature=0.5)
    messages.append(message)
    if "tool_calls" not in message:
        break
    for call in message["tool_calls"]:
        box = json.loads(call["function"]["arguments"])["box"]
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"Box {box} is red."})
"""


def test_requests_are_steps_and_arguments_pass_no_shell(play: Play) -> None:
    (episode,) = play(LOOKS + "print('done')\nprint(0.25)", Plays(LOOK, LOOK, WORDS), arguments="'{task}'")
    assert episode.status is Status.COMPLETED
    assert (episode.total_return, episode.success) == (0.25, False)
    assert [turn.decision.action for turn in episode.turns] == [LOOK, LOOK, WORDS]
    last = episode.turns[-1].observation
    assert [message.content for message in last.messages] == ["a b'0", *(LOOK.text, "Box 2 is red.") * 2]
    assert [message.name for message in last.messages if message.role == "tool"] == ["look", "look"]
    assert [tool.name for tool in last.tools] == ["look"]
    assert episode.figures == {"overridden": 3.0}


def test_each_question_is_a_step_whose_answer_is_the_action_that_was_taken(play: Play) -> None:
    code = """
    yes, desk = decide("A ticket", {"type": "predicate", "instructions": "Is it late?"}, choice("a", "b", "c"))
    assert yes["probability"] == 0 and desk["choice"] == "c" and desk["confidence"] == 1
    assert [entry["probability"] for entry in desk["probabilities"]] == [0, 0, 1]
    scale = {"type": "score", "criteria": ["low", "middle", "high"]}
    body = {"model": "kev", "state": {"text": "Help"}, "questions": {"how urgent": scale}}
    print(post("/v1/systemone", body)["answers"]["how urgent"]["score"])
    """
    (episode,) = play(code, Plays(1, 2, 1))
    assert (episode.reason, episode.total_return) == ("", 1.0)
    assert [turn.reward for turn in episode.turns] == [0, 0, 1]
    seen = [turn.observation for turn in episode.turns]
    assert [each.choices for each in seen] == [("yes", "no"), ("a", "b", "c"), ("low", "middle", "high")]
    assert [each.text for each in seen] == ["A ticket\nIs it late?", "A ticket\nWhich desk?", '{"text": "Help"}']


MIXED = """
messages = [{"role": "user", "content": "Where is it?"}]
for _ in range(2):
    messages.append(ask(messages))
    desk = decide("A ticket", choice("a", "b"))[0]["choice"]
    messages.append({"role": "user", "content": f"It is at {desk}."})
print(1)
"""


def test_a_mixed_program_trains_its_choices_and_its_words(play: Play) -> None:
    agent = TwoPlayerAgent(LocalSampler(tiny(0, None)), max_new_tokens=6)
    (episode,) = play(MIXED, agent)
    assert (episode.reason, episode.total_return) == ("", 1.0)
    numbers = [[1.0] * 4]
    rows = training_rows.rows([episode], numbers, numbers, {("a", "b"): agent.labels(("a", "b"))})
    assert [len(row.choices) for row in rows] == [0, 2, 0, 2]
    for row, turn in zip(rows, episode.turns, strict=True):
        assert row.tokens == (*turn.decision.prompt_ids, *turn.decision.token_ids)


REWARDS = """
def counted(prompts, completions, **kwargs):
    return [float(len(prompt) + 10 * len(completion)) for prompt, completion in zip(prompts, completions)]
"""


@pytest.mark.parametrize(
    ("code", "actions", "messages"),
    [
        (MIXED, (WORDS, 0, WORDS, 1), 1 + 10 * (3 + 4)),  # the conversation, and then the questions with their answers
        ("decide('A ticket', choice('a', 'b'), choice('c', 'd'))", (0, 1), 1 + 10 * 3),
    ],
)
def test_reward_functions_see_the_decisions(
    play: Play, tmp_path: Path, code: str, actions: tuple[Any, ...], messages: int
) -> None:
    (tmp_path / "counts_decisions.py").write_text(REWARDS, encoding="utf-8")
    (episode,) = play(code, Plays(*actions), reward=(f"{tmp_path}/counts_decisions.py:counted",))
    assert (episode.reason, episode.total_return) == ("", messages)


def test_a_chat_in_a_program_of_decisions_is_refused_with_the_fix(play: Play) -> None:
    code = """
    import urllib.error
    decide("A ticket", choice("a", "b"))
    try:
        ask([{"role": "user", "content": "Hi"}])
    except urllib.error.HTTPError as error:
        sys.exit(error.read().decode())
    """
    (episode,) = play(code, Plays(0), only_decisions=True)
    assert episode.status is Status.ABORTED
    assert "leave out that flag" in episode.reason


def test_a_tiny_model_learns_a_program_of_decisions_from_random_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = f"{HELPERS}print(float(decide('A ticket', choice('a', 'b'))[0]['choice'] == 'b'))"
    Path("agent.py").write_text(code, encoding="utf-8")
    write_jsonl(Path("rows.jsonl"), [{"prompt": "Go."}])
    command = ["rlft", "--env", f"program:{sys.executable} agent.py", "--dataset", "rows.jsonl", "--model", "tiny"]
    command += [
        "--algo",
        "grpo",
        "--max-steps",
        "1",
        "--episodes",
        "4",
        "--group-size",
        "4",
        "--validate-problems",
        "0",
    ]
    assert main(command) == 2
    assert "choices" in capsys.readouterr().err
    assert main([*command, "--only-decisions", "--name", "run"]) == 0
    checkpoint = Path("results/run/checkpoint-1")
    assert read_json(checkpoint / "reflectkit.json")["acts"] == "choice"


def test_values_fill_single_braces_only(play: Play) -> None:
    code = 'ask([{"role": "user", "content": " ".join(sys.argv[1:])}])\nprint(1)'
    (episode,) = play(code, Plays(WORDS), arguments="""'{"of":"{task}"}' {{task}}""")
    assert episode.turns[0].observation.messages[0].content == """{"of":"a b'0"} {task}"""


@pytest.mark.parametrize(
    ("code", "reward"),
    [
        ('post("/reward", {"reward": 1})\nprint(0.5)', 1.0),
        ('open(os.environ["REFLECTKIT_REWARD_FILE"], "w").write("2.5")\nprint(0.5)', 2.5),
        ('os.mkfifo(os.environ["REFLECTKIT_REWARD_FILE"])\nprint(0.5)', 0.5),
    ],
)
def test_the_reward_has_one_source(play: Play, code: str, reward: float) -> None:
    (episode,) = play(f'ask([{{"role": "user", "content": "Hi"}}])\n{code}', Plays(WORDS))
    assert episode.total_return == reward
    assert episode.success == (reward >= 1)


@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_a_posted_reward_counts_once_wherever_the_episode_ends(play: Play, horizon: int) -> None:
    """It is that of the step after which it was posted, also where the limit of steps ends the episode."""
    code = """
    ask([{"role": "user", "content": "Hi"}])
    post("/reward", {"reward": 1})
    ask([{"role": "user", "content": "And?"}])
    """
    (episode,) = play(code, Plays(WORDS, WORDS), horizon=horizon)
    assert (episode.total_return, episode.success) == (1.0, True)
    assert [turn.reward for turn in episode.turns] == [1.0, 0.0][:horizon]
    assert episode.status is (Status.TRUNCATED if horizon == 1 else Status.COMPLETED)


def test_a_program_is_told_that_an_answer_was_cut(play: Play) -> None:
    class Cuts:
        async def decide(self, observation: Observation, context: Any) -> Decision:
            return Decision(WORDS, cut=not context.turns)

    code = """
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    reasons = [post("/v1/chat/completions", body)["choices"][0]["finish_reason"] for _ in range(2)]
    print(float(reasons == ["length", "stop"]))
    """
    (episode,) = play(code, Cuts())
    assert episode.total_return == 1.0


@pytest.mark.parametrize("value", ["b\0c", "b\ud800c", "b" * 140_000])
def test_a_value_that_is_no_argument_aborts_its_episode_alone(value: str) -> None:
    odd = Task("odd", "program", "all", "", {"task": value})
    plain = Task("plain", "program", "all", "", {"task": "b"})
    code = f"program:{sys.executable} -c 'import urllib.request' {{task}}"
    first, second = rollout([Episode(odd, 0), Episode(plain, 0)], lambda: make(code, 3), Plays(WORDS), width=1)
    assert first.status is Status.ABORTED
    assert "cannot be an argument" in first.reason
    assert "without a request" in second.reason


JUDGE = """
import asyncio, threading

async def judge(completions):
    await asyncio.sleep(0)
    return [float(threading.current_thread() is threading.main_thread()) for _ in completions]

def judged(completions, **kwargs):
    return asyncio.run(judge(completions))
"""


def test_a_reward_function_is_called_in_the_main_thread_and_may_start_a_loop(play: Play, tmp_path: Path) -> None:
    (tmp_path / "program_judge.py").write_text(JUDGE, encoding="utf-8")
    settings = {"reward": (f"{tmp_path}/program_judge.py:judged",)}
    (episode,) = play('ask([{"role": "user", "content": "Hi"}])', Plays(WORDS), **settings)
    assert episode.total_return == 1.0


ASKED = 'ask([{"role": "user", "content": "Hi"}])\n'


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ValueError('no luck')", "exit code 1; its output ends: ValueError: no luck"),
        ('ask([{"role": "user", "content": "Hi"}])\nprint("nan")', "gave no reward"),
        ('ask([{"role": "user", "content": "Hi"}])\ntime.sleep(60)', "took longer than 3 s"),
        ('ask([{"role": "user", "content": "Hi"}])\nprint("1_0")', "the program gave no reward"),
        (
            ASKED + 'open(os.environ["REFLECTKIT_REWARD_FILE"], "w").write("0.5\\n1.0\\n")\nprint(0.5)',
            r"the program gave no reward: its file has '0.5\n1.0'; write one number",
        ),
        (
            ASKED + 'open(os.environ["REFLECTKIT_REWARD_FILE"], "wb").write(b"\\xff")\nprint(0.5)',
            "the program gave no reward: its file is not UTF-8",
        ),
        ('URL = URL[:-5] + "wrong"\nask([{"role": "user", "content": "Hi"}])', "HTTP Error 404"),
    ],
)
def test_what_fails_is_aborted_and_has_no_reward(play: Play, code: str, reason: str) -> None:
    (episode,) = play(code, Plays(WORDS), program_timeout_s=3 if "sleep" in code else 100)
    assert episode.status is Status.ABORTED
    assert reason in episode.reason
    assert "\n" not in episode.reason


def start(command: str) -> None:
    task = Task("a", "program", "all", "", {})
    rollout([Episode(task, 0)], lambda: make(f"program:{command}", 3), Plays(WORDS))


def test_a_program_that_cannot_be_started_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    for command, reason in (
        ("no-such-program", "No such file"),
        (f"{tmp_path}", "Permission denied"),
        (f"{tmp_path}/text", "Exec format error"),
        ("python no_such_agent.py", "no file no_such_agent.py"),
        ("echo {sed}", r"\{sed\} has no value; there are \{seed\}, \{task\}"),
    ):
        with pytest.raises(ConfigError, match=reason):
            start(command)


def processes(name: str) -> list[str]:
    """Those with `name` in their command, which may have lost their parents."""
    found = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [command for command in found if name in command]


def test_nothing_is_left_of_a_program_that_is_cut_off(play: Play, tmp_path: Path) -> None:
    """It floods its output, has a child and on Linux a daemon, and asks without end."""
    code = """
    import subprocess
    for daemon in (False, sys.platform == "linux"):
        wait = [sys.executable, "-c", "import time; time.sleep(300)", sys.argv[0]]
        subprocess.Popen(wait, start_new_session=daemon)
    while True:
        print("x" * 100_000, flush=True)
        ask([{"role": "user", "content": "Hi"}])
    """
    (episode,) = play(code, Plays(WORDS), horizon=4)
    assert (episode.status, len(episode.turns)) == (Status.TRUNCATED, 4)
    deadline = time.monotonic() + 20
    while processes(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes(str(tmp_path)) == []


def test_only_the_named_variables_pass_and_never_a_key(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOWN", "yes")
    monkeypatch.setenv("HIDDEN", "no")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    code = """
    ask([{"role": "user", "content": json.dumps([os.environ.get(name) for name in ("SHOWN", "HIDDEN")])}])
    assert "secret" not in str(os.environ), os.environ
    print(1)
    """
    (episode,) = play(code, Plays(WORDS), pass_env=("SHOWN",))
    assert episode.reason == ""
    assert episode.turns[0].observation.text == 'User: ["yes", null]'
    with pytest.raises(ConfigError, match="MY_API_KEY looks like a key"):
        make("program:true", pass_env=("MY_API_KEY",))


KEY = "sk-0123456789-abcdefghij"


@pytest.mark.parametrize("code", ["print(0)", "raise ValueError(KEY)"])
def test_no_record_holds_a_key_that_the_program_found(play: Play, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    lines = [
        f"KEY = {KEY!r}",
        'ask([{"role": "user", "content": "Hi"}])',
        "print(KEY, KEY[:-3], file=sys.stderr)",
        code,
    ]
    (episode,) = play("\n".join(lines), Plays(WORDS))
    stored = json.dumps(to_json(episode))
    assert "[key]" in stored
    assert KEY[:8] not in stored


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_program_reads_a_key_from_the_environment_of_its_parents(tmp_path: Path) -> None:
    """The command still has it, and so have the processes that it starts."""
    agent = """
    found, parent = [], os.getppid()
    while parent != int(sys.argv[1]):
        found.append("sk-0123" in open(f"/proc/{parent}/environ").read())
        parent = int(open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[1])
    ask([{"role": "user", "content": str(found)}])
    """
    code = f"""
import os, subprocess
from reflectkit.envs import make
from reflectkit.eventloop import run_sync
from reflectkit.types import Task
env = make("program:{sys.executable} {tmp_path}/agent.py {os.getpid()}", 5)
print(run_sync(env.reset(Task("a", "program", "all", "", {{}}), 0)).text)
print(os.environ["OPENAI_API_KEY"], flush=True)
subprocess.run("echo $OPENAI_API_KEY", shell=True)
env.close()
"""
    (tmp_path / "agent.py").write_text(HELPERS + textwrap.dedent(agent), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OPENAI_API_KEY": KEY}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["User: [False, False]", KEY, KEY], done.stderr


def test_many_programs_at_once(play: Play) -> None:
    episodes = play(LOOKS + "print(1)", Plays(LOOK, WORDS), count=8, arguments="'{task}'")
    assert [episode.turns[0].observation.text for episode in episodes] == [f"User: a b'{n}" for n in range(8)]
    assert all(episode.success for episode in episodes)


def tiny(seed: int, role: str | None) -> LoadedModel:
    tokenizer = make_tokenizer("qwen")
    return LoadedModel(build_model(tokenizer, 4096, seed), tokenizer, role)


def test_the_programs_own_log_teaches_what_the_episode_does(play: Play, tmp_path: Path) -> None:
    log = f'open({str(tmp_path / "log")!r}, "w").write(json.dumps({{"messages": messages, "tools": TOOLS}}))'
    (episode,) = play(f"{LOOKS}\n{log}\nprint(1)", Plays(LOOK, LOOK, WORDS), arguments="'{task}'")
    assert episode.reason == ""
    logged, _ = logged_lessons(tmp_path / "log")
    assert logged == lessons([episode.turns])
    assert [lesson.completion for lesson in logged] == [' look {"box": 2}', ' look {"box": 2}', " Box 2."]


def test_calls_that_another_model_made_are_shown_with_their_results_in_order() -> None:
    calls = [{"id": key, "function": {"name": "look", "arguments": json.dumps({"box": key})}} for key in "ab"]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Where?", "name": None}]
    messages += [{"role": "assistant", "content": "I look.", "tool_calls": calls, "function_call": None}]
    messages += [{"role": "tool", "tool_call_id": key, "content": f"{key} is empty"} for key in "ba"]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "dict", "properties": None}}}]
    read = Conversations().read(json.dumps({"model": "", "messages": messages, "tools": tools}).encode())
    said = ["User: Where?", "Agent:", " I look.", ' look {"box": "a"}', ' look {"box": "b"}']
    assert read.observation.text.split("\n") == [*said, "Tool look: a is empty", "Tool look: b is empty"]
    assert read.observation.tools[0].parameters == {"type": "object"}


def test_conversations_without_a_name_stay_apart_in_a_served_log(tmp_path: Path) -> None:
    rows = []
    for name in "ab":
        said = [Message("user", f"Hi {name}"), Message("assistant", "Box 1."), Message("user", "Sure?")]
        for seen in (said[:1], said):
            observation = Observation(tuple(seen), replies=True)
            decision = Decision(ToolUse("Box 1."), f"comment on {name}")
            rows.append({"session": "", "observation": to_json(observation), "decision": to_json(decision)})
    write_jsonl(tmp_path / "log", rows)
    found = [[step.reflection for step in lesson.earlier] for lesson in logged_lessons(tmp_path / "log")[0]]
    assert found == [[], ["comment on a"], [], ["comment on b"]]


def test_a_conversation_is_one_row_of_the_sampled_tokens(play: Play) -> None:
    """A program that only adds messages gets one row; one that forgets the first ones gets another."""
    policy = LocalSampler(tiny(0, None))
    reflector = Reflector(LocalSampler(tiny(1, "reflection"), frozen=True))
    agent = TwoPlayerAgent(policy, reflector, max_new_tokens=6)
    agent.dialogue.stop_ids = frozenset([policy.tokenizer.eos_token_id])  # the template writes no other one
    talks = """
    messages = [{"role": "user", "content": "Where is it?"}]
    for number in range(4):
        messages.append(ask(messages, tools=TOOLS))
        messages.append({"role": "user", "content": "Look again."})
        if number == 2 and len(sys.argv) > 1:
            messages = messages[2:]
    print(1)
    """
    (episode,) = play(talks, agent)
    assert episode.reason == ""
    assert "unmatched" not in episode.figures
    (row,) = rows_of(episode)
    written = [token for turn in episode.turns for token in turn.decision.token_ids]
    assert [token for token, mask in zip(row.tokens, row.loss_mask, strict=True) if mask] == written
    (episode,) = play(talks, agent, arguments="forget")
    assert [sum(row.loss_mask) > 0 for row in rows_of(episode)] == [True, True]
    assert "unmatched" not in episode.figures


def test_no_program_outlives_a_killed_run(tmp_path: Path) -> None:
    """The supervisor notices that its input was closed."""
    code = f"""
import asyncio, os
from reflectkit.cli.main import main
from reflectkit.envs import make
from reflectkit.envs.setup import EnvConfig, EnvSetup
from reflectkit.types import Task
env = make("program:{sys.executable} {tmp_path}/agent.py", 5)
from reflectkit.eventloop import run_sync
run_sync(env.reset(Task("a", "program", "all", "", {{}}), 0))
print("asked", flush=True)
os.kill(os.getpid(), 9)
"""
    (tmp_path / "agent.py").write_text(HELPERS + 'ask([{"role": "user", "content": "Hi"}])', encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "asked\n"

    deadline = time.monotonic() + 20
    while processes(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes(str(tmp_path)) == []


FILES = {
    "agent.py": "import helper\nfrom parts import near\n",
    "helper.py": "def late():\n    import deep.low\n",
    "deep/__init__.py": "",
    "deep/low.py": "",
    "parts/__init__.py": "",
    "parts/near.py": "",
    "pkg/__init__.py": "",
    "pkg/__main__.py": "from .core import act\n",
    "pkg/core.py": "",
    "tools/agent.py": "import other\n",
    "tools/other.py": "",
    "run.sh": '#!/bin/sh\ncd "$(dirname "$0")"\nexec python "$HERE/tools/agent.py" "$1" >> log.txt\n',
    "log.txt": "",
    "conf.yaml": "",
    "agent.js": "",
    "elsewhere.py": "import importlib\nimportlib.import_module('helper')\n",
}
AGENT = {"agent.py", "helper.py", "deep/__init__.py", "deep/low.py", "parts/__init__.py", "parts/near.py"}
PACKAGE = {"pkg/__init__.py", "pkg/__main__.py", "pkg/core.py"}


@pytest.mark.parametrize(
    ("command", "files", "opaque"),
    [
        ("python agent.py {seed}", AGENT, ""),
        (f"{sys.executable} -u -X dev agent.py --config=conf.yaml", AGENT | {"conf.yaml"}, ""),
        ("bash -c 'python agent.py {seed}'", AGENT, ""),
        ("python -m pkg -m conf", PACKAGE, ""),
        ("python -um pkg.core", PACKAGE - {"pkg/__main__.py"}, ""),
        ("python pkg", PACKAGE, ""),
        ("python -c 'import deep.low'", {"deep/__init__.py", "deep/low.py"}, ""),
        ("./run.sh {seed}", {"run.sh", "tools/agent.py", "tools/other.py"}, "run.sh"),
        ("node agent.js", {"agent.js"}, "agent.js"),
        ("python elsewhere.py", {"elsewhere.py"}, "elsewhere.py"),
        ("python -m no_such_module", set(), "no_such_module"),
        ("some-agent {seed}", set(), "some-agent"),
        ("python {prompt}.py", set(), "{prompt}.py"),
        ("bash -c 'cd tools && python other.py'", set(), "other.py"),
        ("bash -c 'python < agent.py'", AGENT, ""),
        ("xargs python", set(), "python"),
    ],
)
def test_the_files_of_a_program_are_known_or_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, files: set[str], opaque: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    Path("run.sh").chmod(0o755)
    config = EnvConfig.from_flat(env=f"program:{command}")
    setup = EnvSetup(config.name, tmp_path, config.settings)
    assert {str(path) for path in setup.code_files} == files
    assert [note.partition(" uses")[0].rpartition(" ")[2] for note in config.notes] == ([opaque] if opaque else [])
    named = EnvConfig.from_flat(env=config.name, input=("deep",))
    assert EnvSetup(named.name, tmp_path, named.settings).code_files[-1] == Path("deep")
    assert named.notes == []


def test_modules_of_a_passed_pythonpath_are_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "solo.py").touch()
    (tmp_path / "agent.py").write_text("import solo")
    monkeypatch.setenv("PYTHONPATH", "src")
    config = EnvConfig.from_flat(env="program:python agent.py", pass_env=("PYTHONPATH",))
    assert EnvSetup(config.name, tmp_path, config.settings).code_files == [Path("agent.py"), Path("src/solo.py")]


def test_another_program_is_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(
        f'{HELPERS}\nimport score\nask([{{"role": "user", "content": "?"}}])\nprint(score.SCORE)'
    )
    Path("score.py").write_text("SCORE = 0")
    monkeypatch.setenv("MODE", "a value that no file holds")
    command = ["evaluate", "--env", f"program:{sys.executable} agent.py", "--pass-env", "MODE", "--policy", "random"]
    command += ["--problems", "1", "--name", "x"]
    assert main(command) == 0
    assert main(command) == 0
    assert "Already finished" in capsys.readouterr().out
    assert not any("no file holds" in path.read_text() for path in Path("results/x").iterdir() if path.is_file())

    monkeypatch.setenv("MODE", "other")
    assert main(command) == 2
    assert "$MODE" in capsys.readouterr().err
    monkeypatch.setenv("MODE", "a value that no file holds")
    Path("score.py").write_text("SCORE = 1.0")
    assert main(command) == 2
    assert "score.py was different" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    assert read_json(Path("results/x/eval.json"))["rows"][0]["return"] == 1


def test_programs_in_two_folders_have_two_data_folders(tmp_path: Path) -> None:
    folders = {EnvSetup(f"program:bash {name}/run.sh", tmp_path).env_folder for name in "ab"}
    assert len(folders) == 2


def test_requests_go_to_us_or_nowhere(play: Play) -> None:
    """Clients of other kinds get an address that refuses."""
    code = """
    import urllib.error
    assert os.environ["OPENAI_API_BASE"] == os.environ["OPENAI_BASE_URL"] == URL + "/v1"
    ask([{"role": "user", "content": "Hi"}])
    refused = 0
    for name, path in (("AZURE_OPENAI_ENDPOINT", "/openai/deployments/m/chat/completions"),
                       ("ANTHROPIC_BASE_URL", "/v1/messages")):
        assert os.environ[name].startswith(URL)
        try:
            urllib.request.urlopen(urllib.request.Request(os.environ[name] + path, b"{}"))
        except urllib.error.HTTPError as error:
            refused += error.code == 404 and b"served are POST" in error.read()
    print(refused / 2)
    """
    (episode,) = play(code, Plays(WORDS))
    assert (episode.reason, episode.total_return) == ("", 1)


def test_a_tools_name_may_hold_a_colon_and_a_limit_of_0_is_none(play: Play) -> None:
    tool = '{"type": "function", "function": {"name": "box:look", "parameters": {"type": "object", "properties": {}}}}'
    code = f"""
    tool = {tool}
    message = ask([{{"role": "user", "content": "Hi"}}], tools=[tool], max_tokens=0)
    print(float(message["tool_calls"][0]["function"]["name"] == "box:look"))
    """
    (episode,) = play(code, Plays(ToolUse("box:look {}", (ToolCall("box:look", {}),))))
    assert (episode.reason, episode.total_return) == ("", 1)
    assert "overridden" not in episode.figures


def test_what_cannot_be_known_of_a_program_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(HELPERS + 'ask([{"role": "user", "content": "?"}])\nprint(1)')
    Path("run.sh").write_text(f"#!/bin/sh\nexec {sys.executable} agent.py\n")
    Path("run.sh").chmod(0o755)
    settings = {"env": "program:./run.sh", "policy": ["random"]}
    steps = [{"name": name, "stage": "evaluate", "problems": count} for count, name in enumerate("ab", 1)]
    write_json(Path("two.yaml"), {"description": "", "defaults": settings, "steps": steps})
    for _ in range(2):  # also where the results are those of before
        assert main(["run", "two.yaml"]) == 0
        assert capsys.readouterr().out.count("--input FILE") == 1
