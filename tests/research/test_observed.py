"""Comments that are computed from what the player has seen."""

from __future__ import annotations

import random
from pathlib import Path

from research.observed import ObservedAutoExplore
from tests.explore import explore_task, write_repository


def test_a_comment_on_files_names_what_is_shown_and_not_what_answers(tmp_path: Path) -> None:
    env = ObservedAutoExplore(repos_dir=write_repository(tmp_path / "repos"))
    teacher = env.teacher()
    env.reset(explore_task("app/rules/fees.py"), 0)

    def comment_after(*commands: str) -> str:
        for command in commands:
            env.step(env.commands.index(command))
        return teacher.comment(random.Random(0))

    assert "late, fee" in comment_after()
    wrong = comment_after("cd app", "cat fees.py")
    assert "no late" in wrong
    assert "fees.py" in wrong
    right = comment_after("cd rules", "cat fees.py")
    assert 'fee in "' in right
