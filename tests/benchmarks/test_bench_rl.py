"""`bench rl` measures what an env's policy does: choosing, or writing; the floor of writing is the model's
bare passes.
"""

from __future__ import annotations

from benchmarks import rl as bench_rl
from reflectkit.console import Quiet
from reflectkit.env import StepResult
from reflectkit.envs.corridor import Corridor
from reflectkit.rollouts.wrappers import Checked
from reflectkit.types import Message, Observation, Task


class Echo:
    """Free text: say the word. One step."""

    name = "echo"
    levels = ("all",)

    def reset(self, task: Task, seed: int) -> Observation:
        self._word = task.data["word"]
        self._seen = Observation((Message("user", f"Say {self._word}."),))
        return self._seen

    def step(self, action: int | str) -> StepResult:
        return StepResult(self._seen, float(action == self._word), True, info={"success": action == self._word})


def test_an_env_of_free_text_is_measured_by_what_is_written_in_it() -> None:
    tasks = [Task(word, "echo", "all", word, {"word": word}) for word in ("abba", "bab")]
    with Quiet().bar("echo", 2) as bar:
        figures = bench_rl.measure("tiny", tasks, Echo, 6, 1, 0, bar)
    assert all(value > 0 for value in figures.values())
    assert "decoding" in figures
    assert "choosing_to_one_forward" not in figures  # nothing was chosen
    # equal prompts with different draws are read again, as texts are sampled; the floor counts the same tokens
    assert figures["rollout_tokens_per_episode"] == figures["bare_forward_tokens_per_episode"]
    assert figures["update_tokens_per_episode"] == figures["bare_backward_tokens_per_episode"]
    assert figures["reflecting_rollout_tokens_per_episode"] > figures["rollout_tokens_per_episode"]


def test_choices_are_counted_once_per_prompt_on_both_sides_and_long_prompts_get_a_longer_context() -> None:
    class Long(Corridor):
        def _text(self) -> str:
            return " ".join(f"{number:04}" for number in range(600)) + super()._text()

    tasks = Long.taskset.tasks(Long.levels[-1])[:2]
    player = bench_rl.player("tiny", tasks, Long, 0)
    assert player.context > 1024
    with Quiet().bar("corridor", 2) as bar:
        figures = bench_rl.measure("tiny", tasks, lambda: Checked(Corridor(), 25), 2, 1, 0, bar)
    assert figures["rollout_tokens_per_episode"] == figures["bare_forward_tokens_per_episode"] > 0
