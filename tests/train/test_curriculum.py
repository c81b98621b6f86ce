"""The curriculum: equal shares of the updates, or on with success."""

from __future__ import annotations

from reflectkit.train.rl import Curriculum, draw
from reflectkit.types import Task


def test_curriculum_gives_equal_steps_and_every_task_its_turn() -> None:
    equal = Curriculum(3, 7)
    began = [(equal.begin(step), equal.level) for step in range(7)]
    assert [level for _, level in began] == [0, 0, 0, 1, 1, 2, 2]
    assert [new for new, _ in began] == [False, False, False, True, False, True, False]
    tasks = [Task(str(number), "e", "l", "g", {}) for number in range(10)]
    drawn = [task.id for step in range(5) for task in draw(tasks, step, 4, seed=0)]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == sorted(task.id for task in tasks)
    assert len(draw(tasks, 0, 35, seed=0)) == 35


def test_adaptive_curriculum_moves_on_when_it_is_good_enough() -> None:
    adaptive = Curriculum(3, 100, advance_at=0.6)
    levels = []
    for step, rate in enumerate([0.9, 0.9, 0.0, 0.1, 0.9, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]):
        adaptive.begin(step)
        levels.append(adaptive.level)
        adaptive.end(rate)
    # means of three: .6 passes after the third; .633 after the sixth (three of level 1); the last level is never left
    assert levels == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2]
