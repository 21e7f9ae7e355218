"""Add to the site the pages of the folder above docs/, and a reference made from docstrings."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError

import dualwrite

_ROOT: Final = Path(__file__).parents[2]
_ABOVE: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
"""Pages beside docs/, and what they are called on the site."""
_PRODUCERS: Final = ("dualwrite.producer", "dualwrite.async_producer", "dualwrite.prepared_state", "dualwrite.settings")
_REFERENCE: Final = {
    "dual-writes": ("Dual writes", ("dualwrite.recipes.", "dualwrite.delivery")),
    "producers": ("Producers", _PRODUCERS),
    "administration": ("Administration and recovery", ("dualwrite.admin", "dualwrite.guarantee")),
    "errors": ("Errors", ("dualwrite.errors", "dualwrite.outcome")),
}
"""The pages of the reference: of what modules the public names are on it."""
_EMULATOR: Final = ("dualwrite.broker_emulator.emulator.Emulator", "dualwrite.broker_emulator.handles")
_DIAGRAMS: Final = runpy.run_path(str(_ROOT / "docs" / "draw_diagrams.py"))
_LINK: Final = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#:]+)(?P<anchor>#[^)]*)?\)")
_FENCED: Final = re.compile(r"(```.*?```)", re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are no files of docs/."""
    from mkdocs.structure.files import File

    made = {site: _ROOT.joinpath(name).read_text() for name, site in _ABOVE.items()}
    for page, (title, modules) in _REFERENCE.items():
        made[f"reference/{page}.md"] = _documented(title, _public_names(modules))
    made["reference/emulator.md"] = _documented("The broker emulator", _EMULATOR)
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def _public_names(modules: tuple[str, ...]) -> Iterable[str]:
    return sorted(f"{module}.{name}" for name, module in dualwrite._MODULES.items() if module.startswith(modules))  # noqa: SLF001


def _documented(title: str, names: Iterable[str]) -> str:
    return "\n\n".join([f"# {title}", *(f"::: {name}" for name in names)]) + "\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the links lead to the site's pages; what is no page is named instead of linked to."""
    here = Path(page.file.src_uri)
    is_above = page.file.src_uri in _ABOVE.values()
    folder = _ROOT if is_above else (_ROOT / "docs" / here).parent
    drawn = _DIAGRAMS["FENCED"].sub(_picture, markdown)
    parts = _FENCED.split(drawn)
    return "".join(part if part.startswith("```") else _LINK.sub(_to_site(folder, here), part) for part in parts)


def _picture(found: re.Match[str]) -> str:
    """Return the picture of a diagram as a part of the page, whose colours it has then."""
    picture = _DIAGRAMS["DIAGRAMS"] / _DIAGRAMS["name_of"](found[1])
    if not picture.exists():
        raise PluginError(f"a diagram has changed, so it has no picture: python docs/draw_diagrams.py\n{found[1]}")
    return f'<div class="diagram" style="overflow-x:auto" tabindex="0">{picture.read_text().rstrip()}</div>'


def _to_site(folder: Path, here: Path) -> Callable[[re.Match[str]], str]:
    def replaced(found: re.Match[str]) -> str:
        target = (folder / found["target"]).resolve()
        name = target.relative_to(_ROOT).as_posix() if target.is_relative_to(_ROOT) else ""
        site = _ABOVE.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else None)
        if site is None:
            return f"{found['text']} (`{name}`)"
        return f"[{found['text']}]({'../' * (len(here.parts) - 1)}{site}{found['anchor'] or ''})"

    return replaced


def on_post_build(config: Any) -> None:
    """Write the index of the search as a script, too, for which the theme asks where the site is read as files."""
    search = Path(config.site_dir) / "search"
    search.joinpath("search_index.js").write_text(f"var __index = {search.joinpath('search_index.json').read_text()}")
