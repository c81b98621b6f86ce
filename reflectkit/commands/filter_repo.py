"""filter-repo: copy repositories with only the files that questions can be asked about. A table
shows what was dropped and why.

Keeps code, data, text and shell files with plain names and readable, mostly ASCII content. A
repository is a folder, a .zip or a .tar.gz. Links are never followed, and no file can escape from
an archive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

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
    # 1. Where the repositories are. Copies must not become originals
    source, target = config.repo_dir, config.setup.repos_folder
    if source == REPOSITORIES and not source.is_dir():
        source = included_repositories()
    paths = repositories(source)
    originals, copies = source.resolve(), target.resolve()
    if originals.is_relative_to(copies) or copies.is_relative_to(originals):
        raise DataError(
            config.repo_dir,
            (
                f"contains, or is in, {target}, where the filtered copies go; give the folder of"
                " the originals"
            ),
        )
    write_permission(target)
    with open_run("filter-repo", config, list(filter(readable, paths))) as current:
        if current.done:
            return current.done

        # 2. The copies
        results: list[Filtered] = []
        with progress.bar("Filtering repositories", len(paths)) as bar:
            for path in paths:
                # Two repositories of one name would be one folder
                name = repository_name(path)
                if fault := name_fault(name, is_folder=True):
                    results.append(Filtered(name, why_not=fault))
                elif any(other.name == name and not other.why_not for other in results):
                    results.append(
                        Filtered(path.name, why_not=f"another repository is called {name}")
                    )
                else:
                    results.append(
                        filter_repository(path, target / name, int(config.max_file_mb * 2**20))
                    )
                bar.advance()

        # 3. What is told
        copies_made = [result for result in results if not result.why_not]
        left_out = {result.name: result.why_not for result in results if result.why_not}
        for name, why_not in left_out.items():
            progress.news(f"{name}: left out, {why_not}")
        if not copies_made:
            name, why_not = next(iter(left_out.items()))
            raise DataError(config.repo_dir, f"no repositories are left; e.g. {name}: {why_not}")
        # Folders of an earlier run stay, and questions will be asked about them
        names = {result.name for result in copies_made}
        earlier = sorted(str(path) for path in target.glob("[!.]*/") if path.name not in names)
        if earlier:
            earlier_names = (
                f"from an earlier run, and questions will be asked about it: {', '.join(earlier)}"
            )
            progress.news(f"{earlier_names}; delete what is not wanted")
        for result in copies_made:
            if result.code_drop and not result.code_files:
                progress.news(
                    f"warning: {result.name}: none of its code was kept, e.g. not"
                    f" {result.code_drop}"
                )

        # 4. The tables
        rows = [
            (
                result.name,
                str(result.files),
                str(result.counts_by_reason.total()),
                f"{result.bytes / 1024:.1f}",
                f"{result.share:.0%}",
                result.why_not or result.main_reason,
            )
            for result in results
        ]
        heads = ("repository", "kept", "dropped", "KiB", "share of text", "not kept because")
        reasons_count = sum((result.counts_by_reason for result in results), Counter[str]())
        first = {
            reason: path for result in reversed(results) for reason, path in result.examples.items()
        }
        reasons = tuple(
            (reason, str(count), first[reason]) for reason, count in reasons_count.most_common()
        )
        current.tables += [
            Table(f"Repositories in {target}", heads, tuple(rows)),
            Table("Dropped", ("reason", "files or folders", "e.g."), reasons),
        ]
        figures = {
            "repositories": len(copies_made),
            "kept": sum(result.files for result in copies_made),
            "dropped": dict(sorted(reasons_count.items())),
            "left_out": left_out,
            "by_repository": {
                result.name: {
                    "kept": result.files,
                    "bytes": result.bytes,
                    "share": result.share,
                    "dropped_bytes": dict(sorted(result.bytes_by_reason.items())),
                    "dropped": dict(sorted(result.counts_by_reason.items())),
                    "first": dict(sorted(result.examples.items())),
                }
                for result in copies_made
            },
        }
        return current.finish(figures, [target / result.name for result in copies_made])
