"""What measuring drafting found: as tables for a terminal and as words."""

from typing import Final

from rich.console import Console
from rich.table import Table

from trimtab.core.revision import Speculation
from trimtab.interfaces.quantize_view import ratio_words
from trimtab.levers.speculation_depths import PointFigures, depth_ranges
from trimtab.levers.speculation_found import CutFigures, Pays, Speculated
from trimtab.policies.ngram_drafts import DraftCounts
from trimtab.policies.speculation_model import predict

UNKNOWN: Final = "unknown"
SIGNS: Final = {
    Pays.GAINS: "\u2713 gains",
    Pays.LOSES: "\u2715 loses",
    Pays.NOT_SHOWN: "\u25cc no gain shown",
    Pays.INVALID: "\u2715 invalid answers",
}
POINT_HEADS: Final = (
    "streams",
    "depth",
    "predicted ms/token",
    "measured ms/token",
    "off by",
    "measured tok/s",
    "tok/s over no drafts",
)
CUT_HEADS: Final = (
    "traffic",
    "temperature",
    "requests",
    "drafts/step",
    "drafted/step",
    "accepted/draft",
    "acceptance",
    "by position",
    "coverage",
    "ms/token over no drafts",
    "verdict",
)
DEPTH_HEADS: Final = (
    "depth",
    "n-gram",
    "drafts/step",
    "tokens/step",
    "acceptance",
    "by position",
    "coverage",
)
CHOICE_HEADS: Final = (
    "streams",
    "depth",
    "not shown to give more",
    "best measured",
    "gives less by",
    "verdict",
)
STEP_HEADS: Final = ("streams", "no drafts ms", "off inside the engine", "with drafts ms (drafted)")


def point_rows(found: Speculated) -> list[tuple[str, ...]]:
    """Return a row for each batch and depth."""
    return [_point(one) for one in found.points]


def _point(one: PointFigures) -> tuple[str, ...]:
    return (
        str(one.batch),
        str(one.depth) if one.depth else "none",
        f"{one.predicted_tpot_ms:.1f}",
        f"{one.measured_tpot_ms:.1f}",
        f"{one.error:+.0%}",
        f"{one.measured_tokens_per_s:.0f}",
        "1" if one.tokens_per_s is None else ratio_words(one.tokens_per_s),
    )


def cut_rows(cuts: tuple[CutFigures, ...]) -> list[tuple[str, ...]]:
    """Return a row for each kind of traffic and temperature."""
    return [_cut(one) for one in cuts]


def _cut(one: CutFigures) -> tuple[str, ...]:
    counts = one.counts
    where = one.label or f"repetition {one.repetition}"
    bound = "" if one.valid_off is None else f", {one.constraint}"
    valid = (
        ""
        if one.valid_off is None
        else f"; valid {one.valid_on} of {one.requests}, {one.valid_off} without"
    )
    return (
        f"{where}{bound}",
        f"{one.temperature:g}",
        f"{one.tpot_ms.n} of {one.requests}",
        _number(counts.draft_share),
        _number(sum(counts.drafted) / counts.steps if counts.steps else None),
        _number(counts.accepted_per_draft),
        _share(counts.acceptance),
        positions_words(counts),
        _share(counts.coverage),
        ratio_words(one.tpot_ms),
        f"{SIGNS[one.pays]}{valid}",
    )


def positions_words(counts: DraftCounts) -> str:
    """Say the acceptance at each position in percent."""
    shown = [f"{100 * share:.0f}" for share in counts.by_position]
    return " ".join(shown) if shown else "none drafted"


def depth_rows(found: Speculated) -> list[tuple[str, ...]]:
    """Return a row for each depth: what its rule drafts over the answers of the judged label."""
    return [
        (
            str(depth),
            str(found.settings[depth].match_tokens),
            _number(counts.draft_share),
            _number(counts.tokens_per_step),
            _share(counts.acceptance),
            positions_words(counts),
            _share(counts.coverage),
        )
        for depth, counts in found.counts.items()
    ]


def choice_rows(found: Speculated) -> list[tuple[str, ...]]:
    """Return a row for each batch: the depth to take and how it did."""
    return [
        (
            str(one.batch),
            str(one.depth) if one.depth else "none",
            ", ".join(map(str, one.equals)),
            str(one.best_measured) if one.best_measured else "none",
            f"{one.loss:.1%}",
            "\u2713 holds" if one.holds else "\u2715 does not",
        )
        for one in found.plan.choices
    ]


def step_rows(found: Speculated) -> list[tuple[str, ...]]:
    """Return a row for each batch: what a step costs."""
    return [
        (
            str(one.batch),
            f"{one.ms:.1f}",
            ratio_words(found.off_inside.get(one.batch)),
            ", ".join(
                f"{each.ms:.1f} ({each.drafted:.1f})"
                for each in found.steps.drafting
                if each.batch == one.batch
            ),
        )
        for one in found.steps.plain
    ]


def speculation_words(speculation: Speculation) -> str:
    """Say a rule of drafting."""
    return (
        f"{speculation.method.value}, n-grams of {speculation.match_tokens}, drafts of up to "
        f"{speculation.draft_tokens_max} tokens"
    )


def summary_words(found: Speculated) -> tuple[str, ...]:
    """Say what the tables come to."""
    inside, points = found.within
    depths = ", ".join(f"{one.depth or 'none'} at {one.batch}" for one in found.plan.choices)
    rows = ", ".join(f"[{low}, {high}, {depth}]" for low, high, depth in depth_ranges(found.plan))
    bound = [one for one in found.cuts if one.valid_off is not None]
    counts = (
        f"{sum(one.valid_on or 0 for one in bound)} of {sum(one.requests for one in bound)} valid with drafts, "
        f"{sum(one.valid_off or 0 for one in bound)} without"
    )
    unknown = f"{counts}, which tells nothing" if bound else "not measured"
    schema = {
        None: f"answers bound to a schema: {unknown}, so left out",
        True: f"answers bound to a schema: as valid with drafts as without ({counts})",
        False: f"answers bound to a schema: fewer are valid with drafts ({counts}), so left out",
    }[found.schema_combinable]
    return (
        speculation_words(found.speculation),
        f"break-even {found.plan.break_even.told}; of drafts of {found.speculation.draft_tokens_max} tokens at every "
        f"batch {found.plan.alone.told}, their gain is shown up to {found.plan.alone.off_at:g}",
        "depth by batch, of those whose gain over no drafts is shown the shallowest that no other is shown to beat: "
        f"{depths}; as rows of from, to, depth: {rows}",
        f"predicted within 15%: {inside} of {points} points",
        schema,
        f"drafted over the same answers: {found.rule_drafted:,} by the rule that predictions rest on, "
        f"{found.engine_drafted:,} by the engine",
    )


def expected_tpot(found: Speculated, batch: int, depth: int) -> float:
    """Return the predicted milliseconds a token, for a picture's line."""
    return predict(found.steps, batch, depth, found.counts.get(depth, DraftCounts())).tpot_ms


def show(found: Speculated, console: Console) -> None:
    """Print the answer."""
    head = "it pays" if found.pays else "it stays off"
    console.print(f"[bold]{head}[/]: {found.because}", highlight=False)
    for line in summary_words(found):
        console.print(line, highlight=False)
    for title, heads, rows in (
        ("every batch and depth", POINT_HEADS, point_rows(found)),
        ("depth by batch", CHOICE_HEADS, choice_rows(found)),
        ("what is drafted", DEPTH_HEADS, depth_rows(found)),
        ("by traffic, one stream", CUT_HEADS, cut_rows(found.cuts)),
        ("by repetition of the prompt", CUT_HEADS, cut_rows(found.repetition)),
        ("steps", STEP_HEADS, step_rows(found)),
    ):
        table = Table(*heads, box=None, pad_edge=False, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)
    for line in found.notes:
        console.print(f"[dim]{line}[/]", highlight=False)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"
