"""filter-repo: copy repositories with only the files that questions can be asked about. A table
shows what was dropped and why.

Keeps code, data, text and shell files with plain names and readable, mostly ASCII content. A
repository is a folder, a .zip or a .tar.gz. Links are never followed, and no file can escape from
an archive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from reflectkit.commands import Traits
from reflectkit.config import Config, Rule, option
from reflectkit.console import Progress, Report, Table
from reflectkit.envs.auto_explore.filtering import (
    Filtered,
    filter_repository,
    name_fault,
    readable,
    repositories,
    repository_name,
)
from reflectkit.envs.setup import EnvSetup, check_explores
from reflectkit.errors import DataError
from reflectkit.files import REPOSITORIES, included_repositories
from reflectkit.runs.run import RunConfig, open_run, write_permission

EXAMPLES = (
    "reflectkit filter-repo --repo-dir data/auto_explore/repos",
    "reflectkit filter-repo --repo-dir ~/projects --max-file-mb 1",
)
MINOR = ("seed",)  # nothing is random
TRAITS = Traits(writes_data=True)


class FilterRepoConfig(Config):
    """Settings of filter-repo."""

    env: str = option("auto_explore", help="The environment that explores repositories.")
    repo_dir: Path = option(
        REPOSITORIES,
        help=(
            "Folder of the repositories: folders, .zip, .tar.gz. The included ones where the"
            " default is missing."
        ),
    )
    max_file_mb: float = option(5.0, help="Files larger than this are dropped (MiB).", gt=0)
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup(self.env, self.run.data_dir)

    @override
    def contradictions(self) -> Iterator[Rule]:
        check_explores("filter-repo", self.env)
        yield from ()


CONFIG = FilterRepoConfig


def run(config: FilterRepoConfig, progress: Progress) -> Report:
    """Write `repos_filtered/<name>/` for each repository. Raises DataError if none is left."""
    # 1. Where the repositories are
    source, target = config.repo_dir, config.setup.repos_folder
    if source == REPOSITORIES and not source.is_dir():
        source = included_repositories()
    paths = repositories(source)
    _refuse_overlap(config.repo_dir, source, target)
    write_permission(target)
    with open_run("filter-repo", config, list(filter(readable, paths))) as current:
        if current.done:
            return current.done

        # 2. The copies
        results = _filter_all(paths, target, int(config.max_file_mb * 2**20), progress)
        left_out = {result.name: result.why_not for result in results if result.why_not}
        for name, why_not in left_out.items():
            progress.news(f"{name}: left out, {why_not}")
        copies = [result for result in results if not result.why_not]
        if not copies:
            name, why_not = next(iter(left_out.items()))
            raise DataError(config.repo_dir, f"no repositories are left; e.g. {name}: {why_not}")
        _warn(copies, target, progress)

        # 3. The tables, and the report
        current.tables += [
            _repository_table(results, target),
            _reason_table(results),
        ]
        return current.finish(_figures(results), [target / result.name for result in copies])


def _refuse_overlap(repo_dir: Path, source: Path, target: Path) -> None:
    """Raises DataError if `source` contains `target` or is in it: copies must not become originals.

    repo_dir: the folder as it was given, for the error.
    """
    originals, copies = source.resolve(), target.resolve()
    if originals.is_relative_to(copies) or copies.is_relative_to(originals):
        place = f"contains, or is in, {target}, where the filtered copies go"
        raise DataError(repo_dir, f"{place}; give the folder of the originals")


def _filter_all(
    paths: Sequence[Path],
    target: Path,
    most_bytes: int,
    progress: Progress,
) -> list[Filtered]:
    """Copy each of the repositories `paths` into a folder of `target`. most_bytes: of a file."""
    results: list[Filtered] = []
    names_of_copies: set[str] = set()
    with progress.bar("Filtering repositories", len(paths)) as bar:
        for path in paths:
            # Two repositories of one name would be one folder
            name = repository_name(path)
            fault = name_fault(name, is_folder=True)
            if fault:
                result = Filtered(name, why_not=fault)
            elif name in names_of_copies:
                result = Filtered(path.name, why_not=f"another repository is called {name}")
            else:
                result = filter_repository(path, target / name, most_bytes)
            if not result.why_not:
                names_of_copies.add(result.name)
            results.append(result)
            bar.advance()
    return results


def _warn(copies: Sequence[Filtered], target: Path, progress: Progress) -> None:
    """Say which folders of an earlier run stay, and which of the `copies` have lost all code."""
    # 1. Folders of an earlier run
    names = {result.name for result in copies}
    earlier = sorted(str(path) for path in target.glob("[!.]*/") if path.name not in names)
    if earlier:
        folders = ", ".join(earlier)
        progress.news(
            f"from an earlier run, and questions will be asked about it: {folders}; delete what is"
            " not wanted"
        )

    # 2. Copies without code
    for result in copies:
        if result.code_drop and not result.code_files:
            progress.news(
                f"warning: {result.name}: none of its code was kept, e.g. not {result.code_drop}"
            )


def _repository_table(results: Sequence[Filtered], target: Path) -> Table:
    """What became of each repository."""
    rows = []
    for result in results:
        row = (
            result.name,
            str(result.files),
            str(result.counts_by_reason.total()),
            f"{result.bytes / 1024:.1f}",
            f"{result.share:.0%}",
            result.why_not or result.main_reason,
        )
        rows.append(row)
    headings = ("repository", "kept", "dropped", "KiB", "share of text", "not kept because")
    return Table(f"Repositories in {target}", headings, tuple(rows))


def _counts_by_reason(results: Sequence[Filtered]) -> Counter[str]:
    """Reason → number of files or folders that were dropped for it."""
    return sum((result.counts_by_reason for result in results), Counter[str]())


def _reason_table(results: Sequence[Filtered]) -> Table:
    """Why files and folders were dropped, each with the first example."""
    examples: dict[str, str] = {}
    for result in reversed(results):
        examples |= result.examples
    counts = _counts_by_reason(results)
    rows = [(reason, str(count), examples[reason]) for reason, count in counts.most_common()]
    return Table("Dropped", ("reason", "files or folders", "e.g."), tuple(rows))


def _figures(results: Sequence[Filtered]) -> dict[str, Any]:
    """The figures of all copies, and of each."""
    copies = [result for result in results if not result.why_not]
    by_repository = {}
    for result in copies:
        by_repository[result.name] = {
            "kept": result.files,
            "bytes": result.bytes,
            "share": result.share,
            "dropped_bytes": dict(sorted(result.bytes_by_reason.items())),
            "dropped": dict(sorted(result.counts_by_reason.items())),
            "first": dict(sorted(result.examples.items())),
        }
    return {
        "repositories": len(copies),
        "kept": sum(result.files for result in copies),
        "dropped": dict(sorted(_counts_by_reason(results).items())),
        "left_out": {result.name: result.why_not for result in results if result.why_not},
        "by_repository": by_repository,
    }
