"""An answer as one page that needs nothing else: styles and pictures are inside, dark and light, on paper too."""

import datetime
from collections.abc import Sequence
from html import escape
from importlib import resources

from trimtab.core.narrate_words import UNKNOWN, number, share
from trimtab.interfaces.diagnose_answer import DiagnoseAnswer, LeverAnswer
from trimtab.interfaces.diagnose_plots import budgets_bars, phases_bar, trend_chart
from trimtab.interfaces.diagnose_words import (
    OUTCOME_SIGNS,
    Moment,
    headline,
    key_readings,
    plain,
    source_words,
    trends,
)
from trimtab.interfaces.report_tables import badge, card, figure, table

SECTIONS = (
    ("binds", "What binds"),
    ("trends", "Over time"),
    ("budgets", "Budgets"),
    ("levers", "Levers"),
    ("read", "What was read"),
    ("sources", "Sources"),
)
OUTCOME_CSS = {"healthy": "pass", "bottleneck": "fail", "cannot_tell": "hold"}
TILES_MAX = 8


def page(
    answer: DiagnoseAnswer, history: Sequence[Moment] = (), *, refresh_s: float | None = None
) -> str:
    """Return the whole page. With `refresh_s` it loads itself anew that often, as a watch writes it."""
    css = resources.files("trimtab.interfaces").joinpath("report.css").read_text("utf-8")
    bodies = {
        "binds": _binds(answer),
        "trends": _trends(history),
        "budgets": _budgets(answer),
        "levers": _levers(answer),
        "read": _read(answer),
        "sources": _sources(answer),
    }
    shown = [(anchor, words) for anchor, words in SECTIONS if bodies[anchor]]
    links = "".join(f'<a href="#{anchor}">{words}</a>' for anchor, words in shown)
    parts = "".join(
        f'<section id="{anchor}"><h2>{words}</h2>{bodies[anchor]}</section>'
        for anchor, words in shown
    )
    again = f'<meta http-equiv="refresh" content="{max(1, round(refresh_s))}">' if refresh_s else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark">{again}'
        f"<title>trimtab diagnose: {escape(OUTCOME_SIGNS[answer.outcome])}</title>"
        f"<style>{css}</style></head><body>"
        f"<header>{_head(answer)}<nav>{links}</nav></header><main>{parts}</main>"
        "<footer>Read from the servers' own metrics; nothing on them was changed.</footer>"
        "</body></html>\n"
    )


def _head(answer: DiagnoseAnswer) -> str:
    when = datetime.datetime.fromtimestamp(answer.at_s, tz=datetime.UTC)
    told = headline(answer)
    tiles = "".join(
        f'<div class="tile"><div class="name">{escape(name)}</div>'
        f'<div class="big">{escape(said)}</div><div class="from">{escape(note)}</div></div>'
        for name, said, note in key_readings(answer)[:TILES_MAX]
    )
    sign = badge(OUTCOME_SIGNS[answer.outcome], OUTCOME_CSS[answer.outcome.value])
    because = [answer.binding.because] if answer.binding is not None else []
    reasons = dict.fromkeys([*because, answer.healthy_because])
    lines = "".join(f"<p>{escape(line)}</p>" for line in reasons if line)
    return (
        f"<h1>{escape(told[:1].upper() + told[1:])}</h1>"
        f'<p class="lead">{sign}</p>{lines}'
        f'<p class="soft">{when:%Y-%m-%d %H:%M:%S} UTC, {len(answer.sources)} sources</p>'
        f'<div class="tiles">{tiles}</div>'
    )


def _binds(answer: DiagnoseAnswer) -> str:
    rows = [
        (
            each.phase.value,
            plain(each.resource.value) if each.resource else UNKNOWN,
            share(each.share),
            number(each.mean_ms, "ms"),
            share(each.used_share),
            each.because,
        )
        for each in answer.phases
    ]
    shown = figure(
        phases_bar(answer.phases),
        "Share of the time of all requests by phase.",
        table(("phase", "bound by", "share", "mean", "used", "because"), rows),
    )
    told = "".join(
        _list(title, [each.text for each in found])
        for title, found in (
            ("For it", answer.supports),
            ("Against it", answer.against),
            ("Ruled out", answer.ruled_out),
            ("Unknown", answer.unknown),
        )
    )
    would = _list("What would tell", answer.would_tell)
    return f'<div class="pair">{card(shown)}<div>{card(told + would)}</div></div>'


def _trends(history: Sequence[Moment]) -> str:
    if len(history) < 2:
        return ""
    times = [moment.at_s for moment in history]
    charts = "".join(
        card(
            figure(
                trend_chart(name, times, values),
                f"{name}: now {said}.",
                table(
                    ("seconds ago", "value"),
                    [
                        (f"{times[-1] - at_s:.0f}", UNKNOWN if value is None else number(value))
                        for at_s, value in zip(times, values, strict=True)
                    ],
                ),
            )
        )
        for name, values, said in trends(history)
    )
    return f'<div class="pair">{charts}</div>'


def _budgets(answer: DiagnoseAnswer) -> str:
    rows = [(each.budget.value, share(each.used_share), each.basis) for each in answer.budgets]
    return card(
        figure(
            budgets_bars(answer.budgets),
            "Used share of each budget; beyond the dashed line a budget binds.",
            table(("budget", "used", "of what"), rows),
        )
    )


def _levers(answer: DiagnoseAnswer) -> str:
    rows = [
        (
            plain(each.lever),
            _lever_badge(each),
            "unknown" if each.gain_share_max is None else f"{share(each.gain_share_max)}",
            each.premise,
            each.because,
        )
        for each in answer.levers
    ]
    heads = ("lever", "", "gains at most", "premise", "because")
    judged = [
        (
            each.subject.value,
            each.answer.value if each.answer else "cannot tell",
            each.choice,
            f"{each.because} {each.would_tell}".strip(),
        )
        for each in answer.judgements
    ]
    parts = [
        card(f'<p class="soft">Narrowest first.</p>{table(heads, rows)}') if rows else "",
        card(_list("Do not", [each.text for each in answer.do_not])) if answer.do_not else "",
    ]
    if judged:
        parts.append(
            card(
                "<h3>Judged from the facts given</h3>"
                + table(("question", "answer", "choice", "because"), judged)
            )
        )
    return "".join(parts)


def _lever_badge(lever: LeverAnswer) -> str:
    match lever.proposed:
        case True:
            return badge("\u2713 proposed", "pass")
        case False:
            return badge("\u2715 no", "none")
        case None:
            return badge("? cannot tell", "hold")


def _read(answer: DiagnoseAnswer) -> str:
    rows = [
        (
            name,
            found.said,
            "" if found.samples is None else f"{found.samples:,}",
            found.unknown or found.note,
            found.source,
        )
        for name, found in answer.readings.items()
    ]
    warned = _list("Warnings", [each.text for each in answer.warnings])
    heads = ("reading", "value", "n", "note", "source")
    whole = f"<details><summary>Every reading</summary>{table(heads, rows)}</details>"
    return card(f"{warned}{whole}")


def _sources(answer: DiagnoseAnswer) -> str:
    told = _list("", [source_words(each) for each in answer.sources])
    names = [
        (each.source, value, metric)
        for each in answer.sources
        for value, metric in sorted(each.names.items())
    ]
    behind = (
        "<details><summary>The metric behind each value</summary>"
        f"{table(('source', 'value', 'metric'), names)}</details>"
    )
    return card(told + behind)


def _list(title: str, texts: Sequence[str]) -> str:
    if not texts:
        return ""
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f"{head}<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
