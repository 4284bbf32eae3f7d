"""What repeats in the traffic, in words and a table for a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trimtab.levers.speculation_repeats import ALL, GroupHits, Repeats, Worth
from trimtab.workloads.foretold import Share

WIDTH = 120


def print_repeats(result: Repeats) -> None:
    """Print the table of groups, what it rests on, and what follows from it."""
    console = Console(width=WIDTH, highlight=False)
    for line in head_of(result):
        console.print(escape(line))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("traffic", "so") else "right")
    for group in result.groups:
        table.add_row(*(escape(cell) for cell in row_of(group)))
    console.print()
    console.print(table)
    console.print()
    for line in tail_of(result):
        console.print(escape(line))


COLUMNS = (
    "traffic",
    "answers",
    "of all tokens",
    "prompt repeats",
    "drafts cover",
    "tokens a step, at most",
    "earlier answers foretell",
    "so",
)


def head_of(result: Repeats) -> tuple[str, ...]:
    """Say what was read and how."""
    drafts = result.lookup
    whole = next(group for group in result.groups if group.name == ALL)
    looked_up = (
        f"had drafts of at most {drafts.draft_tokens_max} tokens been looked up by "
        f"{drafts.match_tokens} as {drafts.rule.value} does"
    )
    how = "as the engine counted its drafts" if result.measured else looked_up
    looping = f"; {whole.looping:,} looping answers are left out" if whole.looping else ""
    tokens = "token ids" if result.exact else "tokens guessed from text"
    return (
        f"{result.requests:,} requests, {whole.answers:,} answers with {whole.answer_tokens:,} tokens "
        f"({tokens}), {how}{looping}",
    )


def row_of(group: GroupHits) -> tuple[str, ...]:
    """Return a group's cells."""
    share = group.answer_tokens_share
    return (
        group.name,
        f"{group.answers:,}",
        "unknown" if share is None else f"{share:.0%}",
        _percent(group.prompt_repeats),
        _percent(group.coverage),
        _times(group.tokens_per_step),
        _percent(group.earlier_answers),
        group.worth.value,
    )


def tail_of(result: Repeats) -> tuple[str, ...]:
    """Say what follows, group by group, and what to do next."""
    lines = [f"{group.name}: {group.because}" for group in result.groups]
    whole = next(group for group in result.groups if group.name == ALL)
    if whole.acceptance is not None and whole.acceptance_at:
        told = ", ".join(f"{each:.0%}" for each in whole.acceptance_at)
        lines.append(
            f"accepted by position of the draft: {told}; {whole.acceptance:.0%} of all drafted"
        )
    lines += result.notes
    if any(group.worth is Worth.TRY for group in result.groups):
        lines.append(
            "tokens a step are the gain if verifying were free: `trimtab speculate` measures what it costs here"
        )
    return tuple(lines)


def _percent(share: Share) -> str:
    if share.value is None:
        return "unknown"
    if share.interval is None:
        return f"{share.value:.1%} (n={share.n})"
    low, high = max(0.0, share.interval.low), min(1.0, share.interval.high)
    return f"{share.value:.1%} [{low:.1%}, {high:.1%}]"


def _times(share: Share) -> str:
    if share.value is None:
        return "unknown"
    if share.interval is None:
        return f"{share.value:.2f} (n={share.n})"
    return f"{share.value:.2f} [{max(1.0, share.interval.low):.2f}, {share.interval.high:.2f}]"
