"""The files for operators, alerts, a dashboard and manifests, name metrics, pages and commands that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from opentelemetry.trace import NoOpTracer

from dualwrite.cli.root import cli
from dualwrite.recipes.core import metrics
from dualwrite.testing.server_unavailable import ServerUnavailableError
from spark_sink.driver import telemetry
from tests.support.servers.promtool import fetch_promtool
from tests.support.unavailable import skip
from tests.test_docs import DOCS, ROOT, anchors_of

ALERTS: list[dict[str, Any]] = yaml.safe_load((DOCS / "ops" / "alerts.yml").read_text())["groups"][0]["rules"]
PANELS: list[dict[str, Any]] = json.loads((DOCS / "ops" / "dashboard.json").read_text())["panels"]
EXPRESSIONS = [rule["expr"] for rule in ALERTS] + [each["expr"] for panel in PANELS for each in panel["targets"]]


class Recorder:
    """A meter that notes the instruments by the names that Prometheus gives them."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getattr__(self, create: str) -> Any:
        return lambda name, *arguments, **_: self._note(create, name, arguments)

    def _note(self, create: str, name: str, arguments: tuple[Any, ...]) -> None:
        unit = next(each for each in arguments if isinstance(each, str))
        plain = name.replace(".", "_") + ("_seconds" if unit == "s" else "")
        ends = {"create_counter": "_total", "create_histogram": "_bucket", "create_observable_gauge": ""}
        self.names.add(plain + ends[create])


def test_alerts_and_dashboard_name_metrics_that_exist() -> None:
    recorder: Any = Recorder()
    metrics.Instruments(recorder, NoOpTracer())
    telemetry.Instruments(recorder)
    named = {name for each in EXPRESSIONS for name in re.findall(r"\bdualwrite_\w+", each)}
    assert len(named) > 20
    assert named - recorder.names == set()


def test_prometheus_takes_the_alerts_and_every_query_of_the_dashboard(tmp_path: Path) -> None:
    try:
        promtool = str(fetch_promtool())
    except ServerUnavailableError as error:
        skip(error)
    queries = [each["expr"].replace("$__rate_interval", "5m") for panel in PANELS for each in panel["targets"]]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    histories = str(ROOT / "tests" / "alerts_test.yml")
    for command in (["check", "rules", str(tmp_path / "queries.yml")], ["test", "rules", histories]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_the_runbook_of_an_alert_is_a_place_in_the_documentation(rule: dict[str, Any]) -> None:
    page, _, fragment = rule["annotations"]["runbook"].partition("#")
    assert not fragment or fragment in anchors_of(ROOT / page)
    assert rule["labels"]["severity"] in ("page", "ticket")


def commands(part: object) -> list[list[str]]:
    """Return the commands `dualwrite` in a manifest."""
    if isinstance(part, dict):
        command = part.get("command")
        own = [command[1:]] if isinstance(command, list) and command[0] == "dualwrite" else []
        return [*own, *(each for value in part.values() for each in commands(value))]
    return [each for value in part for each in commands(value)] if isinstance(part, list) else []


def test_the_manifests_run_commands_that_exist() -> None:
    (manifests,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "deploy.md").read_text(), re.DOTALL)
    found = commands(list(yaml.safe_load_all(manifests)))
    assert [command[0] for command in found] == ["init-db", "recover", "publish"]
    for command in found:
        assert CliRunner().invoke(cli, [*command, "--help"]).exit_code == 0
