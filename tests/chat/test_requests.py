"""What chat models are asked in every registered env: goal, rules and the episode so far; and what local
models read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectkit.agents.scripted import Oracle
from reflectkit.chat.client import Request
from reflectkit.chat.config import ChatConfig, Endpoint
from reflectkit.chat.templates import (
    RIGHT,
    UnreadableError,
    named,
    parse_comment,
    parse_reply,
    playing_request,
)
from reflectkit.cli.main import main
from reflectkit.console import Quiet
from reflectkit.data.problems import Record, record_to_json
from reflectkit.env import Context
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.setup import EnvSetup
from reflectkit.evals.estimate import PlannedCalls, estimate
from reflectkit.jsonl import read_json, read_jsonl, write_json
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.text import count_tokens
from reflectkit.types import Decision, Message, Observation, ToolCall, ToolUse
from tests.envs.test_contract import listed, make, repos
from tests.server import Server, completion, serve

TOLD = ("corridor", "auto_explore", "memory", "support")  # the others are asked about as one of these
LEVELS = {"corridor": "long", "auto_explore": "1", "memory": "short", "support": "one"}


def folder_of(name: str) -> str:
    return f"data/{name}/tasks_filtered" if name == "auto_explore" else f"data/{name}"


@pytest.fixture(params=TOLD)
def env(request: pytest.FixtureRequest) -> str:
    """An env's name, in a folder with two of its problems as data.json and test.json."""
    name: str = request.param
    tasks = [task for task in listed(name, LEVELS[name]) if name != "corridor" or task.data["start"] < 4][:2]
    if name == "auto_explore":
        known = {"answer": "See there.", "optimal_path": [], "model": "m", "n_level": 1}
        tasks = [replace(task, data=task.data | known) for task in tasks]
    for file in ("data.json", "test.json"):
        write_json(Path(folder_of(name)) / file, [record_to_json(Record(task, ())) for task in tasks])
    return name


def worlds(name: str) -> list[str]:
    """Flags that say where an env's worlds are."""
    return ["--repos-dir", str(repos())] if name == "auto_explore" else []


TEACHER = ("--demonstrations", "2", "--teacher", "local:t", "--negatives", "0")


def command_of(stage: str, env: str, server: Server, *more: str) -> list[str]:
    return [stage, "--env", env, "--level", LEVELS[env], *worlds(env), "--base-url", server.url, *more]


def answers(body: dict[str, Any]) -> str:
    """Goes by the first or second action by turns, calls nothing, and comments."""
    asked = body["messages"][-1]["content"]
    if "Choice:" in asked:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return f"Analysis: this is thought number {turn}.\nChoice: {turn % 2}"
    if "your reply to the user" in asked:
        return "Which order is it?"
    return "none" if "tool calls" in asked else "This is what matters."


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(answers) as running:
        yield running


def the_rules_are_in(body: dict[str, Any]) -> None:
    system, *chat = body["messages"]
    assert system["role"] == "system"
    for heading in ("Goal: ", "\nActions: ", "\nEnd: "):
        assert heading in system["content"]
    assert [message["role"] for message in chat] == ["user", "assistant"] * (len(chat) // 2) + ["user"]
    assert sum(message["content"].count("Answer ") for message in body["messages"]) == 1, (
        "the form is asked for in one place"
    )
    assert "Answer " in chat[-1]["content"]


def the_history_is_in(server: Server, env: str) -> None:
    """The longest chat begins with the state that an episode began with, less the asking; a conversation holds its
    own.
    """
    if env == "support":
        assert max(body["messages"][-1]["content"].count("\nUser: ") for body in server.requests) >= 2
        return
    _, first, answer, *_ = max((body["messages"] for body in server.requests), key=len)
    asked = [body["messages"][1]["content"] for body in server.requests if len(body["messages"]) == 2]
    assert any(content.startswith(first["content"] + "\n\n") for content in asked)
    assert answer["role"] == "assistant"


@pytest.mark.parametrize(("env", "history"), [("support", "4000")], indirect=["env"])
def test_evaluate_costs_no_more_than_its_dry_run_says(
    env: str, history: str, server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer of twice the usual length, and every tenth of no use the first time."""
    monkeypatch.setenv("COLUMNS", "200")
    asked: Counter[str] = Counter()
    tokens: list[int] = []
    long = " ".join(["abcdefghijklm"] * 56)  # of three tokens each, by our count; 90 are usual

    def respond(body: dict[str, Any]) -> dict[str, Any]:
        key = json.dumps(body["messages"])
        asked[key] += 1
        read = sum(count_tokens(message["content"]) + 4 for message in body["messages"])
        tokens.append(read + 180)
        newest = body["messages"][-1]["content"]
        text = long
        if "Choice:" in newest:
            choices = re.findall(r"^ (\d+) ", newest, re.MULTILINE)
            text = f"Analysis: {long}\nChoice: {choices[len(tokens) // 3 % len(choices)]}"
        elif "tool calls" in newest:
            text = "none"
        elif "your reply to the user" in newest:
            text = long
        useless = len(tokens) % 10 == 1 and asked[key] == 1
        usage = {"prompt_tokens": read, "completion_tokens": 180}
        return completion(text, "length" if useless else "stop") | {"usage": usage}

    server.respond = respond
    command = command_of("evaluate", env, server, "--horizon", "9", "--history-tokens", history)
    command += ["--price-in", "1000000", "--price-out", "1000000", "--policy", "local:a+local:b"]
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "local:a" in line)
    assert main(command) == 0
    assert sum(tokens) <= float(row.split("│")[6])


@pytest.mark.parametrize(("horizon", "more"), [(40, 4), (6, 2)])
def test_a_dry_run_says_what_the_cost_is_likely_below(horizon: int, more: int) -> None:
    """Four steps, each of 9 tokens read, 4 of them for the message, and 7 written; a token costs a dollar."""
    task = next(task for task in Corridor.taskset.tasks("long") if task.data["start"] == 2)
    request = Request("a state", (Message("user", "one two three four five"),), 100)
    endpoint = Endpoint("local", "t")
    part = PlannedCalls("t", "long", [task], 1, [endpoint], lambda *_: [request], 7, Oracle(), has_real_length=True)
    chat = ChatConfig(price_in=1e6, price_out=1e6)
    figures = estimate("evaluate", EnvSetup("corridor", Path(), horizon=horizon), chat, [part], Quiet(), 0).figures
    assert (figures["calls"], figures["usd"]) == (4, 4 * (9 + 7))
    assert figures["likely_usd"] == pytest.approx(1.1 * (4 + more) * (9 + 2 * 7))


def test_an_oracle_acts_and_a_chat_teacher_comments(
    env: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The published recipe, in every env: only the request knows the right action; a mistake is told as one."""
    command = command_of("gen-trajectory", env, server, *TEACHER, "--noise", "0.3", "--actor", "oracle")
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "local:t" in line)
    foreseen = int(row.split("│")[3])
    assert main(command) == 0
    made = len(server.requests)
    assert made / 3 < foreseen < 3 * made
    for body in server.requests:
        the_rules_are_in(body)
        secret = RIGHT.partition("{action}")[0]
        assert [secret in message["content"] for message in body["messages"]].index(True) == len(body["messages"]) - 1
    the_history_is_in(server, env)
    records = read_json(Path(folder_of(env)) / "data_reflection_negative.json")
    walks = [item["trajectory"] for record in records for item in record["trajectories"]]
    steps = [step for walk in walks for step in walk]
    assert {step["reflection"] for step in steps} == {"This is what matters."}
    assert {item["model_name"] for record in records for item in record["trajectories"]} == {"t"}
    mistakes = sum(step["note"] == "mistake" for walk in walks for step in walk[:-1])
    told = sum("The last action was a mistake. Say why" in body["messages"][-1]["content"] for body in server.requests)
    assert mistakes == told
    assert mistakes > 0 or env == "memory"
    assert main([*command, "--force"]) == 0
    assert len(server.requests) == made, "the journal answers the same command"


def walk(steps: int, **made: Any) -> tuple[Observation, Context]:
    """The state after `steps` steps to the left in a corridor, and the turns so far with decisions made so."""

    class Left:
        async def decide(self, observation: Any, context: Any) -> Decision:
            states.append((observation, context))
            return Decision(0, "To the left.", **made)

    states: list[tuple[Observation, Context]] = []
    rollout([Episode(Corridor.taskset.tasks("long")[3], 0)], lambda: make("corridor", 40), Left())
    return states[steps]


def test_a_long_history_loses_its_middle_and_never_its_first_turn() -> None:
    """A turn of the corridor is about 30 tokens; of 30 turns 200 tokens hold the first and the newest few."""
    observation, context = walk(30, answer="Analysis: go left.\nChoice: 0")
    whole = playing_request(observation, context, history_tokens=100_000).messages
    assert len(whole) == 2 + 2 * 30
    for budget in (200, 0):
        system, first, answer, *rest = playing_request(observation, context, history_tokens=budget).messages
        assert (system, first, answer) == whole[:3]
        gap, _, seen = rest[0].content.partition("\n\n")
        left_out = 30 - 1 - (len(rest) - 1) // 2
        assert gap == f"({left_out} turns left out here)"
        assert (seen, *rest[1:]) == (whole[-len(rest)].content, *whole[1 - len(rest) :]) if budget else len(rest) == 1
        assert 0 < left_out <= 29
    short = playing_request(observation, context, history_tokens=200)
    assert short.prompt_tokens < playing_request(observation, context, history_tokens=400).prompt_tokens < 2_000


MAP = Observation((Message("user", "a map"),), ("south", "pickup", "cat a.py", "cd .."))
CALL = ToolCall("memory_update", {"memory_type": "core_memory", "new_content": "x"})


@pytest.mark.parametrize(
    ("comment", "action", "name"),
    [
        ("The southern stand is near.", 0, ""),
        ("Now: pickup!", 1, "pickup"),
        ("Open it: go to shelf 1 first.", "go to shelf 1", "go to shelf 1"),
        ("Do memory_update now.", ToolUse("", (CALL,)), "memory_update"),
    ],
)
def test_a_comment_that_names_the_right_action_is_refused(comment: str, action: Any, name: str) -> None:
    assert named(comment, MAP, action) == name
    if name:
        with pytest.raises(ValueError, match="names the right action"):
            parse_comment(comment, MAP, action)
    else:
        assert parse_comment(f"**Comment:** {comment}", MAP, action) == comment


def test_a_teacher_that_gives_the_action_away_is_asked_again() -> None:
    """Each second answer names it; a teacher that never stops doing so has its episodes set aside."""
    asked: dict[str, int] = {}

    def answer(body: dict[str, Any]) -> str:
        text = json.dumps(body["messages"])
        asked[text] = asked.get(text, 0) + 1
        return "Go right." if asked[text] == 1 else "The goal is not reached yet."

    command = ["gen-trajectory", "--env", "corridor", "--actor", "oracle", "--teacher", "local:t", "--noise", "0"]
    with serve(answer) as server:
        assert main([*command, "--base-url", server.url]) == 0
    records = read_json(Path("data/corridor/data_reflection_negative.json"))
    steps = [step for record in records for item in record["trajectories"] for step in item["trajectory"]]
    assert {step["reflection"] for step in steps} == {"The goal is not reached yet."}
    assert {step["cmd"] for step in steps} == {"right"}
    assert set(asked.values()) == {2}
    with serve(lambda body: "Go right.") as server:
        assert main([*command, "--base-url", server.url, "--seed", "1", "--data-dir", "other"]) == 2
    rejected = [row for _, row in read_jsonl(Path("other/corridor/rejected.jsonl"))]
    assert len(rejected) == 6
    assert all("names the right action: 'right'" in row["reason"] for row in rejected)


MOVES = ("south", "north", "drop off", "cd ..", "go", "go south")


@pytest.mark.parametrize(
    ("answer", "analysis", "index"),
    [
        ("Analysis: go.\nChoice: 0 (move south)", "go.", 0),
        ("**Analysis:** go.\n\n**Choice:** `1`", "go.", 1),
        ("Analysis: The best choice - south - is blocked.\nChoice: 1", "The best choice - south - is blocked.", 1),
        ("<think>Analysis: no. Choice: 1</think>\nAnalysis: yes.\nChoice: 0", "yes.", 0),
        ("south it is.\n</think>\n\n0) south", "", 0),
        ("[1] north", "", 1),
        ("South.", "", 0),
        ("Choice: north (1)", "", 1),
        ("Choice: **2. Drop off**", "", 2),
        ("Choice: 3 (cd ..)", "", 3),
        ("Choice: go south", "", 5),
        ("I see.\n\n0", "", 0),
        ('```json\n{"analysis": "go", "choice": "North"}\n```', "go", 1),
        ('{"Analysis": "go", "Choice": 0}', "go", 0),
    ],
)
def test_an_unambiguous_answer_is_read(answer: str, analysis: str, index: int) -> None:
    assert parse_reply(answer, MOVES, analysed=False) == (analysis, index)


@pytest.mark.parametrize(
    "answer",
    [
        "Choice: 0 (north)",
        "Choice: 0 or 1",
        "Choice: north (0)",
        "Choice: 4 (go south)",
        "Choice: 0\nChoice: 1",
        "Choice: -1",
        "Choice: 0.5",
        "0) south\n1) north",
        "1. I look at the map.\n2. I think.",
        "I would rather not.",
    ],
)
def test_what_may_mean_several_actions_is_not_read(answer: str) -> None:
    with pytest.raises(UnreadableError):
        parse_reply(answer, MOVES, analysed=False)


@pytest.mark.parametrize("answer", ["Choice: 6", "Choice: fly", '{"choice": 9}'])
def test_an_action_that_is_not_offered_is_illegal(answer: str) -> None:
    with pytest.raises(ValueError, match="none of the 6 actions") as caught:
        parse_reply(answer, MOVES, analysed=False)
    assert not isinstance(caught.value, UnreadableError)


def test_a_label_goes_before_a_choice_that_is_a_number() -> None:
    assert [parse_reply(f"Choice: {said}", ("1", "2", "3"), analysed=False)[1] for said in "1023"] == [1, 0, 2, 2]


def test_a_teachers_analysis_is_needed_and_short() -> None:
    for answer in ("Choice: 0", f"Analysis: {'so ' * 121}\nChoice: 0"):
        with pytest.raises(UnreadableError):
            parse_reply(answer, MOVES)
