"""Rules and dashboard name only what /metrics has, and leave nothing out."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from trimtab.interfaces.cli import main
from trimtab.interfaces.exports import definitions, quantile, series
from trimtab.interfaces.exports_grafana import dashboard, rows
from trimtab.interfaces.exports_rules import alerts, records, rules_yaml
from trimtab.runtime.metrics import GatewayMetrics
from trimtab.runtime.rollout_metrics import RolloutCollector

NAME = re.compile(r"trimtab_[a-z0-9_]+")
DURATION = re.compile(r"\d+[smhd]")


def every_expression() -> list[str]:
    panels = [line.expr for row in rows() for panel in row.panels for line in panel.lines]
    return [*panels, *(one.expr for one in records()), *(one.expr for one in alerts())]


def known_series() -> set[str]:
    return {one.name for one in definitions().values()}


def test_every_expression_names_series_that_exist() -> None:
    """A rule on a series that nobody exports would never fire and never say so."""
    named = {name for expr in every_expression() for name in NAME.findall(expr)}
    assert (named - known_series(), len(named) > 20) == (set(), True)


def test_every_metric_has_a_panel() -> None:
    """A new metric that is shown nowhere is found here."""
    shown = {name for row in rows() for panel in row.panels for name in panel.metrics}
    assert shown == set(definitions())


def test_panel_reads_the_metrics_it_describes() -> None:
    """The description of a panel is of what its lines read, no more and no less."""
    for row in rows():
        for panel in row.panels:
            read = {name for line in panel.lines for name in NAME.findall(line.expr)}
            assert read == {series(name) for name in panel.metrics}, panel.title


def test_unknown_metric_is_refused_when_rules_are_made() -> None:
    """A renamed metric breaks the making of a rule, not the rule."""
    with pytest.raises(KeyError):
        quantile("time_to_first_tokne_seconds", 0.5)


def test_names_are_those_of_the_page() -> None:
    """Counters end in _total and histograms in _bucket, as the page writes them."""
    page = GatewayMetrics(lambda: 0.0).page().decode()
    typed = dict(re.findall(r"# TYPE (\S+) (\S+)", page))
    suffix = {"histogram": "_bucket"}
    found = {name + suffix.get(kind, "") for name, kind in typed.items() if "_created" not in name}
    assert known_series() == found


def test_rules_have_the_form_that_prometheus_loads() -> None:
    """Groups of rules with a name, an expression, and for alerts a wait, a severity and words."""
    loaded = yaml.safe_load(rules_yaml())
    kept, raised = (group["rules"] for group in loaded["groups"])
    assert [sorted(one) for one in kept] == [["expr", "record"]] * len(records())
    for one in raised:
        assert sorted(one) == ["alert", "annotations", "expr", "for", "labels"]
        assert DURATION.fullmatch(one["for"])
        assert one["labels"]["severity"] in {"page", "ticket"}
        assert all(one["annotations"][name] for name in ("summary", "description"))
    names = [one.get("record") or one.get("alert") for one in (*kept, *raised)]
    assert len(names) == len(set(names))


def test_alert_on_failed_gates_ends_an_hour_after_its_lever() -> None:
    """A lever that was taken back goes on showing what its gates said; nobody is told of it for ever."""
    (fails,) = [one for one in alerts() if one.alert == "TrimtabLeverFails"]
    _, _, rest = fails.expr.partition(" unless ")
    assert rest.startswith("ignoring (verdict, state)")
    assert rest.count('{state=~"rolled_back|expired"}') == 2
    assert "offset 1h" in rest


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    """Prometheus' own checker finds nothing wrong, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool: not installed")
    path = tmp_path / "rules.yml"
    path.write_text(rules_yaml())
    checked = subprocess.run(
        [promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert (
        checked.returncode,
        f"SUCCESS: {len(records()) + len(alerts())} rules" in checked.stdout,
    ) == (
        0,
        True,
    ), checked.stderr


def panels() -> Iterator[dict[str, object]]:
    yield from dashboard()["panels"]


def test_dashboard_has_the_form_that_grafana_imports() -> None:
    """Unique numbers, no panel over another, each line with its expression and the source that is asked for."""
    numbers = [panel["id"] for panel in panels()]
    assert len(numbers) == len(set(numbers))
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert isinstance(place, dict)
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    lines = [line for panel in panels() for line in panel.get("targets", ())]  # type: ignore[attr-defined]
    assert {line["datasource"]["uid"] for line in lines} == {"${datasource}"}
    assert dashboard()["templating"]["list"][0]["type"] == "datasource"


@pytest.mark.parametrize("what", ["prometheus-rules", "grafana"])
def test_command_prints_or_writes_the_same(tmp_path: Path, what: str) -> None:
    """With -o a file gets what is printed without."""
    printed = CliRunner().invoke(main, ["export", what])
    path = tmp_path / "deep" / "file"
    written = CliRunner().invoke(main, ["export", what, "-o", str(path)])
    assert (printed.exit_code, written.exit_code) == (0, 0)
    assert printed.output == path.read_text()
    made = yaml.safe_load(printed.output)
    assert made == (msgspec.to_builtins(dashboard()) if what == "grafana" else made)


def test_collector_shows_levers_from_the_start() -> None:
    """Every state of a rollout has a series before anything moved, so that growth of the first move is seen."""
    moves = next(
        family for family in RolloutCollector().collect() if family.name == "trimtab_rollout_moves"
    )
    assert {sample.value for sample in moves.samples} == {0}
    assert len(moves.samples) == 9
