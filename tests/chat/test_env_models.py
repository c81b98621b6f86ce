"""Chat models that an environment asks, as its reader, judge or user, against a real server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from reflectkit.chat.config import BudgetSpentError, Endpoint
from reflectkit.chat.env_models import GREETING, ChatJudge, ChatReader, ChatUser
from reflectkit.cli.main import main
from reflectkit.data.problems import Record, record_to_json
from reflectkit.env import Claim, UserTurn
from reflectkit.envs.memory.env import Memory
from reflectkit.envs.memory.generate import conversation
from reflectkit.envs.support.shop import CUSTOMERS, shop
from reflectkit.envs.support.tasks import make_task, source_of
from reflectkit.errors import EnvironmentFailure
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import read_json, write_json
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.types import Decision, Message, Status, ToolUse
from tests.command_lines import error_of
from tests.server import serve


class Nothing:
    """Keeps nothing."""

    async def decide(self, observation: Any, context: Any) -> Decision:
        return Decision(ToolUse("none"))


def test_a_judge_says_yes_or_no_and_nothing_else_counts(tmp_path: Path) -> None:
    said = {"tea": "Yes.", "milk": "No, it does not.", "wine": "Perhaps, yes or no"}
    with serve(lambda body: said[body["messages"][-1]["content"].split("Answer: ")[1].split()[0]]) as server:
        judge = ChatJudge(Endpoint("local", "m", server.url), tmp_path / "journal.jsonl")
        claims = [Claim("Which drink?", "hot", answer) for answer in ("tea", "milk")]
        assert run_sync(judge.verdicts(claims)) == [True, False]
        with pytest.raises(EnvironmentFailure, match="the judge local:m gave no usable answer"):
            run_sync(judge.verdicts([Claim("Which drink?", "hot", "wine")]))
        judge.close()


def test_many_episodes_wait_for_their_reader_at_once(tmp_path: Path) -> None:
    """The server answers nobody until all have asked."""
    tasks = [conversation(number, 4, "short", 0) for number in range(6)]
    questions = {question["question"] for task in tasks for question in task.data["questions"]}
    everybody = threading.Barrier(len(questions), timeout=60)

    def answer(body: dict[str, Any]) -> str:
        everybody.wait()
        return "unknown"

    with serve(answer) as server:
        reader = ChatReader(Endpoint("local", "m", server.url), tmp_path / "journal.jsonl", concurrency=100)
        played = rollout([Episode(task, 0) for task in tasks], lambda: Memory(reader=reader), Nothing())
        reader.close()
    assert [trajectory.status for trajectory in played] == [Status.COMPLETED] * 6
    assert all(set(trajectory.turns[-1].info["answers"]) == {"unknown"} for trajectory in played)


def test_an_evaluation_that_is_all_aborted_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [record_to_json(Record(conversation(number, 4, "short", 0), ())) for number in range(2)]
    write_json(tmp_path / "tasks.json", records)
    down = ["--reader", "local:m", "--reader-url", "http://127.0.0.1:9"]
    common = ["evaluate", "--env", "memory", "--level", "short", "--task-file", "tasks.json", "--policy", "rag"]
    assert main([*common, *down]) == 2
    assert "every episode of rag was aborted (2)" in capsys.readouterr().err
    with serve(lambda body: "unknown") as server:  # the same command goes on
        assert main([*common, "--reader", "local:m", "--reader-url", server.url]) == 0
    (run,) = [path.parent for path in (tmp_path / "results").glob("*_evaluate/eval.json")]
    (row,) = read_json(run / "eval.json")["rows"]
    assert (row["aborted"], row["episodes"]) == (0, 2)
    assert main([*common, "--reader", "gpt-4"]) == 2


TASKS = [make_task(0, number, "one", shop(0), source_of(0, CUSTOMERS)) for number in range(6)]


def test_the_user_sees_its_own_words_as_its_own(tmp_path: Path) -> None:
    said = [Message("user", "I want my money."), Message("assistant", "Why?")]
    with serve(lambda body: "It broke.") as server:
        user = ChatUser(Endpoint("local", "m", server.url), tmp_path / "user.jsonl")
        for _ in range(2):
            assert run_sync(user.say("You are Anna.", said, 7)) == UserTurn("It broke.")
        run_sync(user.say("You are Anna.", said, 8))
        user.close()
    assert [(message["role"], message["content"]) for message in server.requests[0]["messages"][1:]] == [
        ("user", GREETING),
        ("assistant", "I want my money."),
        ("user", "Why?"),
    ]
    assert server.requests[0]["messages"][0]["content"].endswith("You are Anna.")
    assert len(server.requests) == 2, "the same turn is asked once, another seed anew"


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("Thank you. ###STOP###", UserTurn("Thank you.", over=True)),
        ("<think>My order is W12. Then ###STOP###.</think>\n\nHello.", UserTurn("Hello.")),
    ],
)
def test_the_stop_mark_ends_the_conversation_and_is_not_shown(tmp_path: Path, text: str, turn: UserTurn) -> None:
    with serve(lambda body: text) as server:
        user = ChatUser(Endpoint("local", "m", server.url), tmp_path / "user.jsonl")
        assert run_sync(user.say("", [], 0)) == turn
        user.close()


def test_processes_that_ask_at_the_same_time_share_answers_and_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    budget, spent = 0.001, 0
    with serve(lambda body: "I want to cancel.") as server:
        users = [
            ChatUser(Endpoint("openai", "gpt-4o-mini", server.url), tmp_path / "user.jsonl", budget_usd=budget)
            for _ in range(2)
        ]
        for user in users * 2:
            run_sync(user.say("You are Anna.", [], 7))
        assert len(server.requests) == 1
        assert {path.name for path in tmp_path.glob("*")} == {"user.jsonl", "user-1.jsonl"}
        for seed in range(100):
            try:
                run_sync(users[seed % 2].say("You are Anna.", [], 100 + seed))
            except BudgetSpentError:
                spent += 1
        for user in users:
            user.close()
        cost = server.answered * (100 * 0.15 + 20 * 0.60) / 1e6  # as the server bills it, in dollars a million tokens
        assert spent > 40
        assert 0.5 * budget < cost <= budget
        again = ChatUser(Endpoint("openai", "gpt-4o-mini", server.url), tmp_path / "user.jsonl", budget_usd=budget)
        answered = server.answered
        run_sync(again.say("You are Anna.", [], 101))  # from the second process
        again.close()
        assert server.answered == answered


EVALUATE = ["evaluate", "--env", "support", "--policy", "random", "--task-file", "tasks.json", "--level", "one"]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_json(tmp_path / "tasks.json", [record_to_json(Record(task, ())) for task in TASKS[:2]])
    return tmp_path


def test_evaluate_asks_a_user_by_flag_and_reports_its_cost(
    written: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with serve(lambda body: "Bye. ###STOP###" if len(body["messages"]) > 3 else "I want to cancel.") as server:
        command = [*EVALUATE, "--user", "openai:gpt-4o-mini", "--user-url", server.url]
        assert "--user-max-usd" in error_of([*command, "--user-max-usd", "0.000001"], capsys)
        assert not server.requests
        assert main(command) == 0
    (table,) = written.glob("results/*_evaluate/eval.json")
    (row,) = read_json(table)["rows"]
    assert row["episodes"] + row["aborted"] == 2
    asked = read_json(table)["asked"]["user openai:gpt-4o-mini"]
    assert asked["calls"] == len(server.requests) > 0
    assert asked["usd"] > 0
    assert f"{asked['usd']:.4f} US dollars" in " ".join(capsys.readouterr().out.split())
    assert (written / "data/support/user.jsonl").is_file()
