"""Which part of the traffic repeats: n-gram hits of prompts and answers, by label, temperature and constraint.

What drafts would have hit in recorded answers is replayed (`policies.ngram_drafts`); looping answers are left out, as a
loop is always hit. Tokens a step is the gain if verifying were free: a ceiling, and no promise. Requests are counted
as lengths and hits; no text is kept but hashes of pieces of earlier answers, in memory. A group is worth a trial of
speculation if what drafts cover of its answers is shown to reach a floor, not worth one if it is shown to stay below,
and else it cannot be told.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, assert_never

import msgspec

from trimtab.levers.speculation_cuts import COVERAGE_FLOOR
from trimtab.policies.ngram_drafts import DraftCounts, Drafter, LongestMatch, NewestMatch, replay
from trimtab.workloads.base import looks_looping
from trimtab.workloads.foretold import (
    PROMPT_TOKENS_MAX,
    Earlier,
    Share,
    Token,
    foretold,
    ratio_of,
)

ALL: Final = "all"
GROUPS_MAX: Final = 64
"""Groups that are told apart; requests of further ones count under `all` alone."""


class Rule(StrEnum):
    """By whose rule drafts are looked up."""

    VLLM = "vllm"
    LLAMACPP = "llamacpp"


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """How a drafter looks: by how many tokens, and how many it drafts at most."""

    rule: Rule = Rule.VLLM
    match_tokens: int = 3
    draft_tokens_max: int = 8

    def drafter(self) -> Drafter:
        """Return a drafter for one answer."""
        match self.rule:
            case Rule.VLLM:
                return LongestMatch(self.match_tokens, self.match_tokens, self.draft_tokens_max)
            case Rule.LLAMACPP:
                return NewestMatch(self.match_tokens, self.draft_tokens_max)
            case _:
                assert_never(self.rule)


class Worth(StrEnum):
    """What is said of a group."""

    TRY = "worth a trial"
    LEAVE = "leave off"
    CANNOT_TELL = "cannot tell"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was read. `answer` None: not recorded; `answer_text`: to see whether it loops.

    `groups`: names such as "label=edit". `told_later`: the history of a later request told this answer, whose own
    request counted when it came.
    """

    prompt: Sequence[Token]
    answer: Sequence[Token] | None
    answer_text: str = ""
    groups: tuple[str, ...] = ()
    told_later: bool = False


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One request as a ledger tells it: lengths, and what was drafted where something drafts already."""

    output_tokens: int
    repetition: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    groups: tuple[str, ...] = ()


class GroupHits(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a group. Shares are of tokens; `tokens_per_step` is a ceiling of the gain.

    `prompt_repeats`: of prompt tokens, those that the prompt before them foretells; `earlier_answers`: of answer
    tokens, those that answers of earlier requests foretell; `acceptance_at`: accepted / drafted by position.
    """

    name: str
    requests: int
    answers: int
    answer_tokens: int
    answer_tokens_share: float | None
    prompt_repeats: Share
    coverage: Share
    tokens_per_step: Share
    earlier_answers: Share
    acceptance: float | None
    acceptance_at: tuple[float, ...]
    drafts_per_step: float | None
    looping: int
    worth: Worth
    because: str


class Repeats(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer. `measured`: drafts were really made, and counted by the engine."""

    lookup: Lookup
    coverage_floor: float
    requests: int
    exact: bool
    measured: bool
    groups: tuple[GroupHits, ...]
    notes: tuple[str, ...] = ()


class _Group:
    """Counts of one group."""

    def __init__(self) -> None:
        self.requests = self.looping = 0
        self.prompts: list[tuple[float, float]] = []
        self.hits: list[DraftCounts] = []
        self.earlier: list[tuple[float, float]] = []


class RepeatCounter:
    """Takes requests in their order; bounded but for counts of each request."""

    def __init__(self, lookup: Lookup, *, coverage_floor: float = COVERAGE_FLOOR) -> None:
        self._lookup, self._floor = lookup, coverage_floor
        self._earlier = Earlier(lookup.match_tokens)
        self._groups: dict[str, _Group] = {ALL: _Group()}
        self._left_out = 0
        self._measured = self._replays = False

    def take(self, asked: Asked) -> None:
        """Take a request whose text is there."""
        prompt = (0, 0) if asked.told_later else foretold(asked.prompt, self._lookup.match_tokens)
        looping = asked.answer is not None and looks_looping(asked.answer_text)
        hits, earlier = None, (0, 0)
        if asked.answer and not looping:
            hits = self._replayed(asked.prompt, asked.answer)
            earlier = self._earlier.take(asked.answer)
            self._replays = True
        for group in self._of(asked.groups):
            group.looping += looping
            if not asked.told_later:
                group.requests += 1
                group.prompts.append(prompt)
            if hits is not None:
                group.hits.append(hits)
                group.earlier.append(earlier)

    def _replayed(self, prompt: Sequence[Token], answer: Sequence[Token]) -> DraftCounts:
        known: dict[Token, int] = {}
        head = [known.setdefault(each, len(known)) for each in prompt[-PROMPT_TOKENS_MAX:]]
        said = [known.setdefault(each, len(known)) for each in answer]
        # Where the answer was to end is not recorded: drafts are cut nowhere.
        limit = len(said) + self._lookup.draft_tokens_max
        return replay(head, said, self._lookup.drafter(), tokens_max=limit)

    def take_recorded(self, known: Recorded) -> None:
        """Take a request of which only lengths are known."""
        for group in self._of(known.groups):
            group.requests += 1
            if known.repetition is not None:
                group.prompts.append((known.repetition, 1.0))
            told = known.accepted is not None and known.drafted is not None
            if told and known.output_tokens:
                self._measured = True
                # An engine that looked and found nothing tells 0 of 0, which counts as much as a hit.
                group.hits.append(
                    _counted(known.output_tokens, known.drafted or 0, known.accepted or 0)
                )

    def _of(self, names: tuple[str, ...]) -> list[_Group]:
        found = [self._groups[ALL]]
        for name in names:
            if name not in self._groups and len(self._groups) >= GROUPS_MAX:
                self._left_out += 1
                continue
            found.append(self._groups.setdefault(name, _Group()))
        return found

    def result(self, *, exact: bool, notes: Mapping[str, int] | None = None) -> Repeats:
        """Return what was found; `notes`: what else to say, with how many requests it is about."""
        whole = sum(one.tokens for one in self._groups[ALL].hits)
        said = [f"{count:,} {text}" for text, count in (notes or {}).items() if count]
        if self._left_out:
            said.append(
                f"{self._left_out:,} memberships of more than {GROUPS_MAX} groups count under all alone"
            )
        if self._earlier.is_full:
            said.append(
                "earlier answers are remembered up to a limit: what later ones repeat of them is a floor"
            )
        return Repeats(
            lookup=self._lookup,
            coverage_floor=self._floor,
            requests=self._groups[ALL].requests,
            exact=exact,
            measured=self._measured,
            groups=tuple(
                self._told(name, group, whole) for name, group in sorted(self._groups.items())
            ),
            notes=tuple(said),
        )

    def _told(self, name: str, group: _Group, whole: int) -> GroupHits:
        hits = group.hits
        total = sum(hits, DraftCounts())
        coverage = ratio_of([sum(one.accepted) for one in hits], [one.tokens for one in hits])
        worth, because = judge(coverage, self._floor, answers=len(hits))
        return GroupHits(
            name=name,
            requests=group.requests,
            answers=len(hits),
            answer_tokens=total.tokens,
            answer_tokens_share=total.tokens / whole if whole else None,
            prompt_repeats=ratio_of(*_columns(group.prompts)),
            coverage=coverage,
            tokens_per_step=ratio_of([one.tokens for one in hits], [one.steps for one in hits]),
            earlier_answers=ratio_of(*_columns(group.earlier)),
            acceptance=total.acceptance,
            acceptance_at=total.by_position if self._replays else (),
            drafts_per_step=total.draft_share if self._replays else None,
            looping=group.looping,
            worth=worth,
            because=because,
        )


def judge(coverage: Share, floor: float, *, answers: int) -> tuple[Worth, str]:
    """Say whether a group is worth a trial: the whole interval of its coverage on one side of the floor."""
    if not answers or coverage.value is None:
        return (
            Worth.CANNOT_TELL,
            "no answers are recorded: a prompt that repeats itself promises nothing",
        )
    if coverage.interval is None:
        return Worth.CANNOT_TELL, "one answer says nothing of the next"
    low, high = max(0.0, coverage.interval.low), coverage.interval.high
    shown = f"drafts would cover {coverage.value:.1%} [{low:.1%}, {high:.1%}] of {answers:,} answers' tokens"
    if coverage.interval.low >= floor:
        return Worth.TRY, f"{shown}, at least the floor of {floor:.0%}"
    if coverage.interval.high < floor:
        return Worth.LEAVE, f"{shown}, below the floor of {floor:.0%}"
    return Worth.CANNOT_TELL, f"{shown}, which holds the floor of {floor:.0%}: record more answers"


def _counted(tokens: int, drafted: int, accepted: int) -> DraftCounts:
    """Return an engine's own counts, whose positions are not known; each step gave one token beside the accepted."""
    return DraftCounts(
        requests=1,
        tokens=tokens,
        steps=max(1, tokens - accepted),
        drafted=(drafted,) if drafted else (),
        accepted=(accepted,) if drafted else (),
    )


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [one for one, _ in pairs], [other for _, other in pairs]
