"""Reads what an evaluation found: JSON lines, of items or of counts, into scores by cut.

    {"item": "q17", "baseline": 1, "candidate": 0, "input_tokens": 5200, "cuts": ["label=code"]}
    {"cut": "input_tokens=0-256", "n": 100, "baseline_passed": 81, "candidate_passed": 80, "losses": 3, "wins": 2}

An item is passed or not; a grade is turned into that by whoever runs the evaluation. Names of items are only compared
with each other, never kept. Perplexity, agreement of tokens and the like are no scores of items and have no place here.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from trimtab.core.cuts import Cut, Dimension, input_tokens_bucket
from trimtab.core.lever import LeverRecordError
from trimtab.core.quality_scores import CutScores, Scores
from trimtab.rollout.answer import ALL_TRAFFIC
from trimtab.rollout.short_record import parse_cut

LINES_MAX: Final = 200_000
CUTS_MAX: Final = 256
"""Cuts of one evaluation: each shares the alpha."""


class Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item that both arms were asked."""

    item: Annotated[str, Meta(min_length=1)]
    baseline: bool | int
    candidate: bool | int
    cuts: tuple[str, ...] = ()
    input_tokens: Annotated[int, Meta(ge=0)] | None = None


def _not_by_header(cut: Cut) -> Cut:
    """What a header says may not be kept as it is."""
    if cut.dimension is Dimension.HEADER:
        raise ValueError(f"{cut.dimension.value} cuts cannot be hidden here; leave them out")
    return cut


_ITEM = msgspec.json.Decoder(Item)
_COUNTS = msgspec.json.Decoder(CutScores)


def read_scores(
    text: str,
    *,
    source: str,
    evaluation: str,
    revision: str,
    floor: float | None = None,
    floor_runs: int = 0,
    hide: Callable[[Cut], Cut] = _not_by_header,
) -> Scores:
    """Return the scores in a file's text; raises `LeverRecordError` naming the file and the broken line.

    `hide` returns a cut as it may be kept, or raises `ValueError`.
    """
    if not evaluation.strip():
        raise LeverRecordError("the evaluation has no name: say which it was")
    cuts: dict[str, CutScores] = {}
    names: set[str] = set()
    for at, line in _lines(text, source):
        found = _one(line, f"{source}, line {at}", names, hide)
        for each in found:
            before = cuts.get(each.cut)
            cuts[each.cut] = each if before is None else before.plus(each)
    if not cuts:
        raise LeverRecordError(f"{source} has no line: nothing was scored")
    if len(cuts) > CUTS_MAX:
        raise LeverRecordError(
            f"{source} has {len(cuts)} cuts; at most {CUTS_MAX} can be told apart"
        )
    ordered = tuple(cuts[name] for name in sorted(cuts))
    if ALL_TRAFFIC not in cuts:
        ordered = (_together(ordered), *ordered)
    return Scores(
        evaluation=evaluation.strip(),
        revision=revision,
        cuts=ordered,
        floor=floor,
        floor_runs=floor_runs,
    )


def _lines(text: str, source: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise LeverRecordError(f"{source} has {len(lines):,} lines; at most {LINES_MAX:,} are read")
    for at, line in enumerate(lines, start=1):
        if line.strip():
            yield at, line


def _one(
    line: str, where: str, names: set[str], hide: Callable[[Cut], Cut]
) -> tuple[CutScores, ...]:
    is_item = '"item"' in line
    try:
        if not is_item:
            return (_checked(_COUNTS.decode(line), where, hide),)
        item = _ITEM.decode(line)
    except msgspec.DecodeError as error:
        raise LeverRecordError(f"{where}: {error}") from error
    if item.item in names:
        raise LeverRecordError(f"{where}: item {item.item!r} comes twice")
    names.add(item.item)
    for name, passed in (("baseline", item.baseline), ("candidate", item.candidate)):
        if passed not in (0, 1):
            raise LeverRecordError(
                f"{where}: {name} is {passed!r}; an item is passed (1) or not (0)"
            )
    own = [] if item.input_tokens is None else [_by_length(item.input_tokens)]
    return tuple(_counted(cut, item) for cut in (ALL_TRAFFIC, *_cuts(item.cuts, where, hide), *own))


def _by_length(tokens: int) -> str:
    return str(Cut(Dimension.INPUT_TOKENS, input_tokens_bucket(tokens)))


def _cuts(texts: Iterable[str], where: str, hide: Callable[[Cut], Cut]) -> list[str]:
    try:
        return [str(hide(parse_cut(text))) for text in texts]
    except ValueError as error:
        raise LeverRecordError(f"{where}: {error}") from error


def _counted(cut: str, item: Item) -> CutScores:
    baseline, candidate = int(item.baseline), int(item.candidate)
    return CutScores(
        cut=cut,
        n=1,
        baseline_passed=baseline,
        candidate_passed=candidate,
        losses=int(baseline > candidate),
        wins=int(candidate > baseline),
    )


def _checked(counts: CutScores, where: str, hide: Callable[[Cut], Cut]) -> CutScores:
    if counts.cut != ALL_TRAFFIC:
        (kept,) = _cuts((counts.cut,), where, hide)
        counts = msgspec.structs.replace(counts, cut=kept)
    if max(counts.baseline_passed, counts.candidate_passed) > counts.n:
        raise LeverRecordError(f"{where}: more items passed than there are")
    if (counts.losses is None) != (counts.wins is None):
        raise LeverRecordError(f"{where}: losses and wins go together, neither without the other")
    pairs = counts.losses is not None and counts.wins is not None
    if pairs:
        explained = (counts.losses or 0) - (counts.wins or 0)
        if explained != counts.baseline_passed - counts.candidate_passed:
            raise LeverRecordError(
                f"{where}: losses and wins do not explain the difference in passed items"
            )
    return counts


def _together(cuts: tuple[CutScores, ...]) -> CutScores:
    """Everything scored, of the first dimension: cuts of two dimensions may hold the same items."""
    dimension = cuts[0].cut.partition("=")[0]
    mine = [each for each in cuts if each.cut.partition("=")[0] == dimension]
    total = mine[0]
    for each in mine[1:]:
        total = total.plus(each)
    return msgspec.structs.replace(total, cut=ALL_TRAFFIC)
