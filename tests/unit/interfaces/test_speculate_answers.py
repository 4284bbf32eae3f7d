"""What measuring drafting writes: a lever record that can be proposed, tables, a page, lists of numbers on options."""

import asyncio
import tomllib

import click
import msgspec
import pytest
from draft_kit import REVISION, FakeStage, Law, ask_of, edit

from trimtab.core.break_even import BreakEven
from trimtab.core.lever import TriggerAction
from trimtab.core.revision import Speculation, SpeculationMethod
from trimtab.core.stats import Interval
from trimtab.core.types import Technique
from trimtab.interfaces.speculate_cli import _Numbers
from trimtab.interfaces.speculate_html import page
from trimtab.interfaces.speculate_lever import lever_record, off_at
from trimtab.interfaces.speculate_view import cut_rows, point_rows, summary_words
from trimtab.levers.speculation_found import Speculated
from trimtab.rollout.short_record import complete, parse_record
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.speculate import Speculator
from trimtab.runtime.speculate_answer import answer_of
from trimtab.runtime.speculate_ask import SpeculateAsk


def find(stage: FakeStage, ask: SpeculateAsk) -> Speculated:
    speculator = Speculator(ask, SystemClock(), lambda *_: None)
    measured = asyncio.run(speculator.measure(stage))  # type: ignore[arg-type]
    return answer_of(measured, ask, REVISION, machine="here", took_s=1.0)


@pytest.fixture(scope="module")
def paying() -> Speculated:
    return find(FakeStage(Law(base=10.0, token=0.6)), ask_of())


def test_record_can_be_proposed_as_it_is(paying: Speculated) -> None:
    """The parser of lever records takes it and it completes for a plain fleet; the slice is what gains."""
    text = lever_record(paying)
    assert text is not None
    short = parse_record(text, source="lever.toml")
    assert short.technique is Technique.SPECULATION
    assert "label=edit" in short.slice
    record = complete(short, baseline=REVISION, now_s=0.0)
    assert record.revision is not None
    assert record.revision.speculation == paying.speculation
    assert record.revision.speculation.method is SpeculationMethod.NGRAM_SIMPLE


def test_record_expects_what_was_measured(paying: Speculated) -> None:
    """The ratio of time per token of the cuts that gain, within their intervals."""
    text = lever_record(paying)
    assert text is not None
    expected = tomllib.loads(text)["expected"]["tpot_ms"]
    assert expected["low"] <= expected["ratio"] <= expected["high"] < 1.0


def test_record_watches_the_break_even_and_drafts_by_temperature(paying: Speculated) -> None:
    """Off above the break-even, on again lower; what falls at one temperature goes off there."""
    text = lever_record(paying)
    assert text is not None
    triggers = parse_record(text, source="lever.toml").triggers
    batch = next(one for one in triggers if one.name == "batch-over-break-even")
    assert batch.on_at is not None
    assert batch.on_at < batch.off_at == off_at(paying)
    assert f"at most {off_at(paying):.1f} streams" in parse_record(text, source="").condition
    assert any(one.action is TriggerAction.DISABLE_CUT for one in triggers)


def test_record_leaves_out_answers_bound_to_a_schema_unless_they_stayed_valid() -> None:
    """Shown to stay valid: in; broken or not measured: out."""
    stayed = lever_record(find(FakeStage(), ask_of()))
    broken = lever_record(find(FakeStage(broken=True), ask_of()))
    unknown = lever_record(find(FakeStage(), ask_of(*(edit(n) for n in range(4)))))
    assert stayed is not None
    assert broken is not None
    assert unknown is not None
    assert tomllib.loads(stayed)["without"] == []
    assert tomllib.loads(broken)["without"] == ["constraint=json_schema"]
    assert tomllib.loads(unknown)["without"] == ["constraint=json_schema"]


def relabelled(found: Speculated, names: dict[str, str]) -> Speculated:
    """The same figures under other labels."""
    cuts = tuple(
        msgspec.structs.replace(one, label=names.get(one.label, one.label)) for one in found.cuts
    )
    gaining = tuple(names.get(label, label) for label in found.gaining)
    return msgspec.structs.replace(found, cuts=cuts, gaining=gaining)


def test_labels_that_lose_are_left_out_where_requests_without_a_label_gain(
    paying: Speculated,
) -> None:
    """No cut names what has no label, so the record is bound to none and names what it leaves out."""
    text = lever_record(relabelled(paying, {"edit": "all"}))
    assert text is not None
    record = tomllib.loads(text)
    assert not any(cut.startswith("label=") for cut in record.get("slice", []))
    assert "label=chat" in record["without"]
    assert "but those labelled" in record["condition"]
    assert "label=chat" in [str(cut) for cut in parse_record(text, source="lever.toml").without]


def test_nothing_is_left_out_where_all_that_was_measured_gains() -> None:
    """One label, and that none at all: no cut by label."""
    only = find(FakeStage(Law(base=10.0, token=0.6)), ask_of(*(edit(n) for n in range(4))))
    text = lever_record(relabelled(only, {"edit": "all"}))
    assert text is not None
    assert tomllib.loads(text)["without"] == ["constraint=json_schema"]
    assert "all requests" in tomllib.loads(text)["condition"]


def test_record_is_toml_whatever_a_label_is(paying: Speculated) -> None:
    """Quotes, an end of line, a sign beyond 16 bits: they are read back as they were."""
    label = 'so "it" is\n= \U0001f600 \x7f'
    named = relabelled(paying, {"edit": label})
    text = lever_record(msgspec.structs.replace(named, because=f"it gains on {label}"))
    assert text is not None
    assert f"label={label}" in tomllib.loads(text)["slice"]


def test_record_says_what_is_measured_and_what_is_fitted(paying: Speculated) -> None:
    """Its premise and the reason of its batch trigger tell the two apart."""
    text = lever_record(paying)
    assert text is not None
    assert paying.plan.alone.batch is None
    assert 'because = "nothing was measured above batch 8"' in text
    even = BreakEven(batch=5.0, low=4.0, high=7.0, measured_to=8)
    plan = msgspec.structs.replace(paying.plan, alone=even)
    text = lever_record(msgspec.structs.replace(paying, plan=plan))
    assert text is not None
    record = tomllib.loads(text)
    batch = next(one for one in record["triggers"] if one["name"] == "batch-over-break-even")
    assert "edit, measured: " in record["premise"]
    assert "intervals: 5.0 streams [4.0, 7.0]" in record["premise"]
    assert "its gain is shown up to 4.0 streams" in record["premise"]
    assert (
        batch["because"] == "above batch 4.0 no gain is shown; break-even: 5.0 streams [4.0, 7.0]"
    )
    assert batch["off_at"] == 4.0
    assert "at most 4.0 streams at once" in record["condition"]


def test_no_record_where_it_stays_off() -> None:
    """Nothing is proposed that loses."""
    assert lever_record(find(FakeStage(Law(base=0.1, token=10.0, looking=1.0)), ask_of())) is None


def test_page_tells_every_point_and_cut_and_needs_nothing_else(paying: Speculated) -> None:
    """Two pictures, every batch and kind of traffic; nothing is fetched from elsewhere."""
    shown = page(paying)
    assert shown.count("<svg") == 2
    assert all(one.label in shown for one in paying.cuts)
    assert "http://" not in shown.replace("http://www.w3.org/2000/svg", "")


def test_rows_tell_n_and_intervals(paying: Speculated) -> None:
    """No drafts is the measure of itself; every other point has an interval; requests are counted."""
    rows = point_rows(paying)
    assert len(rows) == len(paying.points)
    assert all("[" in row[-1] for row in rows if row[1] != "none")
    assert any(row[2] == "4 of 4" for row in cut_rows(paying.cuts))


def test_summary_says_the_depth_of_every_batch(paying: Speculated) -> None:
    """And how many points were predicted well."""
    words = "\n".join(summary_words(paying))
    assert all(f"at {one.batch}" in words for one in paying.plan.choices)
    assert f"of {len(paying.points)} points" in words


@pytest.mark.parametrize(
    ("even", "words"),
    [
        (BreakEven(batch=5.0, low=4.0, high=7.0, measured_to=32), "5.0 streams [4.0, 7.0]"),
        (BreakEven(batch=5.0, low=4.0, high=None, measured_to=32), "5.0 streams [4.0, over 32]"),
        (
            BreakEven(batch=None, low=None, high=None, measured_to=32),
            "not reached up to batch 32 measured",
        ),
        (
            BreakEven(batch=None, low=5.0, high=None, measured_to=32),
            "not reached up to batch 32 measured, may lie as low as 5.0 (95%)",
        ),
        (
            BreakEven(batch=0.0, low=0.0, high=7.0, measured_to=32),
            "no gain at the smallest batch [0.0, 7.0]",
        ),
    ],
)
def test_break_even_is_said_with_its_bounds(even: BreakEven, words: str) -> None:
    """Not found within what was measured is said so."""
    assert words == even.told


def test_lists_of_numbers_are_sorted_and_within_bounds() -> None:
    """A number twice is one; a word or one out of bounds is refused."""
    kind = _Numbers(1, 256, whole=True)
    assert kind.convert("8,1,8", None, None) == (1, 8)
    for wrong in ("0", "1,x", "1.5", ""):
        with pytest.raises(click.BadParameter):
            kind.convert(wrong, None, None)


def test_speculation_of_an_answer_is_of_the_engine(paying: Speculated) -> None:
    """Each depth has its n-gram, none longer than the depth, which the engine would never draft."""
    assert all(
        (one.match_tokens or 0) <= (one.draft_tokens_max or 0) for one in paying.settings.values()
    )
    assert all(isinstance(one, Speculation) for one in paying.settings.values())
    assert msgspec.json.encode(paying)


def test_expected_gain_is_not_that_of_answers_that_are_left_out(paying: Speculated) -> None:
    """Answers of the same label bound to a schema whose validity is unknown: no figure of theirs is promised."""
    (edit_cut,) = [one for one in paying.cuts if one.label == "edit" and one.temperature == 0.0]
    far = msgspec.structs.replace(
        edit_cut.tpot_ms, ratio=0.1, interval=Interval(low=0.05, high=0.15, level=0.95)
    )
    schema = msgspec.structs.replace(edit_cut, constraint="json_schema", tpot_ms=far)
    both = msgspec.structs.replace(paying, cuts=(*paying.cuts, schema), schema_combinable=None)
    with_it, without = (
        tomllib.loads(lever_record(one) or "")
        for one in (both, msgspec.structs.replace(paying, schema_combinable=None))
    )
    assert with_it["expected"] == without["expected"]
    assert "constraint=json_schema" in with_it["without"]


def test_validity_is_told_with_its_counts(paying: Speculated) -> None:
    """As valid as without may be two of two thousand: the figures stand beside it."""
    (line,) = [one for one in summary_words(paying) if "bound to a schema" in one]
    assert "valid with drafts, " in line
    unknown = msgspec.structs.replace(paying, schema_combinable=None)
    (line,) = [one for one in summary_words(unknown) if "bound to a schema" in one]
    assert "so left out" in line
