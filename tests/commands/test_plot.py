"""plot: chained runs, axes and bars; and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.commands.plot import parse_run
from reflectkit.evals.plot import read_curves
from reflectkit.jsonl import write_json, write_jsonl


def made(folder: Path, steps: range, start: Path | None = None, **more: float) -> Path:
    folder.mkdir(parents=True)
    rows = [
        {
            "step": step,
            "episodes": 8 * step,
            "success_rate": step / 10,
            "tokens": 100,
            "rollout_seconds": 2,
            "update_seconds": 1,
        }
        | more
        for step in steps
    ]
    write_jsonl(folder / "metrics.jsonl", rows)
    write_json(folder / "config.json", {"settings": {"resume_from": str(start) if start else None, "max_steps": 9}})
    return folder


def curve(path: Path, figure: str = "success_rate", **settings: Any) -> tuple[list[float], list[float]]:
    ((where, what),) = read_curves([path / "metrics.jsonl"], figure, **settings)
    return list(where), list(what)


def test_a_run_that_went_on_is_one_curve_with_what_it_went_on_from(tmp_path: Path) -> None:
    first = made(tmp_path / "1_rlft", range(1, 6))
    second = made(
        tmp_path / "2_rlft", range(4, 8), first / "checkpoint-3"
    )  # what the first did after 3 is not its past
    where, what = curve(second, against="step")
    assert where == [1, 2, 3, 4, 5, 6, 7]
    assert what == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert curve(second, against="tokens")[0] == [100 * n for n in range(1, 8)]
    assert curve(second, against="seconds")[0][-1] == 21
    assert curve(first, against="episodes")[0] == [8, 16, 24, 32, 40]


def test_pictures_are_the_same_bytes_for_the_same_data(tmp_path: Path) -> None:
    runs = [f"--runs=a={made(tmp_path / f'{n}_rlft', range(1, 6), loss=n)}" for n in (1, 2)]
    for name in ("x.svg", "y.svg"):
        assert main(["plot", *runs, "--figure=success_rate", "--figure=loss", "--out", name]) == 0
    assert (tmp_path / "x.svg").read_bytes() == (tmp_path / "y.svg").read_bytes()
    assert "<svg" in (tmp_path / "x.svg").read_text()


def test_runs_without_a_figure_are_left_out_and_other_settings_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = made(tmp_path / "one", range(1, 6)), made(tmp_path / "other", range(1, 6), kl_to_start=0.5)
    write_json(other / "config.json", {"settings": {"kl_coef": 0.1, "seed": 1}})
    runs = [f"--runs=a={one}", f"--runs=b={other}"]
    assert main(["plot", *runs, "--figure=kl_to_start", "--figure=success_rate"]) == 0
    assert "one does not have kl_to_start" in " ".join(capsys.readouterr().out.split())
    assert main(["plot", f"--runs=a={one}", f"--runs=a={other}"]) == 0
    assert "differ in --max-steps, --kl-coef," in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("name", "value"), [("high", "x"), ("success", {}), ("level", None), ("name", True)])
def test_a_damaged_evaluation_is_drawn_or_named(name: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"name": "random", "level": "long", "success": 0.5, "low": 0.4, "high": None, "figures": {}}
    folder = Path("damaged")
    folder.mkdir()
    write_json(folder / "eval.json", {"rows": [row, row | {name: value}]})
    number = name in ("high", "success")
    assert main(["plot", "--evals", "damaged"]) == (2 if number else 0)
    assert ("is not a result of evaluate" in capsys.readouterr().err) is number


def test_a_run_alone_is_named_like_its_folder(tmp_path: Path) -> None:
    odd = made(tmp_path / "lr=1e-4", range(1, 3))
    assert parse_run("results/shop/checkpoint-60") == ("shop", Path("results/shop/metrics.jsonl"))
    assert parse_run("ours=results/shop") == ("ours", Path("results/shop/metrics.jsonl"))
    assert parse_run(str(odd)) == ("lr=1e-4", odd / "metrics.jsonl")
