"""The report as one page that needs nothing else: styles and pictures are inside, it works offline and in print."""

import datetime
import re
from collections.abc import Sequence
from html import escape
from importlib import resources

from trimtab.core.narrate_words import number, share, tell_diagnosis
from trimtab.interfaces.report_levers import levers_section
from trimtab.interfaces.report_plots import (
    METRIC_WORDS,
    budgets_picture,
    curve_picture,
    cuts_picture,
    phases_picture,
    quantiles,
)
from trimtab.interfaces.report_tables import card, figure, table
from trimtab.interfaces.report_timeline import timeline_picture
from trimtab.interfaces.report_words import (
    VERDICT_SIGNS,
    change,
    count,
    figures,
    headline_rows,
    kv_through,
    latency,
    rate,
)
from trimtab.runtime.result import Distribution, TuneResult

CUTS_MAX = 14
SECTIONS = (
    ("figures", "Before and after"),
    ("binds", "What bound"),
    ("levers", "Levers"),
    ("latencies", "Latencies by cut"),
    ("budgets", "Budgets"),
    ("timeline", "Timeline"),
    ("again", "How to reproduce"),
)


def render(result: TuneResult) -> str:
    """Return the whole page."""
    css = resources.files("trimtab.interfaces").joinpath("report.css").read_text("utf-8")
    links = "".join(f'<a href="#{anchor}">{words}</a>' for anchor, words in SECTIONS)
    parts = [
        _figures(result),
        _binds(result),
        levers_section(result),
        _latencies(result),
        _budgets(result),
        _timeline(result),
        _again(result),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>trimtab tune: {escape(result.workload)}</title><style>{css}</style></head><body>"
        f"<header>{_head(result)}<nav>{links}</nav></header><main>{''.join(parts)}</main>"
        f"<footer>{_foot(result)}</footer></body></html>\n"
    )


def _head(result: TuneResult) -> str:
    when = datetime.datetime.fromtimestamp(result.started_at_s, tz=datetime.UTC)
    adopted = [lever.name for lever in result.levers if lever.verdict.startswith("adopted")]
    kept = f"Kept: {', '.join(adopted)}." if adopted else "No lever was kept."
    before, after = result.baseline, result.final
    tiles = (
        ("Mean time to first token", before.ttft_ms.mean, after.ttft_ms.mean, latency),
        ("Mean time per output token", before.tpot_ms.mean, after.tpot_ms.mean, latency),
        ("Output tokens per second", *figures(before, after, "output_tokens_per_s"), rate),
        ("Prompt tokens computed", *figures(before, after, "computed_tokens"), count),
    )
    drawn = "".join(
        f'<div class="tile"><div class="name">{escape(name)}</div>'
        f'<div class="big">{escape(change(first, last))}</div>'
        f'<div class="from">{escape(say(first))} \u2192 {escape(say(last))}</div></div>'
        for name, first, last, say in tiles
    )
    return (
        f"<h1>What trimtab found on the {escape(result.workload)} workload</h1>"
        f'<p class="lead">{escape(kept)} {result.baseline.n} requests before and {result.final.n} after, '
        f"same arrivals.</p>"
        f'<p class="soft">{when:%Y-%m-%d %H:%M} UTC, {result.duration_s / 60:.1f} minutes, '
        f"{escape(result.machine)}, version {escape(result.version)}</p>"
        f'<div class="tiles">{drawn}</div>'
    )


def _figures(result: TuneResult) -> str:
    rows = headline_rows(result.baseline, result.final)
    body = table(("", "baseline", "final", "change"), rows)
    note = (
        "Two runs of the same arrivals. In brackets the 95% interval of a mean, with the requests of ten "
        "seconds taken as one block. They describe these runs; what was promoted was decided by the gates below."
    )
    return _section("figures", f'<p class="soft">{note}</p>{card(body)}')


def _binds(result: TuneResult) -> str:
    if not result.diagnoses:
        return _section("binds", "<p>No diagnosis was made.</p>")
    rows = [
        (
            each.scope,
            phase.phase.value,
            phase.resource.value if phase.resource else "unknown",
            share(phase.share),
            latency(phase.mean_ms),
            str(phase.samples),
            phase.because,
        )
        for each in result.diagnoses
        for phase in each.diagnosis.phases
    ]
    shown = figure(
        phases_picture(result.diagnoses),
        "Share of the time of requests by phase, one bar a diagnosis.",
        table(("diagnosis", "phase", "bound by", "share", "mean", "n", "because"), rows),
    )
    told = "".join(
        card(_diagnosis(tell_diagnosis(each.diagnosis, each.scope))) for each in result.diagnoses
    )
    return _section("binds", f'<div class="pair">{card(shown)}<div>{told}</div></div>')


def _diagnosis(told: str) -> str:
    first, *rest = told.splitlines()
    items = "".join(f"<li>{escape(line.strip())}</li>" for line in rest)
    return (
        f"<p>{escape(first)}</p><details><summary>For, against, ceilings</summary>"
        f"<ul>{items}</ul></details>"
    )


def _latencies(result: TuneResult) -> str:
    shown = []
    for metric in METRIC_WORDS:
        mine = [each for each in result.distributions if each.metric == metric]
        whole = next((each for each in mine if each.cut == "all"), None)
        cuts = sorted((each for each in mine if each.cut != "all"), key=_cut_order)[:CUTS_MAX]
        words = METRIC_WORDS[metric].capitalize()
        if whole is None:
            shown.append(card(f"<h3>{words}</h3><p>Too few requests to draw.</p>"))
            continue
        left = figure(
            curve_picture(whole),
            "Share of all requests at most so slow. Dots: medians.",
            _quantile_table([whole]),
        )
        right = ""
        if cuts:
            caption = "Median, middle half, 5th to 95th percentile by cut."
            right = figure(cuts_picture(cuts), caption, _quantile_table(cuts))
        shown.append(card(f"<h3>{words}</h3>{left}{right}"))
    return _section("latencies", f'<div class="pair">{"".join(shown)}</div>')


def _cut_order(found: Distribution) -> tuple[str, float, str]:
    dimension, _, value = found.cut.partition("=")
    start = re.match(r"[\d.]+", value)
    return dimension, float(start[0]) if start else 0.0, value


def _quantile_table(found: Sequence[Distribution]) -> str:
    rows: list[tuple[str, ...]] = []
    for each in found:
        for run, values in (("baseline", each.baseline), ("final", each.final)):
            rows.append((each.cut, run, str(len(values)), *map(latency, quantiles(values))))
    return table(("cut", "run", "n", "p5", "p25", "median", "p75", "p95"), rows)


def _budgets(result: TuneResult) -> str:
    if not result.budgets:
        return _section("budgets", "<p>No budget was read.</p>")
    rows = [
        (moment.when, moment.lever or "", use.budget.value, share(use.used_share), use.basis)
        for moment in result.budgets
        for use in moment.uses
    ]
    moves = [
        (
            lever.name,
            move.budget.value,
            "spends" if move.spends else "relieves",
            "unknown" if move.delta_share is None else f"{100 * move.delta_share:+.1f} points",
            move.because,
        )
        for lever in result.levers
        for move in lever.moves
    ]
    shown = figure(
        budgets_picture(result.budgets),
        "Used share of each budget before, as predicted for a lever, and after it. Beyond the dashed line a "
        "budget binds.",
        table(("when", "lever", "budget", "used", "of what"), rows),
    )
    told = f"<h3>What each lever moves</h3>{table(('lever', 'budget', '', 'predicted', 'because'), moves)}"
    return _section("budgets", f"{card(shown)}{card(told)}")


def _timeline(result: TuneResult) -> str:
    rows = [
        (
            f"{point.at_s:.1f}",
            point.lane,
            point.what,
            "" if point.share is None else share(point.share),
            VERDICT_SIGNS.get(point.verdict or "", ""),
            point.detail,
        )
        for point in result.timeline
    ]
    shown = figure(
        timeline_picture(result.timeline, result.duration_s),
        "Stages, share of traffic per lever with the verdict of each move, triggers.",
        table(("s", "lane", "what", "share", "verdict", "detail"), rows),
        css="wide",
    )
    return _section("timeline", card(shown) + _triggers(result))


def _triggers(result: TuneResult) -> str:
    if not result.triggers:
        return "<p>No trigger fired.</p>"
    rows = [
        (
            trigger.lever,
            trigger.trigger,
            f"{number(trigger.value)} against {number(trigger.threshold)}",
            f"{trigger.fired_at_s:.1f} s",
            "not within the run"
            if trigger.recovered_at_s is None
            else f"{trigger.recovered_at_s:.1f} s",
            f"{share(trigger.held_share_before)} (n={trigger.n_before}) \u2192 "
            f"{share(trigger.held_share_after)} (n={trigger.n_after})",
            kv_through(trigger),
            f"{trigger.action}; {trigger.because}",
        )
        for trigger in result.triggers
    ]
    headings = (
        "lever",
        "trigger",
        "value",
        "fired",
        "recovered",
        "prompt from cache",
        "KV through the restart",
        "what",
    )
    return card(f"<h3>Triggers</h3>{table(headings, rows)}")


def _again(result: TuneResult) -> str:
    path = result.ledger.path
    seed = result.settings.get("tune.seed", result.settings.get("seed", 1))
    commands = "\n".join(
        (
            f"trimtab tune --workload {result.workload} --seed {seed}",
            f"trimtab ledger --ledger {path} verify",
            *(
                f"trimtab ledger --ledger {path} chain {lever.name}"
                for lever in result.levers
                if lever.chain
            ),
        )
    )
    verified = "its chain verifies" if result.ledger.verified else "its chain does NOT verify"
    settings = table(
        ("setting", "value"),
        [(name, str(value)) for name, value in sorted(result.settings.items())],
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    return _section(
        "again",
        f"<p>The same run again, and the record behind every figure here: {result.ledger.events} events in "
        f"<code>{escape(path)}</code>, {verified}.</p><pre>{escape(commands)}</pre><ul>{notes}</ul>"
        f"<details><summary>All settings</summary>{settings}</details>",
    )


def _foot(result: TuneResult) -> str:
    return (
        f"Ledger head <code>{escape(result.ledger.head_hash)}</code>. Figures of this page: "
        "<code>result.json</code> beside it."
    )


def _section(anchor: str, body: str) -> str:
    words = dict(SECTIONS)[anchor]
    return f'<section id="{anchor}"><h2>{words}</h2>{body}</section>'
