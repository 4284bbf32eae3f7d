"""A plan as one page that needs nothing else: styles and pictures are inside, dark and light, on paper too."""

from collections.abc import Sequence
from html import escape
from importlib import resources

from trimtab.interfaces import plan_words as words
from trimtab.interfaces.plan_answer import PlanAnswer
from trimtab.interfaces.plan_plots import growth_chart, memory_bar
from trimtab.interfaces.report_tables import badge, card, figure, table

SECTIONS = (
    ("layouts", "Layouts"),
    ("memory", "Memory"),
    ("adds", "What each device adds"),
    ("capacity", "Capacity and cost"),
    ("settle", "What would settle it"),
    ("others", "Why not the others"),
    ("sources", "Sources"),
)


def page(answer: PlanAnswer) -> str:
    """Return the whole page."""
    css = resources.files("trimtab.interfaces").joinpath("report.css").read_text("utf-8")
    bodies = {
        "layouts": card(table(words.LAYOUT_HEADS, words.layout_rows(answer))),
        "memory": _memory(answer),
        "adds": _adds(answer),
        "capacity": _capacity(answer),
        "settle": _settle(answer),
        "others": _others(answer),
        "sources": card(_list("", words.source_words(answer))),
    }
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in SECTIONS)
    parts = "".join(
        f'<section id="{anchor}"><h2>{title}</h2>{bodies[anchor]}</section>'
        for anchor, title in SECTIONS
    )
    sign = badge("\u2713 a plan", "pass") if answer.found else badge("\u2715 none meets", "fail")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>trimtab plan: {escape(answer.model)}</title><style>{css}</style></head><body>"
        f"<header><h1>{escape(words.title(answer))}</h1>"
        f'<p class="lead">{sign} {escape(answer.because)}</p><p class="soft">{escape(words.asked_words(answer))}</p>'
        f'<div class="tiles">{_tiles(answer)}</div><nav>{links}</nav></header><main>{parts}</main>'
        "<footer>An estimate: nothing was started. Every figure names what it rests on.</footer>"
        "</body></html>\n"
    )


def _tiles(answer: PlanAnswer) -> str:
    best = answer.layouts[0]
    shown = [
        ("Accelerators", str(best.devices), best.label),
        ("TTFT, mean", words.value_words(best.ttft_ms), words.interval_words(best.ttft_ms)),
        ("TPOT, mean", words.value_words(best.tpot_ms), words.interval_words(best.tpot_ms)),
        ("KV", f"{best.memory.kv_tokens:,.0f}", "tokens a replica"),
    ]
    cost = answer.capacity.cost if answer.capacity else None
    if cost is not None and cost.per_million_output_tokens is not None:
        over = cost.over_trace
        each = over.per_million_output_tokens if over else cost.per_million_output_tokens
        unit = "a million output tokens" + (", over the trace" if over else "")
        shown.append(("Cost", f"{each:.3g}", unit))
    return "".join(
        f'<div class="tile"><div class="name">{escape(name)}</div>'
        f'<div class="big">{escape(said or "unknown")}</div><div class="from">{escape(note)}</div></div>'
        for name, said, note in shown
    )


def _memory(answer: PlanAnswer) -> str:
    best = answer.layouts[0]
    shown = figure(
        memory_bar(best.memory),
        f"Memory of the fullest rank of {best.label}. {words.kv_words(best.memory)}.",
        table(words.MEMORY_HEADS, words.memory_rows(best.memory)),
    )
    return card(shown)


def _adds(answer: PlanAnswer) -> str:
    rows = words.growth_rows(answer)
    grows = figure(
        growth_chart(answer.growth, answer.targets.tpot_ms),
        "Time per output token of one replica as it grows, with its interval; the dashed line is the target.",
        table(words.GROWTH_HEADS, rows),
    )
    unit = answer.capacity.unit if answer.capacity else "load"
    fleet = table(words.SPREAD_HEADS, words.spread_rows(answer))
    told = f"<h3>The fleet, in {escape(unit)} within the targets</h3>{fleet}"
    return f'<div class="pair">{card(grows)}{card(told)}</div>'


def _capacity(answer: PlanAnswer) -> str:
    told = list(words.capacity_words(answer)) or [
        f"Nothing meets the targets. {answer.relief.because if answer.relief else ''}"
    ]
    split = f"Split of prefill and decode: {words.split_words(answer)}"
    return card(_list("", [*told, split]))


def _settle(answer: PlanAnswer) -> str:
    runs = [words.measurement_words(each) for each in answer.measurements]
    return card(
        _list("Uncertain", answer.uncertain)
        + _list("Measurements", runs)
        + _list("Unknown", answer.unknown)
    )


def _others(answer: PlanAnswer) -> str:
    return card(
        _list("Ruled out", words.ruled_out(answer))
        + _list("Impossible", words.impossible_words(answer))
    )


def _list(title: str, texts: Sequence[str]) -> str:
    if not texts:
        return ""
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f"{head}<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
