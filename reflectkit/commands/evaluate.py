"""evaluate: compare several players on the same held-out problems, each with or without a reflector. Reports success
with 95 % intervals.
"""

from __future__ import annotations

import shutil
from contextlib import closing

from reflectkit.agents.players import Players
from reflectkit.commands import Traits
from reflectkit.console import Progress, Report
from reflectkit.errors import memory_explained
from reflectkit.evals.config import EvaluateConfig as EvaluateConfig
from reflectkit.runs.run import open_run

EXAMPLES = (
    "reflectkit evaluate --env taxi --policy oracle --policy random",
    'reflectkit evaluate --env taxi --policy "SFT=results/taxi-tiny/plain/checkpoint-600"'
    ' --policy "Reflect-RL=results/taxi-tiny/reflect-rl/checkpoint-36+results/taxi-tiny/reflector/checkpoint-700"',
)
TRAITS = Traits(reports=True, arms=("policy",))
CONFIG = EvaluateConfig


@memory_explained("lower --max-concurrency, or use a smaller model")
def run(config: EvaluateConfig, progress: Progress) -> Report:
    """Write `eval.json`, `eval.md` and `eval.csv` (a row per policy and level), and `episodes.jsonl`.

    Episodes are saved as they end and are not played again by a restarted run. Raises CheckpointError, DataError, and
    EnvironmentFailure if all episodes of a player were aborted, after the tables of the others are written.
    """
    from reflectkit.evals import play, report, resolve

    if config.episodes:
        return report.recompute(config, progress)

    # 1. Resolve
    tasks = resolve.resolve_tasks(config, progress)
    if config.chat.dry_run:
        from reflectkit.evals.estimate import cost_of_playing

        return cost_of_playing(config, tasks, progress)
    evaluation = resolve.resolve(config, tasks, progress)
    with open_run("evaluate", config, evaluation.inputs) as current:
        if current.done:
            return current.done
        progress.news(f"evaluate: {evaluation.summary} → {current.folder}")
        for level, level_tasks in tasks.items():
            if disturbance := config.held_out.disturbance(level, level_tasks):
                progress.news(disturbance)
        # 2. Build: each player's agent is made when its turn comes
        with closing(Players(config.players_setup)) as players:
            # 3. Play
            parts_folder = current.folder / "episodes"
            results = play.play(evaluation, players, parts_folder, progress)
            # 4. Report
            summary = report.report(evaluation, results, players, current, progress)
        shutil.rmtree(parts_folder, ignore_errors=True)
        return summary
