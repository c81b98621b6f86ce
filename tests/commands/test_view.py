"""view: what comes from models is inert in the page, a broken line is named, and conversations are stored once."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from reflectkit.agents.scripted import Demonstrator
from reflectkit.commands import view
from reflectkit.console import Quiet
from reflectkit.data.episodes import episode_to_json
from reflectkit.envs.support.env import Support
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.rollouts.wrappers import Checked
from reflectkit.tools import tools_text
from reflectkit.types import Status, Trajectory
from tests.episodes import HOSTILE, episode, write


class Tags(HTMLParser):
    """The tags of a page, and the text inside scripts and styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self.here = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.here = f"{tag} {dict(attrs).get('id') or ''}".strip()

    def handle_data(self, data: str) -> None:
        if self.here.startswith(("script", "style")):
            self.inside[self.here] = self.inside.get(self.here, "") + data

    def handle_endtag(self, tag: str) -> None:
        self.here = ""


def parse(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def unpacked(page: str, name: str) -> Any:
    found = re.search(rf'<script type="text/plain" id="{name}">([A-Za-z0-9+/=]*)</script>', page)
    assert found
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def make(*files: Path, quiet: Quiet, **settings: Any) -> Path:
    report = view.run(view.ViewConfig.from_flat(paths=files, **settings), quiet)
    return report.outputs[0]


def test_hostile_text_never_stands_in_the_markup(tmp_path: Path, quiet: Quiet) -> None:
    """The page with hostile episodes has the same markup as the page with a tame one, but for what the packed data
    says.
    """
    folder = tmp_path / "<img src=x onerror=alert(1)>" / "run"
    hostile = make(write(folder, [episode(text) for text in HOSTILE]), quiet=quiet).read_text(encoding="utf-8")
    tame = make(write(tmp_path / "tame", [episode("hello")]), quiet=quiet).read_text(encoding="utf-8")
    packed = re.compile(r'(<script type="text/plain" id="[\w-]+">)[A-Za-z0-9+/=]*(</script>)')
    assert packed.sub(r"\1\2", hostile) == packed.sub(r"\1\2", tame)
    seen = unpacked(hostile, "block-0")["texts"]
    assert all(text in seen for text in HOSTILE)


def test_policy_allows_our_script_and_style_alone(tmp_path: Path, quiet: Quiet) -> None:
    page = make(write(tmp_path, [episode("hello")]), quiet=quiet).read_text(encoding="utf-8")
    found = parse(page)
    policies = [attributes["content"] for tag, attributes in found.tags if attributes.get("http-equiv")]
    policy = dict(part.strip().split(" ", 1) for part in (policies[0] or "").split(";"))

    def allowed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == allowed(found.inside["script"])
    assert policy["style-src"] == allowed(found.inside["style"])
    assert not [1 for _, attributes in found.tags if attributes.keys() & {"src", "href", "style", "onclick"} - {"href"}]
    assert [attributes["href"] for _, attributes in found.tags if "href" in attributes] == ["#detail"]
    outside = re.sub(r'<script type="text/plain".*?</script>', "", page, flags=re.DOTALL)
    assert not re.search(
        r"https?:|//\w+\.|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", outside
    )
    script = found.inside["script"]
    assert "</script" not in script
    assert "<!--" not in script


def test_page_holds_what_was_played(tmp_path: Path, quiet: Quiet) -> None:
    folder = tmp_path / "16_evaluate"
    file = write(
        folder, [episode("one"), episode("two", success=False, status="truncated"), episode("three", status="aborted")]
    )
    (folder / "config.json").write_text('{"settings": {"env": "taxi", "temperature": 0.5}}')
    (folder / "eval.json").write_text('{"rows": [{"name": "SFT", "success": 0.5, "low": 0.25}]}')
    page = make(folder, quiet=quiet).read_text(encoding="utf-8")
    index, block = unpacked(page, "index"), unpacked(page, "block-0")
    assert [(run["name"], run["settings"], run["rows"]) for run in index["runs"]] == [
        ("16_evaluate", {"env": "taxi", "temperature": 0.5}, [{"name": "SFT", "success": 0.5, "low": 0.25}])
    ]
    assert [index["texts"][at] for at in index["columns"]["outcome"]] == ["success", "truncated", "aborted"]
    facts, turns = block["episodes"][0]
    told = dict(zip(index["episode_fields"], facts, strict=True))
    assert block["texts"][told["seed"]] == "3719286943977263176"  # more than JavaScript counts to, so it is text
    turn = dict(zip(index["turn_fields"], turns[0], strict=True))
    assert json.loads(block["texts"][turn["probabilities"]]) == [0.7, 0.3]
    assert (turn["reward"], turn["value"], turn["advantage"]) == (-0.05, 0.5, 0.25)
    assert file.with_name("view.html").read_bytes() == make(folder, quiet=quiet).read_bytes()


def test_inspect_log(tmp_path: Path, quiet: Quiet) -> None:
    aborted = episode("d", status="aborted", success=False, name="other")
    write(
        tmp_path / "run",
        [episode("a"), episode("a", success=False), episode("b\ud800"), episode("c", name="other"), aborted],
    )
    made = view.run(view.ViewConfig.from_flat(paths=(tmp_path / "run",), inspect=True), quiet).outputs
    assert len(made) == 2
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\+00-00_taxi-full_\w{22}\.json", path.name) for path in made
    )
    log = json.loads(made[0].read_text(encoding="utf-8"))
    assert [(sample["id"], sample["epoch"]) for sample in log["samples"]] == [("a", 1), ("a", 2), ("b\ufffd", 1)]
    assert log["eval"]["config"]["epochs"] == 2
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == pytest.approx(2 / 3)
    other = json.loads(made[1].read_text(encoding="utf-8"))
    assert other["results"]["scores"][0]["metrics"]["mean"]["value"] == 1.0  # an aborted episode counts for nothing
    assert other["samples"][1]["error"]["message"] == "d"
    user, answer = log["samples"][0]["messages"]
    assert (user["role"], user["content"]) == ("user", "a")
    assert [part.get("reasoning", part.get("text")) for part in answer["content"]] == ["a", "a"]
    assert answer["metadata"]["probabilities"] == [0.7, 0.3]


def played(agent: Any, horizon: int) -> Trajectory:
    task = Support.taskset.example("one", 3)
    (trajectory,) = rollout([Episode(task, 5)], lambda: Checked(Support(horizon=horizon), horizon), agent)
    return trajectory


def test_what_was_seen_can_be_put_together_again() -> None:
    trajectory = played(Demonstrator(0.3), 40)
    assert trajectory.status is Status.COMPLETED
    row = episode_to_json("x", trajectory)
    read: list[tuple[str, str, str]] = []
    for turn, line in zip(trajectory.turns, row["turns"], strict=True):
        read += [(one["role"], one["content"], one.get("name", "")) for one in line["messages"]]
        assert read == [(one.role, one.content, one.name) for one in turn.observation.messages]
        read.append(("assistant", line["said"], ""))
        assert "anew" not in line
    assert trajectory.final is not None
    ending = [(one["role"], one["content"], one.get("name", "")) for one in row["ending"]]
    offered = [line.get("tools") for line in row["turns"]]
    assert offered == [tools_text(trajectory.turns[0].observation.tools), *[None] * (len(offered) - 1)]
    assert read + ending == [(one.role, one.content, one.name) for one in trajectory.final.messages]
    assert row["ending"][-1]["role"] == "user"  # who says goodbye
    calls = [line["calls"] for line in row["turns"] if "calls" in line]
    assert calls
    assert all(call.keys() == {"name", "arguments"} for (call,) in calls)
