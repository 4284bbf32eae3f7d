"""A simulation as one page that needs nothing else: figures, bars by policy, the course over time, the limits."""

from collections.abc import Sequence
from html import escape
from importlib import resources

from trimtab.interfaces.report_tables import badge, card, figure, table
from trimtab.interfaces.simulate_parts import Part, parts_of
from trimtab.interfaces.simulate_plots import (
    COMPARED,
    COSTS,
    bars,
    course,
    role_course,
    spread_bars,
)
from trimtab.interfaces.simulate_view import COLUMNS, ends, interval
from trimtab.interfaces.simulate_words import NOTHING_DRAWN, Read, cell
from trimtab.sim.compare import Comparison
from trimtab.sim.sections import Scenario

LIMITS = (
    "The engine is a model: its step time is one formula, fitted or guessed as the source says, and every replica is "
    "alike. Gateways take no time. Output lengths are those of the workload, whatever the policy does. What a "
    "request generated is not found again by later prompts. Figures hold for this workload and this fleet."
)
VERDICTS = {"better": "pass", "worse": "fail", "no difference shown": "hold"}


def page(scenario: Scenario, found: Comparison) -> str:
    """Return the whole page."""
    css = resources.files("trimtab.interfaces").joinpath("report.css").read_text("utf-8")
    parts = (
        ("figures", "What users get", _figures(found)),
        ("policies", "Side by side", _bars(found)),
        ("time", "Over time", _course(found)),
        ("role-timeline", "Roles over time", _roles(found)),
        *((part.anchor, part.title, _part(part, found)) for part in parts_of(found)),
        ("differences", "Differences", _differences(found)),
        ("limits", "What this cannot say", card(f"<p>{escape(LIMITS)}</p>")),
    )
    shown = [part for part in parts if part[2]]
    links = "".join(f'<a href="#{anchor}">{escape(words)}</a>' for anchor, words, _ in shown)
    body = "".join(
        f'<section id="{anchor}"><h2>{escape(words)}</h2>{markup}</section>'
        for anchor, words, markup in shown
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>trimtab simulate: {escape(scenario.name)}</title><style>{css}</style></head><body>"
        f"<header>{_head(scenario, found)}<nav>{links}</nav></header><main>{body}</main>"
        "<footer>Simulated; no server was asked.</footer></body></html>\n"
    )


def _head(scenario: Scenario, found: Comparison) -> str:
    run = found.runs[0]
    seeds = ", ".join(str(seed) for seed in found.seeds)
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in found.notes)
    return (
        f"<h1>{escape(scenario.name)}</h1>"
        f'<p class="lead">{run.replicas:,} replicas behind {scenario.fleet.gateways:,} gateways, '
        f"{run.summary.arrived:,} requests in {run.summary.to_s - run.summary.from_s:,.0f} s</p>"
        f'<p class="soft">Seeds {escape(seeds)}. Engine model: {escape(scenario.replica.cost.source)}.</p>'
        f"{notes}"
    )


def _figures(found: Comparison) -> str:
    rows = []
    for policy in found.policies:
        runs = [run for run in found.runs if run.policy == policy]
        rows.append((policy, *(cell(runs, form, read) for _, form, read in COLUMNS), ends(runs)))
    heads = ("policy", *(name for name, _, _ in COLUMNS), "finished/shed/failed/running")
    note = (
        "Means over the seeds with half of the 95% interval."
        if len(found.seeds) > 1
        else "One seed: the uncertainty is unknown. Simulate more seeds for intervals."
        if found.drawn
        else NOTHING_DRAWN
    )
    return card(table(heads, rows) + f'<p class="soft">{note}</p>')


def _bars(found: Comparison) -> str:
    spreads = figure(
        spread_bars(found),
        "Output tokens of each replica over the mean of all, from most to least (first seed).",
        table(
            ("policy", "most", "least"),
            [
                (
                    policy,
                    *(
                        f"{value:.2f}"
                        for value in _ends(
                            next(
                                run for run in found.runs if run.policy == policy
                            ).output_tokens_by_replica
                        )
                    ),
                )
                for policy in found.policies
            ],
        ),
    )
    return f'<div class="pair">{_pictures(found, COMPARED)}{card(spreads)}</div>'


def _pictures(found: Comparison, metrics: Sequence[tuple[str, str, Read]]) -> str:
    """Return a card of bars by policy for each metric."""
    return "".join(
        card(
            figure(
                bars(found, name, form, read),
                f"{name} by policy, mean over seeds; whiskers are 95% intervals where there are several seeds.",
                table(
                    ("policy", name),
                    [
                        (
                            policy,
                            cell([run for run in found.runs if run.policy == policy], form, read),
                        )
                        for policy in found.policies
                    ],
                ),
            )
        )
        for name, form, read in metrics
    )


def _ends(tokens: tuple[int, ...]) -> tuple[float, float]:
    mean = sum(tokens) / len(tokens) or 1.0
    return max(tokens) / mean, min(tokens) / mean


def _course(found: Comparison) -> str:
    first = [run for run in found.runs if run.seed == found.seeds[0]]
    rows = [
        (
            f"{at * first[0].course.slice_s:,.0f}",
            f"{first[0].course.arrived[at]:,}",
            *(f"{run.course.good[at]:,}" for run in first),
            f"{first[0].course.replicas_ready[at]:,}"
            if at < len(first[0].course.replicas_ready)
            else "unknown",
        )
        for at in range(len(first[0].course.arrived))
    ]
    heads = ("from s", "arrived", *(f"good, {run.policy}" for run in first), "replicas ready")
    return card(
        figure(
            course(first),
            "Requests that arrived (grey) and that met the objective, by time of arrival (first seed).",
            table(heads, rows),
            css="wide",
        )
    )


def _part(part: Part, found: Comparison) -> str:
    note = f'<p class="soft">{escape(part.note)}</p>' if part.note else ""
    pictures = f'<div class="pair">{_pictures(found, COSTS)}</div>' if part.anchor == "cost" else ""
    return pictures + card(table(part.heads, part.rows) + note)


def _roles(found: Comparison) -> str:
    first = [run for run in found.runs if run.seed == found.seeds[0] and run.roles is not None]
    cards = []
    for run in first:
        assert run.roles is not None
        rows = [
            (
                f"{at * run.course.slice_s:,.0f}",
                *(
                    str(counts[at])
                    for counts in (run.roles.mixed, run.roles.prefill, run.roles.decode)
                ),
            )
            for at in range(len(run.roles.prefill))
        ]
        caption = (
            f"Ready replicas by role, {run.policy} (first seed): prefill below, decode and mixed above; a dot is a "
            "role change."
        )
        behind = table(("from s", "mixed", "prefill", "decode"), rows)
        cards.append(card(figure(role_course(run), caption, behind, css="wide")))
    return "".join(cards)


def _differences(found: Comparison) -> str:
    if not found.differences:
        return ""
    rows = [
        (
            one.policy,
            one.metric,
            f"{one.reference:,.4g}",
            f"{one.value:,.4g}",
            interval(one),
            badge(one.verdict, VERDICTS.get(one.verdict, "none")),
        )
        for one in found.differences
    ]
    heads = ("policy", "metric", found.reference, "value", "difference, 95% interval", "verdict")
    return card(table(heads, rows))
