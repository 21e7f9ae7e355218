"""The documentation as a site: built strictly, complete, and without a request to another host."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlencode, urlsplit

import pytest

import dualwrite
from dualwrite.recipes.core.pause_points import PausePoint
from tests.support.browser import open_browser
from tests.support.conditions import until

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\bsrc=[\"']?(?:https?:)?//|@import|url\([\"']?(?:https?:)?//")
LINKED = re.compile(r"<link[^>]*\bhref=[\"']?(?:https?:)?//[^>]*>")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    command = ["build", "--strict", "--quiet", "--config-file", DOCS / "site" / "mkdocs.yml", "--site-dir", built]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *map(str, command)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return built


def test_the_site_has_the_kinds_of_pages_and_every_page(site: Path) -> None:
    tabs = re.findall(r'md-tabs__link">\s*([^<]+?)\s*<', (site / "index.html").read_text())
    assert tabs == ["Home", "Start", "How-to", "Reference", "Explanation", "Internals"]
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert {str(page).replace("README", "index") for page in pages} <= {
        str(page.relative_to(site)) for page in site.rglob("*.html")
    }


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    shown = " ".join(page.read_text() for page in (site / "reference").glob("*.html"))
    names = {name for name, module in dualwrite._MODULES.items() if f'id="{module}.{name}"' not in shown}
    assert names == set()


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    texts = {page.name: page.read_text() for kind in ("*.html", "*.css", "*.svg") for page in site.rglob(kind)}
    assert {name for name, text in texts.items() if LOADED.search(text) or LINKED.search(text)} == set()
    assert all('class="mermaid"' not in text for text in texts.values())  # the theme would fetch its script


def test_every_diagram_is_a_picture_on_its_page(site: Path) -> None:
    drawn = runpy.run_path(str(DOCS / "draw_diagrams.py"))
    named = {drawn["name_of"](text) for text in drawn["all_diagrams"]()}
    assert {each.name for each in drawn["DIAGRAMS"].iterdir()} == named, "run: python docs/draw_diagrams.py"
    pages = "".join(page.read_text() for page in site.rglob("*.html"))
    assert sorted(f"{name}.svg" for name in re.findall(r'<svg id="d(\w+)"', pages)) == sorted(named)
    assert "stateDiagram-v2\n" not in pages


@pytest.fixture(scope="module")
def search(site: Path) -> Iterator[Callable[[str], str]]:
    """Search the site in a real browser; return the address of the first page that it finds."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, open_browser() as browser:
        Thread(target=server.serve_forever, daemon=True).start()

        def first_found(words: str) -> str:
            browser.driver.get(f"http://127.0.0.1:{server.server_port}/index.html?{urlencode({'q': words})}")
            until(lambda: browser.run("return document.querySelector('a.md-search-result__link') !== null"))
            return urlsplit(str(browser.find("a.md-search-result__link").get_attribute("href"))).path

        yield first_found
        server.shutdown()


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("acl", "your-kafka"),
        ("kubernetes", "deploy"),
        ("backup", "databases"),
        ("prometheus", "observability"),
        ("grafana", "observability"),
        ("exactly once", "guarantees"),
    ],
)
def test_the_search_finds_the_page_of_a_subject_first(search: Callable[[str], str], words: str, page: str) -> None:
    assert search(words) == f"/{page}.html"


@pytest.mark.parametrize("script", ["draw_crash_points.py", "draw_terminals.py"])
def test_the_pictures_match_the_code(script: str) -> None:
    drawn = runpy.run_path(str(DOCS / script))
    for name, text in drawn["pictures"]().items():
        assert (drawn["PICTURES"] / name).read_text() == text, f"run: python docs/{script}"


def test_the_picture_of_the_crashes_has_each_pause_point() -> None:
    drawn = runpy.run_path(str(DOCS / "draw_crash_points.py"))
    assert [row.point for row in drawn["ROWS"] if isinstance(row, drawn["Crash"])] == list(PausePoint)


def test_pictures_are_small() -> None:
    assert {each.name for each in (DOCS / "pictures").iterdir() if each.stat().st_size > 100_000} == set()
