"""filter-repo: copy repositories with only the files that questions can be asked about. A table shows what was dropped
and why.

Keeps code, data, text and shell files with plain names and readable, mostly ASCII content. A repository is a folder, a
.zip or a .tar.gz. Links are never followed, and no file can escape from an archive.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from pydantic import field_validator

from reflectkit.commands import Traits
from reflectkit.config import Config, option
from reflectkit.console import Progress, Report, Table
from reflectkit.data.repos import Filtered, filter_repository, name_fault, readable, repositories, repository_name
from reflectkit.envs.setup import EnvSetup, explorer
from reflectkit.errors import DataError
from reflectkit.files import REPOSITORIES, repositories_in
from reflectkit.runs.folders import RunConfig, write_permission
from reflectkit.runs.run import open_run

EXAMPLES = (
    "reflectkit filter-repo --repo-dir data/auto_explore/repos",
    "reflectkit filter-repo --repo-dir ~/projects --max-file-mb 1",
)


TRAITS = Traits(writes_data=True)


class FilterRepoConfig(Config):
    """Settings of filter-repo."""

    env: str = option("auto_explore", help="The environment that explores repositories.")
    repo_dir: Path = option(
        REPOSITORIES,
        help="Folder of the repositories: folders, .zip, .tar.gz. The included ones where the default is missing.",
    )
    max_file_mb: float = option(5.0, help="Files larger than this are dropped (MiB).", gt=0)
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup(self.env, self.run.data_dir)

    @field_validator("env")
    @classmethod
    def _explores(cls, env: str) -> str:
        explorer("filter-repo", env)
        return env


def run(config: FilterRepoConfig, progress: Progress) -> Report:
    """Write `repos_filtered/<name>/` for each repository. Raises DataError if none is left."""
    source = repositories_in(config.repo_dir)
    paths = repositories(source)
    target = config.setup.repos_folder
    originals, copies = source.resolve(), target.resolve()
    if originals.is_relative_to(copies) or copies.is_relative_to(originals):
        raise DataError(
            config.repo_dir,
            f"contains, or is in, {target}, where the filtered copies go; give the folder of the originals",
        )
    write_permission(target)
    with open_run("filter-repo", config, list(filter(readable, paths))) as current:
        if current.done:
            return current.done
        links = sorted(entry.name for entry in os.scandir(source) if entry.is_symlink())
        if links:
            progress.news(f"links are not followed: {', '.join(map(ascii, links[:5]))} in {config.repo_dir} skipped")
        results: list[Filtered] = []
        with progress.bar("Filtering repositories", len(paths)) as bar:
            for path in paths:
                results.append(_filter(path, target, int(config.max_file_mb * 2**20), results))
                bar.advance()
        kept = [result for result in results if not result.why_not]
        for result in results:
            if result.why_not:
                progress.news(f"{result.name}: left out, {result.why_not}")
        if not kept:
            raise DataError(config.repo_dir, f"no repositories are left; e.g. {results[0].name}: {results[0].why_not}")
        others = sorted(set(os.listdir(target)) - {result.name for result in kept})
        if others := [name for name in others if not name.startswith(".")]:
            progress.news(f"{target} also holds {', '.join(others[:5])} from earlier runs; remove what you do not need")
        current.tables += _tables(results, target)
        figures = {
            "repositories": len(kept),
            "kept": sum(result.kept for result in kept),
            "dropped": dict(sorted(_total(results).items())),
            "left_out": {result.name: result.why_not for result in results if result.why_not},
            "by_repository": {
                result.name: {
                    "kept": result.kept,
                    "bytes": result.bytes,
                    "dropped": dict(sorted(result.dropped.items())),
                    "first": dict(sorted(result.examples.items())),
                }
                for result in kept
            },
        }
        return current.finish(figures, [target / result.name for result in kept])


def _filter(path: Path, target: Path, max_bytes: int, before: list[Filtered]) -> Filtered:
    name = repository_name(path)
    if fault := name_fault(name, is_folder=True):
        return Filtered(name, why_not=fault)
    if any(other.name == name and not other.why_not for other in before):
        return Filtered(path.name, why_not=f"another repository is called {name}")
    return filter_repository(path, target / name, max_bytes)


def _total(results: list[Filtered]) -> Counter[str]:
    return sum((result.dropped for result in results), Counter())


def _tables(results: list[Filtered], target: Path) -> list[Table]:
    rows = [
        (result.name, str(result.kept), str(sum(result.dropped.values())), f"{result.bytes / 1024:.1f}", result.why_not)
        for result in results
    ]
    total = _total(results)
    first = {reason: name for result in results for reason, name in reversed(result.examples.items())}
    reasons = tuple((reason, str(count), first.get(reason, "")) for reason, count in total.most_common())
    return [
        Table(f"Repositories in {target}", ("repository", "kept", "dropped", "KiB", "left out because"), tuple(rows)),
        Table("Dropped", ("reason", "files or folders", "e.g."), reasons),
    ]
