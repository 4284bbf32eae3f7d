"""Judgements that facts raise about caches, balance, speculation, comparisons, layouts and transfers.

Each rule is tried on its case, on other numbers, with a needed fact missing (cannot tell: None) and where it must stay
silent.
"""

import msgspec
import pytest
from served_kit import SERVED_8B, Values, answer_of, judged

from trimtab.diagnosis.served_advice import Answer, Judgement, Subject
from trimtab.diagnosis.served_facts import (
    AcceptanceSlice,
    ArmTimes,
    BalanceFacts,
    CacheFacts,
    ExpertExchange,
    GapChange,
    Goal,
    HandOffFacts,
    LayoutFacts,
    LayoutTime,
    Link,
    OutputDifference,
    ReplicaLoad,
    ServedFacts,
    SpeculationFacts,
    TpotRatio,
    TransferFacts,
    ValiditySlice,
)
from trimtab.diagnosis.served_names import ServedName as N
from trimtab.diagnosis.served_names import high_of

SILENT = "silent"


def found(subject: Subject, facts: ServedFacts, values: Values | None = None) -> Judgement:
    """A judgement that must be there."""
    judgement = judged(subject, facts, values)
    assert judgement is not None
    return judgement


ARM_OFF = ArmTimes(chunk_gap_ms=5.0, tokens_per_chunk=1.0)


@pytest.mark.parametrize(
    ("after", "answer"),
    [
        (ArmTimes(chunk_gap_ms=8.7, tokens_per_chunk=2.66), Answer.FASTER),
        (ArmTimes(e2e_ms=1100, ttft_ms=100, output_tokens=101), Answer.SLOWER),
        (ArmTimes(chunk_gap_ms=5.05, tokens_per_chunk=1.0), Answer.UNCHANGED),
        (ArmTimes(output_tokens=200, chunks=1, e2e_ms=900, ttft_ms=900), Answer.NOT_OBSERVABLE),
        (ArmTimes(chunk_gap_ms=8.7), None),
        (ArmTimes(e2e_ms=1100, ttft_ms=100), None),
    ],
)
def test_arms_are_compared_per_token_and_never_per_chunk(
    after: ArmTimes, answer: Answer | None
) -> None:
    """More tokens per chunk make a longer gap and a faster stream; without token counts nothing is told."""
    assert answer_of(Subject.TOKEN_TIME, ServedFacts(arms=(ARM_OFF, after))) == answer


def test_gap_of_chunks_is_shown_apart_from_the_time_per_token() -> None:
    """5.0 -> 3.27 ms per token (-35%) beside a chunk gap of +74%; without arms there is nothing to say."""
    facts = ServedFacts(arms=(ARM_OFF, ArmTimes(chunk_gap_ms=8.7, tokens_per_chunk=2.66)))
    numbers = found(Subject.TOKEN_TIME, facts).numbers
    assert numbers["token_ms_after"] == pytest.approx(3.27, abs=0.005)
    assert numbers["token_change"] == pytest.approx(-0.346, abs=0.001)
    assert numbers["chunk_gap_change"] == pytest.approx(0.74)
    assert answer_of(Subject.TOKEN_TIME, ServedFacts()) == SILENT


@pytest.mark.parametrize(
    ("proxy", "engine", "answer"),
    [
        (0.95, 0.0, Answer.TRUST_ENGINE),
        (0.1, 0.6, Answer.TRUST_ENGINE),
        (0.55, 0.6, Answer.SOURCES_AGREE),
        (0.95, None, None),
        (None, 0.0, SILENT),
    ],
)
def test_engine_is_trusted_over_a_proxy(
    proxy: float | None, engine: float | None, answer: Answer | str | None
) -> None:
    """Hit shares that differ are a conflict, and the engine did the work."""
    facts = ServedFacts(cache=CacheFacts(proxy_hit_share=proxy))
    assert answer_of(Subject.CACHE_SOURCES, facts, {N.PREFIX_HIT_SHARE: engine}) == answer


@pytest.mark.parametrize(
    ("predicted", "engine", "answer"),
    [
        (0.0, 0.7, Answer.KEY_MISMATCH),
        (0.05, 0.4, Answer.KEY_MISMATCH),
        (0.65, 0.7, Answer.KEYS_MATCH),
        (0.7, 0.1, Answer.TRUST_ENGINE),
        (0.0, None, None),
        (None, 0.7, None),
        (None, None, SILENT),
    ],
)
def test_router_that_never_predicts_what_engines_hit_has_another_key(
    predicted: float | None, engine: float | None, answer: Answer | str | None
) -> None:
    """Hits that a router never saw coming are a key mismatch and no statement about caching."""
    facts = ServedFacts(
        cache=CacheFacts(salted_predicted_share=predicted, salted_engine_share=engine)
    )
    assert answer_of(Subject.SALTED_KEYS, facts) == answer


@pytest.mark.parametrize(
    ("enabled", "same", "other", "answer"),
    [
        (False, True, False, Answer.NOT_PROVEN),
        (False, False, False, Answer.NOT_PROVEN),
        (True, True, False, Answer.PROVEN),
        (True, True, True, Answer.BROKEN),
        (True, False, False, Answer.NOT_PROVEN),
        (None, True, False, None),
        (True, None, False, None),
        (True, None, None, SILENT),
    ],
)
def test_isolation_is_proven_only_by_both_sides_of_a_cache_that_is_on(
    enabled: bool | None, same: bool | None, other: bool | None, answer: Answer | str | None
) -> None:
    """No hit across tenants proves nothing while caching is off or nobody hits at all."""
    facts = ServedFacts(
        cache=CacheFacts(enabled=enabled, same_tenant_hit=same, other_tenant_hit=other)
    )
    assert answer_of(Subject.ISOLATION, facts) == answer


def replicas(*rows: tuple[str, float | None, float | None, float]) -> ServedFacts:
    """Servers as (name, KV share, waiting, match share)."""
    return ServedFacts(
        balance=BalanceFacts(
            replicas=tuple(
                ReplicaLoad(name=name, kv_used_share=kv, waiting=waiting, match_share=match)
                for name, kv, waiting, match in rows
            )
        )
    )


@pytest.mark.parametrize(
    ("facts", "choice"),
    [
        (replicas(("a", 0.97, 9, 0.9), ("b", 0.40, 0, 0.6), ("c", 0.35, 0, 0.0)), "b"),
        (replicas(("a", 0.90, 6, 0.8), ("b", 0.50, 1, 0.2), ("c", 0.30, 0, 0.3)), "c"),
        (replicas(("a", 0.40, 0, 0.9), ("b", 0.40, 0, 0.6), ("c", 0.40, 0, 0.0)), "a"),
        (replicas(("a", 0.30, 30, 0.0), ("b", 0.30, 0, 0.0)), "b"),
    ],
    ids=["hot spot", "hot spot, other numbers", "balanced", "no match"],
)
def test_load_bound_comes_before_the_longest_prefix(facts: ServedFacts, choice: str) -> None:
    """A hot server loses its prefix's traffic, balanced ones keep it, and no match goes to the idle one."""
    judgement = found(Subject.PLACEMENT, facts)
    assert (judgement.answer, judgement.choice) == (Answer.CHOSEN, choice)


def test_unknown_load_is_not_idle() -> None:
    """A server that tells neither KV nor queue gets nothing on the strength of silence."""
    judgement = found(Subject.PLACEMENT, replicas(("a", 0.9, 9, 0.9), ("b", None, None, 0.0)))
    assert (judgement.answer, judgement.would_tell) == (None, "KV usage or waiting requests of b")
    assert answer_of(Subject.PLACEMENT, ServedFacts()) == SILENT


@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        (BalanceFacts(routers=4, seen_gap=20, true_gap=80, threshold=64), Answer.IMBALANCED),
        (BalanceFacts(routers=2, seen_gap=10, true_gap=20, threshold=16), Answer.IMBALANCED),
        (BalanceFacts(routers=4, seen_gap=5, true_gap=20, threshold=64), Answer.BALANCED),
        (BalanceFacts(routers=4, seen_gap=20, threshold=64), None),
        (BalanceFacts(routers=4, true_gap=80), None),
        (BalanceFacts(), SILENT),
    ],
)
def test_gap_that_counts_is_the_engines_own(
    facts: BalanceFacts, answer: Answer | str | None
) -> None:
    """One of several routers sees a part of the gap: only the engines' values are judged."""
    assert answer_of(Subject.BALANCE, ServedFacts(balance=facts)) == answer


RATIOS = tuple(
    TpotRatio(batch=batch, ratio=ratio)
    for batch, ratio in ((1, 0.55), (8, 0.70), (32, 0.95), (64, 1.10), (256, 1.9))
)


@pytest.mark.parametrize(
    ("ratios", "batches", "choice"),
    [
        (RATIOS, (20, 90, 60, 40), "on, off, off, on"),
        (RATIOS, (63,), "on"),
        ((TpotRatio(batch=1, ratio=0.8), TpotRatio(batch=16, ratio=1.2)), (4, 16, 12, 8), "on, off, off, on"),
        ((TpotRatio(batch=1, ratio=1.3), TpotRatio(batch=16, ratio=0.9)), (1, 16, 8), "off, off, off"),
        ((TpotRatio(batch=1, ratio=0.5), TpotRatio(batch=16, ratio=0.9)), (1, 400), "on, on"),
    ],
    ids=["case", "below the mark", "other numbers", "never pays", "always pays"],
)  # fmt: skip
def test_drafting_goes_off_above_the_measured_batch_and_on_again_lower(
    ratios: tuple[TpotRatio, ...], batches: tuple[float, ...], choice: str
) -> None:
    """Hysteresis: between the break-even and the first batch that loses the state stays."""
    facts = SpeculationFacts(
        ratios=ratios, is_on=True, batches=tuple(map(float, batches)), waiting_share=0.0
    )
    judgement = found(Subject.SPECULATION_BATCH, ServedFacts(speculation=facts))
    assert judgement.choice == choice
    assert judgement.answer is (Answer.ON if choice.endswith("on") else Answer.OFF)


def test_marks_of_the_case_are_sixty_four_and_the_break_even_below() -> None:
    """Off at the first measured batch that loses; on at the interpolated break-even."""
    facts = SpeculationFacts(ratios=RATIOS, is_on=True, batches=(20.0,))
    numbers = found(Subject.SPECULATION_BATCH, ServedFacts(speculation=facts)).numbers
    assert numbers["off_at_batch"] == 64
    assert numbers["on_at_batch"] == pytest.approx(42.67, abs=0.01)


def test_drafting_without_ratios_or_batch_cannot_be_told() -> None:
    """One measured batch draws no line, and without a live batch no side of it is known."""
    one = ServedFacts(speculation=SpeculationFacts(ratios=RATIOS[:1], batches=(8.0,)))
    dark = ServedFacts(speculation=SpeculationFacts(ratios=RATIOS))
    for facts in (one, dark):
        assert answer_of(Subject.SPECULATION_BATCH, facts) is None
    assert answer_of(Subject.SPECULATION_BATCH, dark, {N.RUNNING_MEAN: 100}) is Answer.OFF
    assert answer_of(Subject.SPECULATION_BATCH, ServedFacts()) == SILENT


@pytest.mark.parametrize(
    ("step", "proposer", "accepted", "answer"),
    [
        (2.0, 3.0, None, Answer.REFUSE),
        (5.0, 20.0, 1.5, Answer.REFUSE),
        (20.0, 2.0, 2.0, Answer.ON),
        (20.0, 2.0, None, None),
        (None, 3.0, 2.0, None),
        (None, None, 2.0, SILENT),
    ],
)
def test_draft_that_costs_more_than_it_saves_is_refused(
    step: float | None, proposer: float | None, accepted: float | None, answer: Answer | str | None
) -> None:
    """A proposer slower than the steps it spares makes everything slower, whatever it gets right."""
    facts = SpeculationFacts(step_ms=step, proposer_ms=proposer, tokens_per_draft=accepted)
    assert answer_of(Subject.SPECULATION_COST, ServedFacts(speculation=facts)) == answer


@pytest.mark.parametrize(
    ("waiting", "answer"),
    [(1.0, Answer.NO_VERDICT), (0.97, Answer.NO_VERDICT), (0.2, SILENT), (None, None)],
)
def test_saturated_test_gives_no_verdict_for_low_load(
    waiting: float | None, answer: Answer | str | None
) -> None:
    """Ratios measured while requests waited throughout say nothing of a calm server."""
    facts = SpeculationFacts(ratios=RATIOS, batches=(20.0,), waiting_share=waiting)
    assert answer_of(Subject.SPECULATION_LOAD, ServedFacts(speculation=facts)) == answer


@pytest.mark.parametrize(
    ("listed", "wanted", "answer"),
    [
        (("json_schema",), ("json_schema",), Answer.REFUSE),
        (("lora", "grammar"), ("grammar",), Answer.REFUSE),
        (("lora",), ("json_schema",), Answer.KEEP),
        (None, ("json_schema",), None),
        (("json_schema",), (), SILENT),
    ],
)
def test_pair_that_an_engine_cannot_combine_is_refused_before_traffic(
    listed: tuple[str, ...] | None, wanted: tuple[str, ...], answer: Answer | str | None
) -> None:
    """A listed pair is refused, an unknown list is no list."""
    facts = SpeculationFacts(uncombinable=listed, wanted_with=wanted)
    assert answer_of(Subject.SPECULATION_PAIR, ServedFacts(speculation=facts)) == answer


def mix(*rows: tuple[str, float, float, float, float]) -> ServedFacts:
    """Slices as (name, share before, share after, acceptance before, acceptance after)."""
    return ServedFacts(
        acceptance=tuple(
            AcceptanceSlice(
                name=name,
                share_before=before,
                share_after=after,
                acceptance_before=accepted_before,
                acceptance_after=accepted_after,
            )
            for name, before, after, accepted_before, accepted_after in rows
        )
    )


@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        (mix(("T=0", 0.8, 0.3, 0.72, 0.72), ("T=1", 0.2, 0.7, 0.41, 0.41)), Answer.MIX_CHANGED),
        (mix(("code", 0.5, 0.1, 0.9, 0.89), ("chat", 0.5, 0.9, 0.3, 0.31)), Answer.MIX_CHANGED),
        (mix(("T=0", 0.8, 0.3, 0.72, 0.50), ("T=1", 0.2, 0.7, 0.41, 0.41)), Answer.ACCEPTANCE_FELL),
        (mix(("T=0", 0.8, 0.8, 0.72, 0.72), ("T=1", 0.2, 0.2, 0.41, 0.41)), Answer.UNCHANGED),
        (mix(("T=0", 0.8, 0.3, 0.72, 0.72)), None),
        (mix(("T=0", 0.8, 0.3, 0.72, 0.7), ("T=1", 0.1, 0.2, 0.4, 0.4)), None),
        (ServedFacts(), SILENT),
    ],
    ids=["case", "other numbers", "slice fell", "nothing changed", "one slice", "not all", "none"],
)
def test_pooled_acceptance_is_split_into_mix_and_slices(
    facts: ServedFacts, answer: Answer | str | None
) -> None:
    """A change in the traffic's mix is no regression of the drafts."""
    assert answer_of(Subject.ACCEPTANCE_MIX, facts) == answer


def test_mix_explains_the_whole_fall_of_the_case() -> None:
    """0.658 -> 0.503, all of it by the mix; speculation is kept for greedy traffic."""
    judgement = found(
        Subject.ACCEPTANCE_MIX,
        mix(("T=0", 0.8, 0.3, 0.72, 0.72), ("T=1", 0.2, 0.7, 0.41, 0.41)),
    )
    assert judgement.numbers["pooled_before"] == pytest.approx(0.658)
    assert judgement.numbers["pooled_after"] == pytest.approx(0.503)
    assert judgement.numbers["change_by_mix"] == pytest.approx(-0.155)
    assert judgement.choice == "T=0"


@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        (OutputDifference(between_arms=0.02, n=1000), Answer.MEASURE_NOISE_FIRST),
        (OutputDifference(between_arms=0.02, n=1000, baseline_twice=0.018, n_twice=1000), Answer.WITHIN_NOISE),
        (OutputDifference(between_arms=0.20, n=500, baseline_twice=0.02, n_twice=500), Answer.BEYOND_NOISE),
    ],
)  # fmt: skip
def test_differing_outputs_blame_nothing_before_the_noise_is_known(
    facts: OutputDifference, answer: Answer
) -> None:
    """Batch size alone can change greedy text: baseline against itself comes first."""
    assert answer_of(Subject.OUTPUT_DIFFERENCE, ServedFacts(outputs=facts)) is answer
    assert answer_of(Subject.OUTPUT_DIFFERENCE, ServedFacts()) == SILENT


def validity(share: float, before: int, after: int, n: int) -> ServedFacts:
    """A slice of JSON answers beside free text that stays as it is."""
    return ServedFacts(
        validity=(
            ValiditySlice(
                name="free", traffic_share=1.0 - share, valid_before=9_990, n_before=10_000,
                valid_after=9_990, n_after=10_000,
            ),
            ValiditySlice(
                name="json", traffic_share=share, valid_before=before, n_before=n,
                valid_after=after, n_after=n,
            ),
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        (validity(0.06, 798, 728, 800), Answer.OFF_FOR_SLICE),
        (validity(0.2, 1990, 1700, 2000), Answer.OFF_FOR_SLICE),
        (validity(0.06, 7990, 7988, 8000), Answer.KEEP),
        (validity(0.06, 20, 19, 20), None),
        (validity(0.06, 0, 0, 0), None),
        (ServedFacts(), SILENT),
    ],
    ids=["case", "other numbers", "unharmed", "too few", "none counted", "no slices"],
)
def test_invalid_answers_of_one_slice_are_not_averaged_away(
    facts: ServedFacts, answer: Answer | str | None
) -> None:
    """Speculation goes off for the harmed slice only, however little the average falls."""
    assert answer_of(Subject.SPECULATION_VALIDITY, facts) == answer


def test_harmed_slice_is_named_with_the_small_fall_of_the_average() -> None:
    """91% against 99.8% on 6% of the traffic is half a point overall, and still decides."""
    judgement = found(Subject.SPECULATION_VALIDITY, validity(0.06, 798, 728, 800))
    assert judgement.choice == "json"
    assert judgement.numbers["overall_fall"] == pytest.approx(0.00525)


PAIR = LayoutFacts(accelerators=2, link=Link.PCIE, fits_on=1, goal=Goal.LATENCY)
LAYOUT = LayoutFacts(accelerators=8, link=Link.NVLINK, fits_on=2, goal=Goal.THROUGHPUT)
MEASURED = (
    LayoutTime(tensor_parallel=2, tpot_ms=27.8),
    LayoutTime(tensor_parallel=4, tpot_ms=20.0),
    LayoutTime(tensor_parallel=8, tpot_ms=15.9),
)
SINGLE = LayoutFacts(
    accelerators=8, fits_on=2, goal=Goal.LATENCY, tpot_ms_target=17.0, measured=MEASURED
)


@pytest.mark.parametrize(
    ("layout", "answer", "choice"),
    [
        (msgspec.structs.replace(LAYOUT, tpot_ms_target=40.0), Answer.REPLICAS, "4 replicas of TP2"),
        (msgspec.structs.replace(LAYOUT, fits_on=1, accelerators=4), Answer.REPLICAS, "4 replicas of TP1"),
        (msgspec.structs.replace(LAYOUT, tpot_ms_target=22.0, measured=MEASURED), Answer.REPLICAS, "2 replicas of TP4"),
        (SINGLE, Answer.TENSOR_PARALLEL, "TP8"),
        (msgspec.structs.replace(SINGLE, tpot_ms_target=25.0), Answer.TENSOR_PARALLEL, "TP4"),
        (msgspec.structs.replace(SINGLE, tpot_ms_target=10.0), Answer.REJECT, ""),
        (PAIR, Answer.NO_TENSOR_PARALLEL, "2 replicas of TP1"),
        (msgspec.structs.replace(LAYOUT, fits_on=16), Answer.REJECT, ""),
        (msgspec.structs.replace(LAYOUT, fits_on=None), None, ""),
        (msgspec.structs.replace(SINGLE, measured=()), None, ""),
        (msgspec.structs.replace(LAYOUT, goal=None), None, ""),
        (LayoutFacts(), SILENT, ""),
    ],
)  # fmt: skip
def test_more_ranks_only_for_fit_or_single_streams(
    layout: LayoutFacts, answer: Answer | str | None, choice: str
) -> None:
    """Throughput takes replicas of the smallest layout that fits; a latency target takes the smallest that meets it."""
    facts = ServedFacts(layout=layout)
    assert answer_of(Subject.TENSOR_PARALLEL, facts) == answer
    if answer != SILENT:
        assert found(Subject.TENSOR_PARALLEL, facts).choice == choice


def test_cost_per_accelerator_is_stated_beside_the_layout_that_meets_the_target() -> None:
    """TP8 at 15.9 ms gives under half of TP2's tokens per accelerator, and that is said."""
    judgement = found(Subject.TENSOR_PARALLEL, ServedFacts(layout=SINGLE))
    assert judgement.numbers["tokens_per_s_per_accelerator"] == pytest.approx(7.86, abs=0.01)
    assert "18.0 at TP2" in judgement.because


@pytest.mark.parametrize(
    ("layout", "answer", "choice"),
    [
        (LayoutFacts(heads=28, kv_heads=4, accelerators=8), Answer.FITS_HEADS, "TP4 x 2"),
        (LayoutFacts(heads=32, kv_heads=8, accelerators=8), Answer.FITS_HEADS, "TP8 x 1"),
        (LayoutFacts(heads=64, kv_heads=8, tensor_parallel=16, tensor_parallel_now=8), Answer.NO_KV_SAVED, ""),
        (LayoutFacts(heads=64, kv_heads=8, tensor_parallel=8, tensor_parallel_now=4), Answer.FITS_HEADS, ""),
        (LayoutFacts(latent_attention=True, tensor_parallel=8), Answer.ATTENTION_DATA_PARALLEL, ""),
        (LayoutFacts(heads=52, tensor_parallel=3), Answer.REJECT, "2, 4"),
        (LayoutFacts(heads=40, tensor_parallel=6), Answer.REJECT, "5, 8"),
        (LayoutFacts(heads=64, tensor_parallel=16, tensor_parallel_now=8), None, ""),
        (LayoutFacts(tensor_parallel=3), None, ""),
        (LayoutFacts(latent_attention=True), None, ""),
        (LayoutFacts(heads=28, kv_heads=4), None, ""),
        (LayoutFacts(accelerators=8), SILENT, ""),
    ],
)  # fmt: skip
def test_heads_decide_which_sizes_can_be(
    layout: LayoutFacts, answer: Answer | str | None, choice: str
) -> None:
    """Sizes divide the heads; beyond the KV heads no KV is saved; a latent KV is copied to every rank."""
    facts = ServedFacts(layout=layout)
    assert answer_of(Subject.HEADS, facts) == answer
    if answer != SILENT:
        assert found(Subject.HEADS, facts).choice == choice


def test_sizes_of_the_case_are_listed_and_doubled_kv_is_counted() -> None:
    """28 heads over 4 KV heads allow 1, 2 and 4, 7 only with uneven copies; TP16 over 8 KV heads doubles KV."""
    text = found(
        Subject.HEADS, ServedFacts(layout=LayoutFacts(heads=28, kv_heads=4, accelerators=8))
    ).because
    assert text.startswith("TP 1, 2, 4 divide 28 heads; TP7 only where")
    doubled = LayoutFacts(heads=64, kv_heads=8, tensor_parallel=16, tensor_parallel_now=8)
    numbers = found(Subject.HEADS, ServedFacts(layout=doubled)).numbers
    assert numbers == {"kv_heads_per_rank": 1.0, "kv_total_ratio": 2.0}
    copies = found(
        Subject.HEADS, ServedFacts(layout=LayoutFacts(latent_attention=True, tensor_parallel=8))
    )
    assert copies.numbers == {"kv_copies": 8.0}


def test_heads_are_taken_from_the_model_where_facts_leave_them_out() -> None:
    """A model's shape answers as well as a number typed in."""
    facts = ServedFacts(model=SERVED_8B, layout=LayoutFacts(tensor_parallel=3))
    assert found(Subject.HEADS, facts).choice == "2, 4"


FEW = LayoutFacts(
    experts=8, experts_per_token=2, tokens_per_step=16, accelerators=8, link=Link.NVLINK
)
MANY = LayoutFacts(
    experts=256, experts_per_token=8, tokens_per_step=4000, accelerators=16,
    exchange=ExpertExchange.ALL_TO_ALL, expert_load_max_over_mean=1.2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "answer"),
    [
        (FEW, Answer.TENSOR_PARALLEL),
        (LayoutFacts(experts=128, tokens_per_step=64, accelerators=8), Answer.TENSOR_PARALLEL),
        (MANY, Answer.EXPERT_CANDIDATE),
        (msgspec.structs.replace(MANY, expert_load_max_over_mean=3.5), Answer.BALANCE_FIRST),
        (msgspec.structs.replace(MANY, exchange=ExpertExchange.ALL_REDUCE), Answer.NOTHING_SAVED),
        (msgspec.structs.replace(MANY, expert_load_max_over_mean=None), None),
        (msgspec.structs.replace(MANY, exchange=None), None),
        (msgspec.structs.replace(MANY, tokens_per_step=None), None),
        (LayoutFacts(accelerators=8), SILENT),
    ],
)  # fmt: skip
def test_expert_parallel_needs_tokens_experts_a_real_exchange_and_balance(
    layout: LayoutFacts, answer: Answer | str | None
) -> None:
    """Small steps stay tensor parallel, skew is measured first, an all-reduce saves nothing."""
    assert answer_of(Subject.EXPERT_PARALLEL, ServedFacts(layout=layout)) == answer


def test_straggler_factor_is_stated() -> None:
    """What every step waits for is the busiest rank's load over the mean."""
    skewed = msgspec.structs.replace(MANY, expert_load_max_over_mean=3.5)
    numbers = found(Subject.EXPERT_PARALLEL, ServedFacts(layout=skewed)).numbers
    assert numbers["straggler_factor"] == 3.5


MANY_DESCRIPTORS: Values = {
    N.TRANSFER_MS_MEAN: 174,
    N.TRANSFER_POST_MS_MEAN: 129,
    N.TRANSFER_BYTES_MEAN: 313e6,
    N.TRANSFER_DESCRIPTORS_MEAN: 40_064,
}


FEW_DESCRIPTORS: Values = {**MANY_DESCRIPTORS, N.TRANSFER_DESCRIPTORS_MEAN: 30}


def moved(gb_per_s: float) -> Values:
    """A transfer of one second."""
    return {N.TRANSFER_MS_MEAN: 1000, N.TRANSFER_BYTES_MEAN: gb_per_s * 1e9}


@pytest.mark.parametrize(
    ("values", "facts", "answer"),
    [
        (MANY_DESCRIPTORS, TransferFacts(link_bytes_per_s=400e9), Answer.DESCRIPTORS),
        ({**MANY_DESCRIPTORS, N.TRANSFER_MS_MEAN: 900, N.TRANSFER_POST_MS_MEAN: 700}, None, Answer.DESCRIPTORS),
        (moved(0.5), TransferFacts(transport="tcp", same_node=True), Answer.TRANSPORT),
        (moved(1.2), TransferFacts(transport="tcp", link_bytes_per_s=50e9), Answer.TRANSPORT),
        ({N.TRANSFER_MS_MEAN: 300}, TransferFacts(first_ms=38_000), Answer.SET_UP),
        ({N.TRANSFER_MS_MEAN: 50}, TransferFacts(first_ms=5_000), Answer.SET_UP),
        ({N.TRANSFER_MS_MEAN: 2000, high_of(N.TRANSFER_MS_P50): 300}, None, Answer.SET_UP),
        ({N.TRANSFER_MS_MEAN: 400, high_of(N.TRANSFER_MS_P50): 300}, None, None),
        (FEW_DESCRIPTORS, TransferFacts(link_bytes_per_s=10e9), Answer.NOTHING_BINDS),
        (moved(23), TransferFacts(link_bytes_per_s=25e9), Answer.BANDWIDTH),
        (moved(45), TransferFacts(link_bytes_per_s=50e9), Answer.BANDWIDTH),
        ({**moved(20), N.TRANSFER_POST_MS_MEAN: 10}, TransferFacts(link_bytes_per_s=50e9), Answer.NOTHING_BINDS),
        ({**MANY_DESCRIPTORS, N.TRANSFER_DESCRIPTORS_MEAN: None}, None, None),
        (moved(23), None, None),
        (moved(0.5), TransferFacts(link_bytes_per_s=25e9), None),
        ({N.TRANSFER_MS_MEAN: 300}, TransferFacts(first_ms=320), None),
        ({}, None, SILENT),
    ],
)  # fmt: skip
def test_what_binds_a_transfer_is_found_before_network_is_bought(
    values: Values, facts: TransferFacts | None, answer: Answer | str | None
) -> None:
    """Transport, descriptors, set-up and bandwidth are told apart; a slow transfer alone proves none of them."""
    assert answer_of(Subject.TRANSFER, ServedFacts(transfer=facts), values) == answer


def test_descriptors_of_the_case_are_counted_and_the_link_is_cleared() -> None:
    """40,064 descriptors of 7.6 KiB take 129 of 174 ms: the link of 400 GB/s is not the limit."""
    facts = ServedFacts(transfer=TransferFacts(link_bytes_per_s=400e9))
    judgement = found(Subject.TRANSFER, facts, MANY_DESCRIPTORS)
    assert judgement.numbers["bytes_per_s"] == pytest.approx(1.80e9, rel=0.01)
    assert "40,064 descriptors of 7.6 KiB" in judgement.because
    assert "the link (400 GB/s) is not the limit" in judgement.because


@pytest.mark.parametrize(
    ("hand", "answer"),
    [
        (HandOffFacts(transfer_failed=True, prompt_tokens=3000, local_limit_tokens=8000), Answer.LOCAL),
        (HandOffFacts(transfer_failed=True, prompt_tokens=30_000, local_limit_tokens=8000), Answer.FAIL_ONCE),
        (HandOffFacts(transfer_failed=True, prompt_tokens=3000), None),
        (HandOffFacts(moved_tokens=32_768, cached_on_decode=0), Answer.FAILED_TRANSFER),
        (HandOffFacts(moved_tokens=4_096, cached_on_decode=100), Answer.FAILED_TRANSFER),
        (HandOffFacts(moved_tokens=32_768, cached_on_decode=32_752), Answer.DELIVERED),
        (HandOffFacts(moved_tokens=32_768, cached_on_decode=32_751), None),
        (HandOffFacts(moved_tokens=32_768, cached_on_decode=32_639), Answer.FAILED_TRANSFER),
        (HandOffFacts(moved_tokens=32_768, cached_on_decode=16_384), Answer.FAILED_TRANSFER),
        (HandOffFacts(moved_tokens=1_000, prompt_tokens=1_000, cached_on_decode=999), Answer.DELIVERED),
        (HandOffFacts(moved_tokens=0, cached_on_decode=0), Answer.DELIVERED),
        (HandOffFacts(moved_tokens=32_768), None),
        (HandOffFacts(), SILENT),
    ],
)  # fmt: skip
def test_failed_hand_off_is_known_by_tokens_and_ends_once(
    hand: HandOffFacts, answer: Answer | str | None
) -> None:
    """Never decode on partial KV: local if small enough, else one error; a 200 without tokens is a failure."""
    assert answer_of(Subject.HAND_OFF, ServedFacts(hand_off=hand)) == answer


@pytest.mark.parametrize(
    ("key", "size", "missing", "answer"),
    [
        ("block_size", "1", 1, Answer.DELIVERED),
        ("block_size", "1", 2, Answer.FAILED_TRANSFER),
        ("block_size", "128", 128, Answer.DELIVERED),
        ("block_size", "128", 129, Answer.FAILED_TRANSFER),
        ("page_size", "64", 64, Answer.DELIVERED),
        ("page_size", "64", 65, Answer.FAILED_TRANSFER),
        ("block_size", "none", 16, Answer.DELIVERED),
    ],
)
def test_a_hand_off_may_lack_less_than_a_block_of_the_server(
    key: str, size: str, missing: int, answer: Answer
) -> None:
    """Servers count whole blocks; the last token is computed in any case. Half of the KV is no hand-off that came."""
    hand = HandOffFacts(moved_tokens=32_768, cached_on_decode=32_768 - missing)
    told = ServedFacts(hand_off=hand, effective={key: size})
    assert answer_of(Subject.HAND_OFF, told) == answer


def test_retry_budget_is_stated_with_a_failed_transfer() -> None:
    """No second prefill beyond the budget."""
    hand = HandOffFacts(transfer_failed=True, prompt_tokens=10, local_limit_tokens=100)
    assert "no second attempt" in found(Subject.HAND_OFF, ServedFacts(hand_off=hand)).because
    one = msgspec.structs.replace(hand, retries_left=1)
    assert "1 attempts are left" in found(Subject.HAND_OFF, ServedFacts(hand_off=one)).because


LEAK = HandOffFacts(
    failed_per_min=50, blocks_each=400, blocks_pool=60_000, hold_s=300, timeout_s=20
)


@pytest.mark.parametrize(
    ("hand", "answer"),
    [
        (LEAK, Answer.EXHAUSTS),
        (msgspec.structs.replace(LEAK, blocks_each=100, hold_s=3600), Answer.EXHAUSTS),
        (msgspec.structs.replace(LEAK, failed_per_min=2), Answer.BOUNDED),
        (msgspec.structs.replace(LEAK, blocks_pool=None), None),
        (msgspec.structs.replace(LEAK, hold_s=None), None),
        (HandOffFacts(timeout_s=20), SILENT),
    ],
)
def test_blocks_kept_by_failed_hand_offs_are_predicted(
    hand: HandOffFacts, answer: Answer | str | None
) -> None:
    """Rate times blocks times hold against the pool says when disaggregation must go."""
    assert answer_of(Subject.BLOCK_LEAK, ServedFacts(hand_off=hand)) == answer


def test_pool_of_the_case_is_exhausted_in_three_minutes() -> None:
    """50 x 400 blocks a minute fill 60,000 in three."""
    numbers = found(Subject.BLOCK_LEAK, ServedFacts(hand_off=LEAK)).numbers
    assert numbers["minutes_until_exhausted"] == pytest.approx(3.0)


LONG = HandOffFacts(
    uncached_tokens=30_000,
    output_tokens=500,
    transfer_ms=40,
    local_stall_ms=900,
    stalled_streams=30,
)


@pytest.mark.parametrize(
    ("hand", "answer"),
    [
        (HandOffFacts(prompt_tokens=1024, uncached_tokens=0, output_tokens=6), Answer.LOCAL),
        (HandOffFacts(uncached_tokens=1024, output_tokens=6), Answer.LOCAL),
        (LONG, Answer.REMOTE),
        (msgspec.structs.replace(LONG, transfer_ms=1500), Answer.LOCAL),
        (msgspec.structs.replace(LONG, stalled_streams=0), Answer.LOCAL),
        (HandOffFacts(uncached_tokens=30_000, prefill_queue_ms=12_000), Answer.LOCAL),
        (msgspec.structs.replace(LONG, prefill_queue_ms=12_000), Answer.LOCAL),
        (msgspec.structs.replace(LONG, transfer_ms=None), None),
        (HandOffFacts(uncached_tokens=30_000), None),
        (HandOffFacts(output_tokens=6), SILENT),
    ],
)
def test_prefill_goes_remote_only_where_that_saves_more_than_it_costs(
    hand: HandOffFacts, answer: Answer | str | None
) -> None:
    """Cached, short and queued prompts stay local; a long one that would stall many goes."""
    assert answer_of(Subject.PREFILL_PLACE, ServedFacts(hand_off=hand)) == answer


LONGER = GapChange(mean_before=20, mean_after=35, median_before=18, median_after=15)


@pytest.mark.parametrize(
    ("gaps", "answer"),
    [
        (LONGER, Answer.FIRST_GAP),
        (msgspec.structs.replace(LONGER, first_before=10, first_after=400), Answer.FIRST_GAP),
        (GapChange(mean_before=20, mean_after=35, median_before=18, median_after=30), Answer.STEADY_GAPS),
        (GapChange(mean_before=20, mean_after=18, median_before=18, median_after=15), Answer.UNCHANGED),
        (msgspec.structs.replace(LONGER, first_before=50, first_after=20), None),
        (GapChange(mean_before=20, mean_after=35), None),
        (None, SILENT),
    ],
)  # fmt: skip
def test_first_gap_is_judged_apart_from_the_steady_ones(
    gaps: GapChange | None, answer: Answer | str | None
) -> None:
    """A mean that rises while the median falls is the wait for the transfer, not slower decoding."""
    assert answer_of(Subject.TOKEN_GAPS, ServedFacts(gaps=gaps)) == answer


def test_every_unknown_answer_says_what_would_tell() -> None:
    """Cannot tell is an answer with a way on."""
    facts = ServedFacts(
        cache=CacheFacts(proxy_hit_share=0.5, salted_engine_share=0.5, same_tenant_hit=True),
        speculation=SpeculationFacts(
            is_on=True, step_ms=2.0, ratios=RATIOS[:1], wanted_with=("x",)
        ),
        arms=(ARM_OFF, ArmTimes()),
        acceptance=mix(("T=0", 0.8, 0.3, 0.72, 0.72)).acceptance,
        balance=BalanceFacts(threshold=4.0, replicas=(ReplicaLoad(name="a"),)),
        layout=LayoutFacts(goal=Goal.LATENCY, tensor_parallel=3, experts=8),
        transfer=TransferFacts(),
        hand_off=HandOffFacts(moved_tokens=5, uncached_tokens=9000, hold_s=3.0),
        gaps=GapChange(),
    )
    subjects = [
        Subject.CACHE_SOURCES, Subject.SALTED_KEYS, Subject.ISOLATION, Subject.SPECULATION_BATCH,
        Subject.SPECULATION_COST, Subject.SPECULATION_PAIR, Subject.SPECULATION_LOAD,
        Subject.TOKEN_TIME, Subject.ACCEPTANCE_MIX, Subject.BALANCE, Subject.PLACEMENT,
        Subject.TENSOR_PARALLEL, Subject.HEADS, Subject.EXPERT_PARALLEL, Subject.TRANSFER,
        Subject.HAND_OFF, Subject.PREFILL_PLACE, Subject.BLOCK_LEAK, Subject.TOKEN_GAPS,
    ]  # fmt: skip
    for subject in subjects:
        judgement = found(subject, facts)
        assert judgement.answer is None, subject
        assert judgement.would_tell, subject


def test_facts_are_read_strictly_from_json() -> None:
    """A file of facts comes back as it went out, and a misspelt key is refused with its path."""
    facts = ServedFacts(layout=LAYOUT, cache=CacheFacts(proxy_hit_share=0.5))
    assert msgspec.json.decode(msgspec.json.encode(facts), type=ServedFacts) == facts
    with pytest.raises(msgspec.ValidationError, match=r"heds.*\$\.layout"):
        msgspec.json.decode(b'{"layout": {"heds": 3}}', type=ServedFacts)
