"""What pays as a lever record to propose: what was measured is filled in, what only a person knows is marked."""

from typing import Final

from trimtab.core.cuts import Dimension
from trimtab.core.lever import TriggerSpec
from trimtab.core.types import Constraint
from trimtab.interfaces.toml_text import toml_comment, toml_text
from trimtab.levers.speculation_found import Pays, Speculated, equal_words
from trimtab.levers.speculation_record import triggers_of
from trimtab.workloads.draft_samples import UNLABELLED

NAME: Final = "ngram-drafts"

RECORD: Final = """\
# Written by `trimtab speculate`; {because}
name = "{name}"
technique = "speculation"
owner = "unnamed"
premise = {premise}
condition = {condition}
failure_modes = [
    "a batch over the break-even: verification costs more than it saves and throughput falls",
    "answers that repeat nothing: drafts are rejected and every step is longer",
    "tokens come in lumps: the longest gap between chunks grows though tokens come faster",
    "outputs differ in rounding from those of other batch shapes",
]
expires_after = "30d"
{slice}without = {without}

[revision.speculation]
method = "{method}"
match_tokens = {match}
draft_tokens_max = {depth}

[bottleneck]
phase = "decode"
resource = "memory_bandwidth"
diagnosis = "say here which diagnosis found decode bound by memory bandwidth (trimtab diagnose)"

[[moves]]
budget = "compute"
spends = true
because = {spends}

[[moves]]
budget = "memory"
spends = false
because = "weights are read once for several tokens"

[expected.tpot_ms]
ratio = {ratio:.3f}
low = {low:.3f}
high = {high:.3f}
because = {measured}
{triggers}"""


def lever_record(found: Speculated) -> str | None:
    """Return the TOML text; None where drafting does not pay."""
    # Answers bound to a schema tell nothing of free text, and are left out of the slice where validity may fall.
    paying = [
        one
        for one in found.cuts
        if one.label in found.gaining
        and one.pays is Pays.GAINS
        and (one.constraint == Constraint.FREE.value or found.schema_combinable)
    ]
    if not found.pays or not paying:
        return None
    ratios = [one.tpot_ms for one in paying if one.temperature == 0.0]
    bounds = [one.interval for one in ratios if one.interval is not None]
    n = sum(one.n for one in ratios)
    middle = sum((one.ratio or 1.0) * one.n for one in ratios) / n
    greedy = [one for one in paying if one.temperature == 0.0]
    return RECORD.format(
        because=toml_comment(found.because),
        name=NAME,
        premise=toml_text(_premise(found)),
        condition=toml_text(_condition(found)),
        slice=_slice(found),
        without=toml_text(_without(found)),
        method=found.speculation.method.value,
        match=found.speculation.match_tokens,
        depth=found.speculation.draft_tokens_max,
        spends=toml_text(
            "each step verifies "
            f"{max(sum(one.counts.drafted) / max(1, one.counts.steps) for one in greedy):.1f} drafted tokens "
            "of a stream in the mean; below the break-even a net relief"
        ),
        ratio=middle,
        low=min(one.low for one in bounds),
        high=max(one.high for one in bounds),
        measured=toml_text(f"measured at one stream, {n} requests with and without drafts in turn"),
        triggers="".join(
            _trigger(one) for one in triggers_of(found.table, fitted=found.plan.alone)
        ),
    )


def _premise(found: Speculated) -> str:
    ratios = ", ".join(f"{ratio:.2f}x at {batch}" for batch, ratio in found.table.ratios())
    equals = f"; of the measured depths {equal_words(found.choice)}" if found.choice.equals else ""
    return (
        f"aggregate throughput with drafts of up to {found.speculation.draft_tokens_max} tokens on "
        f"{found.judged_label}, measured: {ratios}{equals}; its gain is shown up to {off_at(found):.1f} streams, "
        f"break-even by the fit of predicted step times and measured intervals: {found.plan.alone.told}"
    )


def off_at(found: Speculated) -> float:
    """Return the batch above which the record's depth goes off: its gain is shown that far, or no more measured."""
    return found.plan.alone.off_at


def _condition(found: Speculated) -> str:
    labels, losing = _within(found), _left_out(found)
    where = f"requests labelled {', '.join(labels)}" if labels else "all requests"
    where += f" but those labelled {', '.join(losing)}" if losing else ""
    greedy = " at temperature 0" if found.greedy_only else ""
    return f"{where}{greedy}, while a replica decodes at most {off_at(found):.1f} streams at once"


def _within(found: Speculated) -> list[str]:
    """Return the labels that the record is bound to; none where requests without a label gain, which no cut names."""
    return [] if UNLABELLED in found.gaining else list(found.gaining)


def _left_out(found: Speculated) -> list[str]:
    """Return the labels to leave out where the record is bound to none: all that were not shown to gain."""
    if UNLABELLED not in found.gaining:
        return []
    shown = {one.label for one in found.cuts if one.pays is Pays.GAINS and one.temperature == 0.0}
    return sorted({one.label for one in found.cuts} - shown)


def _slice(found: Speculated) -> str:
    cuts = [f"{Dimension.LABEL.value}={label}" for label in _within(found)]
    if found.greedy_only:
        cuts.append(f"{Dimension.TEMPERATURE.value}=0")
    return f"slice = {toml_text(cuts)}\n" if cuts else ""


def _without(found: Speculated) -> list[str]:
    """What was not shown to gain, or to stay valid with drafts, is left out."""
    labels = [f"{Dimension.LABEL.value}={label}" for label in _left_out(found)]
    if found.schema_combinable:
        return labels
    return [*labels, f"{Dimension.CONSTRAINT.value}={Constraint.JSON_SCHEMA.value}"]


def _trigger(one: TriggerSpec) -> str:
    lines = [
        "",
        "[[triggers]]",
        f"name = {toml_text(one.name)}",
        f'signal = "{one.signal.value}"',
        f"off_at = {one.off_at:g}",
        f"off_when_above = {str(one.off_when_above).lower()}",
        f"min_samples = {one.min_samples}",
        f"because = {toml_text(one.because)}",
    ]
    if one.on_at is not None:
        lines.append(f"on_at = {one.on_at:g}")
    if one.cut is not None:
        lines += [f"cut = {toml_text(str(one.cut))}", f'action = "{one.action.value}"']
    return "\n".join(lines) + "\n"
