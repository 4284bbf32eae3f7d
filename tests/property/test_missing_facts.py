"""What a page leaves out makes an answer less sure and never another one: over loads, engines, fields and ranks."""

from collections.abc import Callable, Iterable
from functools import cache

import pytest
from engine_pages import dynamo, tgi, trtllm, vllm_v0
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scrape_kit import Hist, Load, llamacpp, sglang, vllm

from trimtab.core.accelerators import find_accelerator
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.engines.model_names import find_model_shape
from trimtab.engines.served import read_samples
from trimtab.runtime.served_run import Diagnosed, diagnose_scrapes
from trimtab.runtime.served_sources import Scrape, Source, SourceKind

Page = Callable[..., str]
Binding = tuple[str, str] | None

THRASHING = Load(
    running=120, waiting=240, kv=0.88, preemptions=40, queries=1_000_000, hits=260_000, prompt_tokens=1_000_000,
    output_tokens=80_000, finished=300, ttft=Hist(300, 18.0), queue=Hist(300, 17.0), e2e=Hist(300, 50.0),
    tpot=Hist(300, 0.05),
)  # fmt: skip
OVERLOADED = Load(
    running=162, waiting=2826, kv=0.28, preemptions=0, output_gauge=86.5, prompt_tokens=8_000_000,
    output_tokens=7_500_000, finished=11_228, ttft=Hist(11_008, 213.7), e2e=Hist(11_228, 277.5),
    tpot=Hist(7_400_757, 0.117),
)  # fmt: skip
LONG_PROMPTS = Load(
    running=6, waiting=0, kv=0.3, preemptions=0, queries=4e6, hits=1e5, prompt_tokens=4e6, output_tokens=2e4,
    finished=400, ttft=Hist(400, 3.0), queue=Hist(400, 0.1), prefill=Hist(400, 2.9), decode=Hist(400, 1.0),
    e2e=Hist(400, 4.0), tpot=Hist(400, 0.02), prompt_length=Hist(400, 10_000), output_length=Hist(400, 50),
)  # fmt: skip
MANY_DECODES = Load(
    running=30, waiting=0, kv=0.4, preemptions=0, queries=2e5, hits=1e5, prompt_tokens=2e5, output_tokens=2e5,
    finished=400, ttft=Hist(400, 0.1), queue=Hist(400, 0.001), prefill=Hist(400, 0.09), decode=Hist(400, 9.9),
    e2e=Hist(400, 10.0), tpot=Hist(400, 0.02), prompt_length=Hist(400, 500), output_length=Hist(400, 500),
)  # fmt: skip
FULL = THRASHING.but(kv=0.97, preemptions=0)
CALM = Load(
    running=4, waiting=0, kv=0.2, preemptions=0, queries=1e6, hits=946_000, prompt_tokens=1e6, output_tokens=2e5,
    finished=1000, ttft=Hist(1000, 0.08), queue=Hist(1000, 0.0005), prefill=Hist(1000, 0.08),
    decode=Hist(1000, 0.92), e2e=Hist(1000, 1.0), tpot=Hist(1000, 0.0092),
)  # fmt: skip

LOADS = (THRASHING, OVERLOADED, LONG_PROMPTS, MANY_DECODES, FULL, CALM)
ONE_RANK: tuple[Page, ...] = (vllm_v0, tgi, llamacpp, dynamo)
RANKED: tuple[Page, ...] = (vllm, sglang, trtllm)
FIELDS = sorted({name for load in LOADS for name, value in vars(load).items() if value is not None})
dropped = st.sets(st.sampled_from(FIELDS), min_size=1, max_size=8)


@cache
def known(ceilings: bool) -> ServedFacts:
    if not ceilings:
        return ServedFacts()
    model = find_model_shape("meta-llama/Llama-3.1-8B")
    return ServedFacts(model=model, accelerator=find_accelerator("H100"))


def before(load: Load) -> Load:
    """The same gauges when nothing had been counted."""
    fields = {
        name: Hist(0, value.mean) if isinstance(value, Hist) else 0
        for name, value in vars(load).items()
        if value is not None and name not in {"running", "waiting", "kv", "output_gauge"}
    }
    return load.but(**fields)


def scrapes(server: str, page: Page, loads: Iterable[Load]) -> list[Scrape]:
    """Two scrapes of a server, a minute apart."""
    source = Source(kind=SourceKind.FILE, place=server, server=server)
    ranks = tuple(loads)
    pages = (page(*map(before, ranks)), page(*ranks))
    return [
        Scrape(source=source, samples=read_samples(text.encode(), source=server, at_s=60.0 * at))
        for at, text in enumerate(pages)
    ]


def judged(found: list[Scrape], facts: ServedFacts) -> Diagnosed:
    return diagnose_scrapes(found, facts, at_s=60.0, between_s=60.0)


def binding_of(told: Diagnosed) -> Binding:
    found = told.advice.binding
    return None if found is None else (found.phase.value, found.resource.value)


def is_less_sure(whole: Diagnosed, part: Diagnosed) -> bool:
    """Say whether what is left of the facts says less, and nothing else."""
    same = binding_of(part) in {None, binding_of(whole)}
    return same and (part.advice.healthy is not True or whole.advice.healthy is True)


@settings(max_examples=150)
@given(st.sampled_from(LOADS), st.sampled_from(ONE_RANK + RANKED), dropped, st.booleans())
def test_fields_left_out_never_make_another_verdict(
    load: Load, page: Page, names: set[str], ceilings: bool
) -> None:
    """Whatever is missing of one rank's page: the same binding or none, and no health that was not there."""
    left = load.without(*names)
    assume(any(value is not None for value in vars(left).values()))
    assume(page(left).strip())
    facts = known(ceilings)
    whole, part = (judged(scrapes("a", page, [each]), facts) for each in (load, left))
    assert is_less_sure(whole, part)


@settings(max_examples=100)
@given(st.sampled_from(LOADS), st.sampled_from(LOADS), st.sampled_from(RANKED), dropped)
@example(LONG_PROMPTS, CALM, vllm, {"output_tokens", "decode"})
def test_fields_left_out_by_one_rank_never_make_another_verdict(
    load: Load, other: Load, page: Page, names: set[str]
) -> None:
    """What one of two ranks does not tell is not taken from the other one."""
    left = other.without(*names)
    assume(left.running is not None or left.waiting is not None or left.kv is not None)
    whole, part = ([load, each] for each in (other, left))
    assert is_less_sure(
        judged(scrapes("a", page, whole), known(False)),
        judged(scrapes("a", page, part), known(False)),
    )


@settings(max_examples=100)
@given(
    st.sampled_from(LOADS),
    st.sampled_from(LOADS),
    st.sampled_from(RANKED),
    st.sampled_from(RANKED),
    dropped,
)
@example(LONG_PROMPTS, MANY_DECODES, vllm, trtllm, {"output_tokens", "e2e", "decode"})
def test_fields_left_out_by_one_server_never_make_another_verdict(
    load: Load, other: Load, page: Page, other_page: Page, names: set[str]
) -> None:
    """What one of two servers does not tell is not taken from the other one, whatever their engines."""
    left = other.without(*names)
    assume(left.running is not None or left.waiting is not None or left.kv is not None)
    one = scrapes("a", page, [load])
    assert is_less_sure(
        judged([*one, *scrapes("b", other_page, [other])], known(False)),
        judged([*one, *scrapes("b", other_page, [left])], known(False)),
    )


EVERY_PAGE = pytest.mark.parametrize("page", ONE_RANK + RANKED, ids=lambda page: page.__name__)


@EVERY_PAGE
@pytest.mark.parametrize("ceilings", [False, True])
def test_one_scrape_never_makes_another_verdict(page: Page, ceilings: bool) -> None:
    """Without the second scrape rates are unknown: the same binding or none."""
    facts = known(ceilings)
    for load in LOADS:
        both = scrapes("a", page, [load])
        assert is_less_sure(judged(both, facts), judged(both[1:], facts))


@EVERY_PAGE
def test_equal_servers_and_ranks_have_the_verdict_of_one(page: Page) -> None:
    """Two servers, or two ranks, of one load each: what binds one binds both."""
    for load in LOADS:
        alone = binding_of(judged(scrapes("a", page, [load]), known(True)))
        pair = [*scrapes("a", page, [load]), *scrapes("b", page, [load])]
        assert binding_of(judged(pair, known(True))) == alone
        if page in RANKED:
            ranks = scrapes("a", page, [load, load])
            assert binding_of(judged(ranks, known(True))) == alone


DEVICE = "\n".join(
    f'DCGM_FI_DEV_{name}{{gpu="0"}} {value}'
    for name, value in (("FB_USED", 70_000), ("FB_FREE", 10_000), ("GPU_UTIL", 90))
)


@EVERY_PAGE
def test_page_of_a_device_beside_an_engine_changes_no_verdict(page: Page) -> None:
    """A busy accelerator with memory in use contradicts nothing and counts no request."""
    source = Source(kind=SourceKind.FILE, place="d", server="d")
    device = Scrape(
        source=source, samples=read_samples(f"{DEVICE}\n".encode(), source="d", at_s=60.0)
    )
    for load in LOADS:
        engine = scrapes("a", page, [load])
        alone, both = judged(engine, known(True)), judged([*engine, device], known(True))
        assert (binding_of(both), both.advice.healthy) == (binding_of(alone), alone.advice.healthy)
