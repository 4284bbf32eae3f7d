"""Prompt lint: what in the prompts themselves keeps a prefix cache from reusing what is the same.

Requests of a session are compared each with the one before. A session is what the request names, else the requests that
begin with the same first user message. The first request of a session is compared with the most alike of the last first
requests, for what an application sends to everybody (system text, tools). Reuse is counted in tokens of the later
request, before an engine rounds down to whole blocks and computes the last token anew: a ceiling, not a promise.

Nothing is rewritten, and no text is quoted: what is said of a change is its place and its kind. The fix is the
client's; a router cannot give back a prefix that no request has.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

import msgspec

from trimtab.workloads.prompt_compare import Cause, Comparison, Divergence, alike, compare
from trimtab.workloads.prompt_parts import PartKind, Prompt

SESSIONS_MAX: Final = 256
"""Sessions that are remembered at once; the one unheard of longest is forgotten."""

OPENINGS_MAX: Final = 8
"""First requests with which a new session is compared."""

GAIN_MIN_SHARE: Final = 0.01
"""A change that costs a smaller part of the compared tokens than this is not worth a finding."""

GAIN_MIN_TOKENS: Final = 16.0
ROUTING_HELPS_SHARE: Final = 0.10
"""Below this reusable share no choice of replica can find a prefix worth having."""

CONFLICT_MIN_SHARE: Final = 0.10
"""Two statements of a hit share conflict if they are further apart than this."""


class LintFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause at one place over all requests. Token counts are sums over the `requests` that have it.

    `token`, `byte`, `text_line`: of the first example, which stands in lines `before_line` and `line` of the input.
    `variants`: distinct values of the field seen. `gain_tokens`: reuse that fixing it adds once everything before it in
    the prompt is fixed; None where that cannot be told. `lost_tokens`: the same text at another place, which no layout
    brings back.
    """

    cause: Cause
    where: str
    requests: int
    variants: int
    token: float
    byte: int
    text_line: int
    before_line: int
    line: int
    kinds: tuple[str, ...]
    gain_tokens: float | None
    lost_tokens: float
    text: str
    remedy: str


class HitShare(msgspec.Struct, frozen=True, kw_only=True):
    """A statement of somebody about the share of prompt tokens that were reused."""

    source: str
    share: float


class PromptLint(msgspec.Struct, frozen=True, kw_only=True):
    """What the prompts allow. Shares are of the tokens of the `compared` requests.

    `reusable_now`, `reusable_after`: mean tokens per compared request; `prefill_ms_now`, `prefill_ms_after`: predicted
    mean time to compute the rest, which is TTFT without queueing. What lies after the fix is None where only hashes are
    known. `exact`: whether all tokens were counted and not estimated from bytes. `left_out`: what stands in prompts and
    was not compared.
    """

    requests: int
    sessions: int
    compared: int
    tokens: float
    tokens_compared: float
    share_now: float | None
    share_after: float | None
    reusable_now: float | None
    reusable_after: float | None
    prefill_ms_now: float | None
    prefill_ms_after: float | None
    exact: bool
    findings: tuple[LintFinding, ...]
    layout: tuple[str, ...]
    not_helping: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class _Tally:
    """One cause at one place, request by request."""

    def __init__(self, first: Divergence) -> None:
        self.first = first
        self.requests = 0
        self.gain: float | None = 0.0
        self.lost = 0.0
        self.values: set[str] = set()
        self.kinds: dict[str, None] = {}

    def add(self, found: Divergence, value_before: str) -> None:
        self.requests += 1
        self.lost += found.lost_tokens
        self.gain = (
            None
            if self.gain is None or found.gain_tokens is None
            else self.gain + found.gain_tokens
        )
        self.values |= {found.value, value_before}
        self.kinds |= dict.fromkeys(found.kinds)


class PromptLinter:
    """Takes prompts in order and remembers what it must to compare the next ones; bounded."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Prompt] = OrderedDict()
        self._openings: deque[Prompt] = deque(maxlen=OPENINGS_MAX)
        self._tallies: dict[tuple[Cause, str], _Tally] = {}
        self.requests = self.compared = self.sessions = self.forgotten = 0
        self.tokens = self.tokens_compared = self.now = 0.0
        self.after: float | None = 0.0
        self.exact = True
        self.parts: set[PartKind] = set()
        self.left_out: dict[str, None] = {}

    def add(self, prompt: Prompt) -> None:
        """Take the next request."""
        self.requests += 1
        self.tokens += prompt.tokens
        self.parts |= {part.kind for part in prompt.parts}
        self.left_out |= dict.fromkeys(prompt.left_out)
        self.exact = self.exact and all(part.exact for part in prompt.parts)
        key = _session_of(prompt)
        before = self._sessions.pop(key, None)
        if before is not None:
            self._compare(before, prompt, opening=False)
        else:
            self._first(prompt)
        self._sessions[key] = prompt
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
            self.forgotten += 1

    def _first(self, prompt: Prompt) -> None:
        self.sessions += 1
        likely = [other for other in reversed(self._openings) if alike(other, prompt)]
        self._openings.append(prompt)
        if likely:
            best = max(likely, key=lambda other: compare(other, prompt, opening=True).after or 0.0)
            self._compare(best, prompt, opening=True)

    def _compare(self, before: Prompt, prompt: Prompt, *, opening: bool) -> None:
        result = compare(before, prompt, opening=opening)
        self.compared += 1
        self.tokens_compared += result.tokens
        self.now += result.now
        self.after = (
            None if self.after is None or result.after is None else self.after + result.after
        )
        self._count(result, before, prompt)

    def _count(self, result: Comparison, before: Prompt, prompt: Prompt) -> None:
        if not result.divergences:
            return
        backwards = compare(prompt, before)
        values = {(found.cause, found.where): found.value for found in backwards.divergences}
        for found in result.divergences:
            place = (found.cause, found.where)
            tally = self._tallies.setdefault(place, _Tally(found))
            tally.add(found, values.get(place, ""))

    def findings(self) -> tuple[LintFinding, ...]:
        """Return what is worth fixing, the largest gain first; what cannot be sized stands behind."""
        least = max(GAIN_MIN_TOKENS, GAIN_MIN_SHARE * self.tokens_compared)
        found = [
            _finding(tally)
            for tally in self._tallies.values()
            if tally.first.cause is Cause.HASH_DIFFERS
            or max(tally.gain or 0.0, tally.lost) >= least
        ]
        return tuple(sorted(found, key=lambda each: -(each.gain_tokens or 0.0)))


def _session_of(prompt: Prompt) -> str:
    """The session's name, else the first user message: later turns resend it, whatever stands before it."""
    if prompt.session:
        return f"named {prompt.session}"
    first = next((part.text for part in prompt.parts if part.kind is PartKind.USER), None)
    return f"first {first}" if first is not None else "plain"


def lint(
    prompts: Iterable[Prompt],
    *,
    prefill_tokens_per_s: float | None = None,
    hit_shares: tuple[HitShare, ...] = (),
) -> PromptLint:
    """Lint prompts in their order. `prefill_tokens_per_s` turns tokens into TTFT; raises ValueError unless above 0."""
    if prefill_tokens_per_s is not None and prefill_tokens_per_s <= 0:
        raise ValueError(f"prefill must compute tokens, got {prefill_tokens_per_s} per second")
    linter = PromptLinter()
    for prompt in prompts:
        linter.add(prompt)
    findings = linter.findings()
    whole, count = linter.tokens_compared, linter.compared
    share_now = linter.now / whole if whole else None
    after = linter.after if count else None
    return PromptLint(
        requests=linter.requests,
        sessions=linter.sessions,
        compared=count,
        tokens=linter.tokens,
        tokens_compared=whole,
        share_now=share_now,
        share_after=None if after is None or not whole else after / whole,
        reusable_now=linter.now / count if count else None,
        reusable_after=None if after is None else after / count,
        prefill_ms_now=_prefill_ms(whole - linter.now, count, prefill_tokens_per_s),
        prefill_ms_after=None
        if after is None
        else _prefill_ms(whole - after, count, prefill_tokens_per_s),
        exact=linter.exact and linter.requests > 0,
        findings=findings,
        layout=_layout(findings, linter.parts),
        not_helping=_not_helping(share_now, findings),
        warnings=(*_forgotten(linter.forgotten), *judge_hit_shares(hit_shares, share_now)),
        unknown=_unknown(linter, prefill_tokens_per_s),
        left_out=tuple(linter.left_out),
    )


def _prefill_ms(tokens: float, requests: int, rate: float | None) -> float | None:
    """Mean milliseconds a request takes to compute its part of `tokens`."""
    return None if rate is None or not requests else 1000.0 * tokens / requests / rate


def _forgotten(count: int) -> tuple[str, ...]:
    if not count:
        return ()
    return (f"more than {SESSIONS_MAX} sessions at once: {count} were forgotten on the way",)


def _unknown(linter: PromptLinter, rate: float | None) -> tuple[str, ...]:
    found = []
    if not linter.compared:
        found.append("reuse: no two requests of one session or application to compare")
    if linter.left_out:
        names = ", ".join(linter.left_out)
        found.append(f"what {names} add to prompts was not compared: less may be reused than said")
    if linter.compared and linter.after is None:
        found.append(
            "reuse after the fix: hashes say that a part differs, not how much of it; "
            "lint the request bodies"
        )
    if linter.compared and linter.after is not None and rate is None:
        found.append("TTFT: give the prefill rate, or a model and its hardware")
    return tuple(found)


def _not_helping(share: float | None, findings: tuple[LintFinding, ...]) -> tuple[str, ...]:
    if share is None or not findings or share >= ROUTING_HELPS_SHARE:
        return ()
    return (
        f"routing by prefix: at most {share:.2%} of a prompt is held by any replica, "
        "whichever is chosen; the change belongs into the client",
        "a larger cache: nothing that could be reused is being evicted",
    )


def judge_hit_shares(shares: tuple[HitShare, ...], ceiling: float | None) -> tuple[str, ...]:
    """Return the conflicts between stated hit shares, and of each with what the prompts allow.

    An engine counts the tokens it computes; whoever stands before it only guesses, so the engine is trusted.
    """
    found = []
    engine = next((each for each in shares if each.source == "engine"), None)
    for each in shares:
        if engine is not None and abs(each.share - engine.share) > CONFLICT_MIN_SHARE:
            found.append(
                f"conflict: {each.source} says that {each.share:.0%} of the prompt tokens were reused, "
                f"the engine {engine.share:.0%}; the engine is trusted"
            )
        if ceiling is not None and each.share > ceiling + CONFLICT_MIN_SHARE:
            found.append(
                f"conflict: {each.source} says {each.share:.0%}, but these prompts allow at most "
                f"{ceiling:.2%}; do not trust that figure for them"
            )
    return tuple(found)


def _finding(tally: _Tally) -> LintFinding:
    first = tally.first
    variants = len(tally.values - {""})
    kinds = tuple(tally.kinds)
    if any(kind.endswith("hexadecimal digits") for kind in kinds):
        # Some hexadecimal values happen to be decimal ones too.
        kinds = tuple(kind for kind in kinds if kind != "a number")
    return LintFinding(
        cause=first.cause,
        where=first.where,
        requests=tally.requests,
        variants=variants,
        token=first.token,
        byte=first.byte,
        text_line=first.text_line,
        before_line=first.before_line,
        line=first.line,
        kinds=kinds,
        gain_tokens=tally.gain,
        lost_tokens=tally.lost,
        text=_text(first, variants, kinds),
        remedy=REMEDIES[first.cause],
    )


REMEDIES: Final = {
    Cause.SYSTEM_TEXT: "take what changes out of the prompt (or send it as a header), or move it behind everything "
    "that stays: into the last user message",
    Cause.TOOL_ORDER: "sort the tools by name",
    Cause.TOOL_KEYS: "write the keys of each tool in one fixed order",
    Cause.TOOL_TEXT: "keep the text of tools fixed; say what changes in the last user message",
    Cause.TOOL_SET: "send the same tools all session long, or add new ones behind the others; limit by tool choice",
    Cause.HISTORY_EDITED: "send earlier messages again exactly as they were: append only",
    Cause.HISTORY_CUT: "cut the history rarely and by a large part, not by a message every turn",
    Cause.CHANGING_FIRST: "put the part that stays before the part that changes",
    Cause.HASH_DIFFERS: "lint the request bodies themselves: they show what changes",
}
"""What to do about each cause. Each is the client's to do."""


def _text(first: Divergence, variants: int, kinds: tuple[str, ...]) -> str:
    place = f"divergence at token ~{first.token:.0f} in {first.where}"
    what = ", ".join(kinds)
    match first.cause:
        case Cause.TOOL_ORDER:
            return f"{place}: tool order varies ({variants} orders)"
        case Cause.TOOL_KEYS:
            return f"{place}: the order of keys inside tools varies ({variants} orders)"
        case Cause.TOOL_TEXT:
            return f"{place}: what changes is {what} ({variants} variants)"
        case Cause.TOOL_SET:
            return f"{place}: the set of tools changes: {what} ({variants} sets)"
        case Cause.SYSTEM_TEXT:
            return f"{place}: what changes is {what} ({variants} variants)"
        case Cause.HISTORY_EDITED:
            return f"{place}: earlier messages are sent again changed ({what})"
        case Cause.HISTORY_CUT:
            return f"{place}: the oldest messages were cut off, so that all that follow have moved"
        case Cause.CHANGING_FIRST:
            return f"{place}: {what} stands before text that does not change"
        case Cause.HASH_DIFFERS:
            return f"{place}: its hash differs ({variants} variants)"


_CHANGING: Final = {Cause.SYSTEM_TEXT, Cause.TOOL_TEXT, Cause.CHANGING_FIRST}
_TOOLS: Final = {Cause.TOOL_ORDER, Cause.TOOL_KEYS, Cause.TOOL_TEXT, Cause.TOOL_SET}


def _layout(findings: tuple[LintFinding, ...], parts: set[PartKind]) -> tuple[str, ...]:
    """A layout that puts stable parts first, naming only parts that there are; empty where nothing need move."""
    causes = {found.cause for found in findings} - {Cause.HASH_DIFFERS}
    if not causes:
        return ()
    found = []
    if PartKind.SYSTEM in parts:
        changing = Cause.SYSTEM_TEXT in causes
        found.append("system text without what changes" if changing else "system text")
    if PartKind.TOOLS in parts:
        moved = bool(causes & _TOOLS)
        found.append("tools sorted by name, their keys in one order" if moved else "tools")
    if PartKind.REPLY in parts:
        found.append("history, append only")
    if Cause.CHANGING_FIRST in causes:
        found.append("the part of the message that stays")
    if causes & _CHANGING:
        found.append("what changes (unless it is sent as a header)")
    return (*found, "the question")
