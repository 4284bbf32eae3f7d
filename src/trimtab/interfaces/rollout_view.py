"""A lever in words: what is on, for whom, why, what it costs whom, what would switch it off, how to go back."""

import datetime
from typing import Final

import click
import msgspec

from trimtab.core.gate import GateResult
from trimtab.core.lever import LeverRecord
from trimtab.core.narrate_words import duration, tell_scores, tell_verification
from trimtab.core.state import LeverStatus
from trimtab.core.trigger_status import TriggerStatus
from trimtab.core.types import RolloutState
from trimtab.rollout.answer import ALL_TRAFFIC
from trimtab.rollout.interactions import Meeting
from trimtab.rollout.short_record import parse_cut

OVER: Final = frozenset({RolloutState.ROLLED_BACK, RolloutState.EXPIRED})
"""States of a lever of which nothing is on any more."""


def told_line(name: str, lever: LeverStatus, now_s: float) -> str:
    """Return one line about a lever; `now_s`: seconds since 1970."""
    share = f" at {lever.share:.0%}" if lever.share else ""
    verdict = f", last verdict {lever.look_verdict.value}" if lever.look_verdict else ""
    since = duration(max(0.0, now_s - lever.moved_at_s))
    due = " (to verify again)" if lever.verification is not None else ""
    return f"{name}  {lever.state.value}{share}{due} for {since}{verdict}: {lever.reason or 'proposed'}"


def told_lever(name: str, lever: LeverStatus, now_s: float) -> str:
    """Return everything a person asks about a lever, as paragraphs of lines."""
    lines = [told_line(name, lever, now_s)]
    if lever.verification is not None:
        lines.append(tell_verification(lever.verification))
    record = lever.record
    if record is None:
        return f"{lines[0]}\nits record is no longer in the ledger"
    lines += ["", "for whom", *_indented(_whom(lever, record))]
    lines += ["why", *_indented(_why(record))]
    lines += ["budgets", *_indented(_budgets(record))]
    lines += ["expected and measured", *_indented(_effects(lever, record))]
    lines += ["gates at the last look", *_indented(_results(lever.results))]
    if record.keep:
        lines += ["seen to be held as wide as the baseline's", *_indented(list(record.keep))]
    if record.absent:
        absent = [f"{metric.value}: {why}" for metric, why in record.absent.items()]
        lines += ["not asked, as it cannot be read", *_indented(absent)]
    if lever.scores:
        told = [tell_scores(each).splitlines() for each in lever.scores]
        lines += ["evaluations", *_indented([line for each in told for line in each])]
    lines += ["what can newly go wrong", *_indented(list(record.failure_modes))]
    lines += [
        "what switches it off",
        *_indented([_trigger(each) for each in lever.triggers.values()]),
    ]
    lines += ["how to go back", *_indented(_way_back(name, lever, record))]
    expires = datetime.datetime.fromtimestamp(record.expires_at_s, tz=datetime.UTC)
    lines.append(
        f"owner {record.owner}; it must prove itself again by {expires:%Y-%m-%d %H:%M} UTC"
    )
    return "\n".join(lines)


def in_cut(name: str, lever: LeverStatus, cut: str) -> LeverStatus:
    """Return what is known of a lever in one cut: the gates and effects of that cut alone.

    Raises `click.UsageError` for what is no cut, and `click.ClickException` for one that nothing of the lever is about.
    """
    if cut != ALL_TRAFFIC:
        try:
            parse_cut(cut)
        except ValueError as error:
            raise click.UsageError(f"--slice: {error}") from error
    known = _cuts_of(lever)
    if cut not in known:
        cuts = ", ".join(known) or "none"
        raise click.ClickException(f"no gate or effect of {name} is about {cut}; there are: {cuts}")
    return msgspec.structs.replace(
        lever,
        results=tuple(each for each in lever.results if each.cut == cut),
        effects={name: each for name, each in lever.effects.items() if each.cut == cut},
    )


def _cuts_of(lever: LeverStatus) -> tuple[str, ...]:
    """Return the cuts that gates, effects, what was decided and the record are about, each once."""
    found = [each.cut for each in lever.results]
    found += [each.cut for each in lever.effects.values()]
    found += [*lever.kept, *lever.refused]
    if lever.record is not None:
        found += [str(each) for each in (*lever.record.cuts, *lever.record.without)]
        found += [str(each.cut) for each in lever.record.gates if each.cut is not None]
    return tuple(dict.fromkeys(found))


def told_meeting(one: str, other: str, both: Meeting) -> str:
    """Return one line about two levers that meet."""
    touched = [*(each.value for each in both.budgets), *(each.value for each in both.phases)]
    return f"{one} and {other} both touch {', '.join(touched)} of {', '.join(both.cuts)}"


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines or ["nothing"]]


def _way_back(name: str, lever: LeverStatus, record: LeverRecord) -> list[str]:
    if lever.state in OVER:
        return ["it went back: all traffic is on the baseline"]
    return [f"trimtab rollout rollback {name}", record.reverse]


def _whom(lever: LeverStatus, record: LeverRecord) -> list[str]:
    cuts = " or ".join(str(cut) for cut in record.cuts) or "all traffic"
    lines = [f"{cuts}: {record.condition}"]
    if record.without:
        lines.append(f"never for {', '.join(str(cut) for cut in record.without)}")
    if record.ramp.holdback_share:
        lines.append(
            f"{record.ramp.holdback_share:.0%} of the sessions stay on the baseline for good"
        )
    if lever.exposed:
        met = [f"{n:,} sessions met the {arm.value}" for arm, n in sorted(lever.exposed.items())]
        lines.append(f"so far {' and '.join(met)}, each told once in the ledger")
    if lever.kept:
        lines.append(f"kept for {', '.join(lever.kept)}")
    return lines + [f"refused for {cut}: {why}" for cut, why in lever.refused.items()]


def _why(record: LeverRecord) -> list[str]:
    at = record.bottleneck
    share = "" if at.share is None else f", {at.share:.0%} of the time of requests"
    return [
        f"{at.resource.value} binds {at.phase.value}{share} ({at.diagnosis})",
        record.premise,
        record.chosen_because,
    ]


def _budgets(record: LeverRecord) -> list[str]:
    lines = []
    for move in record.moves:
        size = "by an unknown part" if move.delta_share is None else f"by {move.delta_share:+.1%}"
        verb = "pays" if move.spends else "is relieved"
        lines.append(f"{move.budget.value} {verb} {size}: {move.because}")
    return lines


def _effects(lever: LeverStatus, record: LeverRecord) -> list[str]:
    lines = [
        f"expected {each.metric.value} {each.ratio:.2f}x [{each.low:.2f}, {each.high:.2f}]: {each.because}"
        for each in record.expected
    ]
    for effect in lever.effects.values():
        if effect.ratio is None:
            continue
        known = effect.low is not None and effect.high is not None
        span = f" [{effect.low:.2f}, {effect.high:.2f}]" if known else " [interval unknown]"
        counted = f"n = {effect.n_baseline} and {effect.n_candidate}, {effect.n_units} units"
        lines.append(
            f"measured {effect.metric} of {effect.cut} {effect.ratio:.2f}x{span}, {counted}"
        )
    return lines


def _results(results: tuple[GateResult, ...]) -> list[str]:
    return [
        f"{each.verdict.value:5} {each.gate} ({each.cut}): {each.reason} "
        f"(n = {each.n_baseline} and {each.n_candidate})"
        for each in results
    ]


def _trigger(trigger: TriggerStatus) -> str:
    spec = trigger.spec
    side = "above" if spec.off_when_above else "below"
    now = "holds it off now" if trigger.fired else f"fired {trigger.fired_count} times"
    where = "" if spec.cut is None else f" for {spec.cut}"
    return (
        f"{spec.name}: {spec.signal.value} {side} {spec.off_at:g}{where} for {spec.ticks} ticks of "
        f"{spec.min_samples} samples or more ({now}); {spec.because}"
    )
