"""Build the distributions: `dualwrite`, and beside it what a production install does not carry.

    python .ci/distributions.py [DIRECTORY]

Each is staged as a project of its own under `build/`, from the files that git knows and from the one pyproject.toml,
and built there into an sdist and a wheel (docs/decisions/several-distributions.md). The sdist of `dualwrite` has the
whole repository: documentation, examples, tests, and the sources of the others. A checkout is not split: an install
from it, editable or not, has everything. Built by GitHub, its description links to the repository there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
STAGES: Final = ROOT / "build" / "distributions"
MAIN: Final = "dualwrite"


@dataclass(frozen=True, slots=True)
class Part:
    """A distribution beside `dualwrite`, from the table `tool.dualwrite.distributions`."""

    name: str
    folder: Path
    """Its package, relative to the repository."""
    description: str
    dependencies: list[str]
    """Requirements; `{version}` is the version of all distributions."""
    replaces: str | None
    """The extra of `dualwrite` whose requirements move into this distribution."""
    extras: list[str]
    """The extras of `dualwrite` that install this distribution."""
    entry_points: list[str]
    """The groups of entry points that move into this distribution."""
    classifiers: list[str]

    @property
    def package(self) -> str:
        """The importable name."""
        return ".".join(self.folder.parts)


def parts_of(pyproject: dict[str, Any]) -> list[Part]:
    """Return the distributions beside `dualwrite`."""
    return [
        Part(
            name,
            Path(table["folder"]),
            table["description"],
            table.get("dependencies", []),
            table.get("replaces"),
            table["extras"],
            table.get("entry-points", []),
            table.get("classifiers", []),
        )
        for name, table in pyproject["tool"]["dualwrite"]["distributions"].items()
    ]


def main_project(pyproject: dict[str, Any], parts: list[Part]) -> dict[str, Any]:
    """Return the pyproject.toml of `dualwrite` without the parts, whose extras name the parts' distributions."""
    staged: dict[str, Any] = json.loads(json.dumps(pyproject))
    project, find = staged["project"], staged["tool"]["setuptools"]["packages"]["find"]
    extras = project["optional-dependencies"]
    for part in parts:
        if part.replaces is not None:
            extras[part.replaces] = []
        for extra in part.extras:
            extras[extra] = [f"{part.name}=={project['version']}", *extras[extra]]
        for group in part.entry_points:
            del project["entry-points"][group]
    data = staged["tool"]["setuptools"]["package-data"]
    for package, patterns in data.items():
        data[package] = [each for each in patterns if not any(_is_inside(package, each, part) for part in parts)]
    find["exclude"] = [f"{part.package}*" for part in parts]
    # The manifest lists the whole repository; with it, the parts would come back as data of the package around them.
    staged["tool"]["setuptools"]["include-package-data"] = False
    return staged


def _is_inside(package: str, pattern: str, part: Part) -> bool:
    return Path(package, pattern).is_relative_to(part.folder)


def part_project(pyproject: dict[str, Any], part: Part) -> dict[str, Any]:
    """Return the pyproject.toml of a part."""
    whole = pyproject["project"]
    taken = [] if part.replaces is None else whole["optional-dependencies"][part.replaces]
    package_data = pyproject["tool"]["setuptools"]["package-data"]
    inside = "".join(f"{folder}/" for folder in part.folder.parts[1:])
    data = [name.removeprefix(inside) for name in package_data.get(part.folder.parts[0], []) if name.startswith(inside)]
    project = {
        **{name: whole[name] for name in ("version", "license", "license-files", "requires-python", "urls")},
        "name": part.name,
        "description": part.description,
        "readme": "README.md",
        "keywords": whole["keywords"],
        "classifiers": sorted({*whole["classifiers"], *part.classifiers}),
        "dependencies": [*taken, *(each.format(version=whole["version"]) for each in part.dependencies)],
        "entry-points": {group: whole["entry-points"][group] for group in part.entry_points},
    }
    setuptools = {"packages": {"find": {"include": [f"{part.package}*"]}}, "package-data": {part.package: data}}
    return {"build-system": pyproject["build-system"], "project": project, "tool": {"setuptools": setuptools}}


def toml(tables: dict[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return tables as TOML; strings of JSON are strings of TOML, too."""
    values = {name: value for name, value in tables.items() if not isinstance(value, dict)}
    text = f"[{'.'.join(map(json.dumps, path))}]\n" if path else ""
    text += "".join(f"{json.dumps(name)} = {_value(value)}\n" for name, value in values.items()) + "\n"
    return text + "".join(toml(value, (*path, name)) for name, value in tables.items() if isinstance(value, dict))


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)} = {_value(each)}' for name, each in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def home_on_github() -> str | None:
    """Return the address of the repository whose workflow runs this, if one does."""
    name = os.environ.get("GITHUB_REPOSITORY")
    return f"{os.environ['GITHUB_SERVER_URL']}/{name}" if name else None


def with_absolute_links(readme: str, home: str) -> str:
    """Return a page whose links lead to the files of the built commit, because an index has no other files."""
    commit = os.environ["GITHUB_SHA"]
    readme = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{home}/raw/{commit}/", readme)
    return re.sub(r"\]\((?!https?:|#)", f"]({home}/blob/{commit}/", readme)


def repository_files() -> list[Path]:
    """Return the files that git knows and that exist, relative to the repository."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    return [Path(name) for name in listed if name and (ROOT / name).is_file()]


def stage(folder: Path, files: list[Path], project: dict[str, Any], readme: str | None = None) -> Path:
    """Lay out a project: its files, its pyproject.toml, and a manifest that has them all in its sdist."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    (folder / "pyproject.toml").write_text(toml(project))
    (folder / "MANIFEST.in").write_text("".join(f"include {file}\n" for file in files))
    if readme is not None:
        (folder / "README.md").write_text(readme)
    return folder


def stage_all(stages: Path) -> list[Path]:
    """Lay out the project of each distribution in a folder of its name; return the folders."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts, files = parts_of(pyproject), repository_files()
    home, readme = home_on_github(), (ROOT / "README.md").read_text()
    if home:
        pages = {"Repository": home, "Issues": f"{home}/issues", "Changelog": f"{home}/blob/main/CHANGELOG.md"}
        pyproject["project"]["urls"].update(pages, Documentation=f"{home}/tree/main/docs")
        readme = with_absolute_links(readme, home)
    folders = [stage(stages / MAIN, files, main_project(pyproject, parts), readme)]
    for part in parts:
        own = [file for file in files if file.is_relative_to(part.folder)]
        readme = f"# {part.name}\n\n{part.description}\n\nA part of the project `dualwrite`, in the same version.\n"
        folders.append(stage(stages / part.name, [*own, Path("LICENSE")], part_project(pyproject, part), readme))
    return folders


def build(directory: Path) -> None:
    """Build an sdist, and from it a wheel, of each distribution into `directory`."""
    shutil.rmtree(STAGES, ignore_errors=True)
    for folder in stage_all(STAGES):
        subprocess.run([sys.executable, "-m", "build", "--outdir", directory, folder], check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").absolute())
