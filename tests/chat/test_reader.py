"""The chat reader of env memory against a real server: answers, its journal, and what happens when it is down."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from reflectkit.chat.endpoints import Endpoint
from reflectkit.chat.env_models import ChatJudge, ChatReader
from reflectkit.cli.main import main
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.env import Claim, Query
from reflectkit.envs.memory.env import Memory
from reflectkit.envs.memory.generate import conversation
from reflectkit.errors import EnvironmentFailure
from reflectkit.eventloop import run_sync
from reflectkit.jsonl import read_json, write_json
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.types import Decision, Status, ToolUse
from tests.server import serve


class Nothing:
    """Keeps nothing."""

    async def decide(self, observation: Any, context: Any) -> Decision:
        return Decision(ToolUse("none"))


def test_notes_and_question_are_asked_once_for_all(tmp_path: Path) -> None:
    prompts: list[str] = []

    def answer(body: dict[str, Any]) -> str:
        prompts.append(body["messages"][-1]["content"])
        return "Rome" if "Rome" in prompts[-1] else "unknown"

    with serve(answer) as server:
        for _ in range(2):
            reader = ChatReader(Endpoint("local", "m", server.url), tmp_path / "journal.jsonl")
            asked = [Query("Where is Anna?"), Query("Where is Ben?", "Labels are numbers.", 300)]
            answers = run_sync(reader.answer(asked, [["Anna is in Rome"], []]))
            assert answers == ["Rome", "unknown"]
            reader.close()
    (ben,) = (body for body in server.requests if "Ben" in body["messages"][-1]["content"])
    assert ben["messages"][0]["content"].startswith("Labels are numbers. ")
    assert ben["max_tokens"] == 300
    assert sorted(prompts) == [
        "Notes:\n(none)\n\nQuestion: Where is Ben?",
        "Notes:\n- Anna is in Rome\n\nQuestion: Where is Anna?",
    ]


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


def test_an_evaluation_that_is_all_aborted_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
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
