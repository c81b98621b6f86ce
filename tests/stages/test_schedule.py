"""The processes of a `run`'s steps: what they inherit, and how they take Ctrl-C and a parent that is gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reflectkit.core.console import Quiet
from reflectkit.core.errors import ReflectkitError
from reflectkit.core.threads import use_threads
from reflectkit.stages.recipes.forking import stop_later
from reflectkit.stages.recipes.schedule import Job, perform

RUN = """
import sys
from reflectkit.core.console import Quiet
from reflectkit.core.errors import ReflectkitError
from reflectkit.stages import Traits
from reflectkit.stages.recipes import forking, schedule

if __name__ == "__main__":
    forking.PRELOADED = sys.argv[1]
    values = {"env": "corridor", "role": "plain", "data_dir": "data", "results_dir": "results"}
    try:
        schedule.perform([schedule.Job("plain", "sft", values, frozenset())], 1, Quiet())
    except ReflectkitError as error:
        print(error)
"""

BOTH = """
import sys
from pathlib import Path
from reflectkit.core.console import Quiet
from reflectkit.stages import Traits
from reflectkit.stages.recipes import forking, schedule

if __name__ == "__main__":
    forking.PRELOADED = sys.argv[1]
    shared = {"env": "corridor", "data_dir": Path("data"), "results_dir": Path("results"), "keep": True}
    data = schedule.Job("made", "gen-trajectory", shared | {"name": "made", "demonstrations": 2}, frozenset())
    train = schedule.Job("plot", "plot", shared | {"runs": []}, frozenset(["made"]))
    schedule.traits = lambda stage: Traits(trains=stage == "plot")
    schedule.perform([data, train], 1, Quiet())
"""

UNGUARDED = """
from reflectkit.core.console import Quiet
from reflectkit.stages.run import PipelineConfig, run

run(PipelineConfig.from_flat(recipe="recipe.yaml"), Quiet())
"""


def run_step(folder: Path, preloaded: str = "", path: Path | None = None, text: str = RUN) -> tuple[int, str, str]:
    """(exit code, output, errors) of a script elsewhere that performs a step, which has no data, with `folder` as its
    own.
    """
    script = folder / "scripts" / "script.py"
    script.parent.mkdir()
    script.write_text(text)
    paths = [str(path)] if path else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(Path(__file__).parents[2])])}
    done = subprocess.run(
        [sys.executable, str(script), preloaded],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_step_has_the_variables_and_the_folder_of_this_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spying.py").write_text(
        "import os\n"
        "from reflectkit.core.errors import ConfigError\n"
        "raise ConfigError(f'key {os.environ.get(\"SPYING\")} in {os.getcwd()}')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    use_threads(1)  # as every run does first
    values = {"env": "spying:Env", "data_dir": tmp_path, "results_dir": tmp_path}
    for value in ("one", "two"):
        monkeypatch.setenv("SPYING", value)
        (tmp_path / value).mkdir()
        monkeypatch.chdir(tmp_path / value)
        with pytest.raises(ReflectkitError, match=f"key {value} in {tmp_path / value}"):
            perform([Job("made", "gen-trajectory", values, frozenset())], 1, Quiet())


def test_modules_in_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("open('imported', 'w')")
    code, output, errors = run_step(tmp_path, "only_here")
    assert (code, errors) == (0, "")
    assert "no such file" in output
    assert not (tmp_path / "imported").exists()


def test_ctrl_c_while_libraries_are_imported_is_left_to_run(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nopen('imported', 'w')\n"
    )
    code, output, errors = run_step(tmp_path, "library", tmp_path)
    assert (code, errors) == (0, "")
    assert "no such file" in output
    assert (tmp_path / "imported").exists()


def test_data_steps_run_while_libraries_are_imported(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(
        "import time\nfrom pathlib import Path\nfor _ in range(600):\n    if Path('results/made/report.json').exists():"
        "\n        Path('imported').touch()\n        break\n    time.sleep(0.1)\n"
    )
    run_step(tmp_path, "library", tmp_path, BOTH)
    assert (tmp_path / "imported").exists(), "the step waited for the library, which waited for the step"


def test_a_library_that_cannot_be_imported_stops_only_the_steps_that_need_it(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text("raise RuntimeError('built for another CPU')")
    code, output, errors = run_step(tmp_path, "reflectkit.stages.recipes.preload", tmp_path)
    assert (code, errors) == (0, "")
    assert "no such file" in output


def test_nothing_that_looks_for_gpus_is_imported_before_the_fork(tmp_path: Path) -> None:
    """CUDA cannot be used in a fork of a process that has counted its devices, as bitsandbytes does when it is
    imported.
    """
    (tmp_path / "torch.py").write_text(
        "from types import SimpleNamespace\nversion = SimpleNamespace(cuda='13.0', hip=None)\n"
    )
    for library in ("datasets", "peft", "bitsandbytes"):
        (tmp_path / f"{library}.py").write_text("open('imported', 'w')\nraise RuntimeError\n")
    code, output, errors = run_step(tmp_path, "reflectkit.stages.recipes.preload", tmp_path)
    assert (code, errors) == (0, "")
    assert "no such file" in output
    assert not (tmp_path / "imported").exists()


def test_nothing_is_forked_for_a_run_that_was_killed_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text(
        "import os, signal\nparent = os.getppid()\nos.kill(parent, signal.SIGKILL)\nwhile os.getppid() == parent:\n   "
        " pass\nraise RuntimeError\n"
    )
    code, _, errors = run_step(tmp_path, "reflectkit.stages.recipes.preload", tmp_path)
    assert code == -signal.SIGKILL
    assert "Traceback" not in errors


def test_imports_that_nobody_waits_for_any_more_are_left_off(tmp_path: Path) -> None:
    """They went on for up to 20 s after a kill. Here they never end; the pipes are closed once the server is gone."""
    (tmp_path / "datasets.py").write_text(
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\nwhile True:\n    time.sleep(0.01)\n"
    )
    code, _, errors = run_step(tmp_path, "reflectkit.stages.recipes.preload", tmp_path)
    assert code == -signal.SIGKILL
    assert "Traceback" not in errors


def test_a_script_that_would_start_itself_again_is_told_the_guard(tmp_path: Path) -> None:
    steps = "[{name: rows, stage: gen-sft, env: corridor}]"
    (tmp_path / "recipe.yaml").write_text(f"description: one step\nsteps: {steps}\n")
    code, _, errors = run_step(tmp_path, text=UNGUARDED)
    assert code == 1
    assert (
        "ConfigError: run starts its steps in processes that import this script; call it under `if __name__" in errors
    )
    assert errors.rstrip().endswith(
        "step 'rows' ended with exit code 1; see above; run the same command again to resume"
    )


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no such signals on this system")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_process_that_is_being_started_is_registered_before_a_signal_counts(name: str) -> None:
    """As a command handles them: each raises. Without a delay, the process would never be told to end."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def start() -> None:
        with stop_later():
            os.kill(os.getpid(), number)
            registered.append(name)

    number, registered = getattr(signal, name), list[str]()
    before = signal.signal(number, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert registered
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)
