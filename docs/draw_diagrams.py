"""Draw the Mermaid diagrams of the pages into docs/pictures/diagrams: `python docs/draw_diagrams.py`.

The site shows these pictures, so that neither its build nor its readers load a program that draws (docs/site/hooks.py).
A picture is named by what it shows, so a diagram that has changed has none until this is run again. It needs npm, which
fetches Mermaid, and Chromium, as the tests of the emulator's page do.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent
DIAGRAMS: Final = DOCS / "pictures" / "diagrams"
FENCED: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MERMAID: Final = "mermaid@11.17.2"
_SMALLEST: Final = 0.7
"""How far a picture is made smaller to fit; below that, it is scrolled."""
_RULES: Final = (
    "text{font:16px sans-serif;fill:var(--md-default-fg-color,#111)}",
    "rect.basic{fill:var(--md-code-bg-color,#f5f5f5);stroke:var(--md-accent-fg-color,#00796b);stroke-width:1.2}",
    ".transition{stroke:var(--md-default-fg-color--light,#555);stroke-width:1.2}",
    ":is(marker path,.state-start,.node path){fill:var(--md-default-fg-color--light,#555);stroke:none}",
    ".background{fill:var(--md-default-bg-color,#fff);opacity:.85}",
    ".node .background{opacity:0}",
)
"""The colours of the site's theme, or those of a picture that is shown alone."""
_STYLE: Final = "".join(f".statediagram {rule}" for rule in _RULES)
_DRAW: Final = """
const [name, text, done] = arguments;
mermaid.initialize({startOnLoad: false, htmlLabels: false, flowchart: {htmlLabels: false}, state: {htmlLabels: false}});
mermaid.render(name, text).then(drawn => done(drawn.svg), error => done("error: " + error));
"""


def name_of(diagram: str) -> str:
    """Return the name of the picture of a diagram."""
    return f"{hashlib.sha256(diagram.encode()).hexdigest()[:12]}.svg"


def diagrams_of(pages: Iterable[Path]) -> list[str]:
    """Return the text of every diagram of the pages."""
    return [diagram for page in pages for diagram in FENCED.findall(page.read_text())]


def all_diagrams() -> list[str]:
    """Return the text of every diagram that the site shows."""
    return diagrams_of(sorted([*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")]))


def plain(drawn: str, name: str) -> str:
    """Return what Mermaid has drawn in the theme's colours, in its own size, with ids of its own, and on one line."""
    styled = re.sub(r"<style>.*?</style>", f"<style>{_STYLE}</style>", drawn, flags=re.DOTALL)
    styled = re.sub(r' data-[\w-]+="[^"]*"| style=""', "", styled)
    styled = re.sub(r"(\d+\.\d{2})\d+", r"\1", styled)
    found = re.search(r'viewBox="\S+ \S+ (\S+) \S+"', styled)
    assert found is not None, styled[:300]
    width = float(found[1])
    size = f'width="{width:.0f}" style="min-width:{width * _SMALLEST:.0f}px;max-width:100%;height:auto"'
    root, _, rest = styled.partition(">")
    root = re.sub(r' (?:style|width)="[^"]*"', "", root) + f" {size}>"
    return " ".join((root + rest).split()).replace("drawn", f"d{Path(name).stem}") + "\n"


def main() -> None:
    """Draw what has no picture yet, and remove the pictures of what is gone."""
    sys.path.insert(0, str(DOCS.parent))
    from tests.support.browser import Browser
    from tests.support.servers.chromium import fetch_chromium

    DIAGRAMS.mkdir(exist_ok=True)
    diagrams = {name_of(text): text for text in all_diagrams()}
    for picture in DIAGRAMS.iterdir():
        if picture.name not in diagrams:
            picture.unlink()
    browser = Browser(fetch_chromium())
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "install", "--silent", "--prefix", folder, _MERMAID], check=True)
        page = Path(folder, "page.html")
        page.write_text('<body><script src="node_modules/mermaid/dist/mermaid.min.js"></script></body>')
        browser.driver.get(page.as_uri())
        for name, text in diagrams.items():
            drawn = browser.driver.execute_async_script(_DRAW, "drawn", text)
            assert drawn.startswith("<svg"), f"{drawn}: {text}"
            DIAGRAMS.joinpath(name).write_text(plain(drawn, name))
    browser.close()


if __name__ == "__main__":
    main()
