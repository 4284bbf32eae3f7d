"""Why KV travels slowly between attached servers, by their labels, their pages and the first hand-overs."""

from unittest.mock import MagicMock

import pytest
from scrape_kit import Hist, Load, vllm

from trimtab.core.evidence import Unknown
from trimtab.core.handover import NO_LABELS, ReplicaLabels
from trimtab.core.served import ServerSample
from trimtab.diagnosis.served_facts import HandOffFacts, ServedFacts, TransferFacts
from trimtab.engines.served import read_sample
from trimtab.policies.links import LinkRate
from trimtab.runtime import attached_advice
from trimtab.runtime.attached_advice import (
    AttachedAdvisor,
    advice_words,
    advise_attached,
    fills_up,
    transfer_facts,
)

LOAD = Load(running=4, waiting=0, kv=0.3)


def at(host: str, link: str) -> ReplicaLabels:
    return ReplicaLabels(host=host, link=link)


@pytest.mark.parametrize(
    ("labels", "facts"),
    [
        ((), None),
        ((NO_LABELS, NO_LABELS), None),
        ((at("a", ""), at("a", "")), TransferFacts(same_node=True)),
        ((at("a", ""), at("b", "")), TransferFacts(same_node=False)),
        ((at("a", ""), NO_LABELS), None),
        ((at("a", "NVLink 4"), at("a", "NVLink 4")), TransferFacts(same_node=True, link_bytes_per_s=450e9)),
        ((at("", "InfiniBand 400"), at("", "InfiniBand 200")), None),
        ((at("a", "tcp"), at("a", "tcp")), TransferFacts(same_node=True, transport="tcp")),
        ((at("a", "a cable"), at("b", "a cable")), TransferFacts(same_node=False)),
    ],
)  # fmt: skip
def test_labels_tell_only_what_all_servers_agree_on(
    labels: tuple[ReplicaLabels, ...], facts: TransferFacts | None
) -> None:
    """An unknown link has no rate, and servers that differ have no common one."""
    assert transfer_facts(labels, ()) == facts


def test_first_connection_is_told() -> None:
    """The slowest first set-up is what an operator noticed."""
    rates = [
        LinkRate(setup_ms=1.0, ms_per_token=0.1, samples=2, connection_ms=38_000.0),
        LinkRate(setup_ms=1.0, ms_per_token=0.1, samples=2),
    ]
    assert transfer_facts((), rates) == TransferFacts(first_ms=38_000.0)


def words(after: Load, labels: ReplicaLabels, rates: tuple[LinkRate, ...] = ()) -> str:
    """Return what is said of two pages of a decode server."""
    none = Hist(0, 0.0)
    before = after.but(transfer=none, post=none, transfer_bytes=none, descriptors=none)
    pages = tuple(sample(load, 15.0 * number) for number, load in enumerate((before, after)))
    facts = ServedFacts(transfer=transfer_facts((labels, labels), rates))
    advice = advise_attached([("d", pages)], at_s=20.0, facts=facts)
    assert advice is not None
    return advice_words(advice)


def sample(load: Load, at_s: float) -> ServerSample:
    return read_sample(vllm(load).encode(), source="d", at_s=at_s)


def moved(count: int, spent_s: float, size: float, post_s: float, pieces: float) -> Load:
    return LOAD.but(
        transfer=Hist(count, spent_s),
        post=Hist(count, post_s),
        transfer_bytes=Hist(count, size),
        descriptors=Hist(count, pieces),
    )


CONNECTED = LinkRate(setup_ms=1.0, ms_per_token=0.1, samples=9, connection_ms=38_000.0)


@pytest.mark.parametrize(
    ("load", "labels", "rates", "said"),
    [
        (moved(50, 0.174, 313e6, 0.129, 40_064), at("a", "NVLink 4"), (), "bound by descriptors"),
        (moved(50, 0.2, 100e6, 0.001, 30), at("a", "tcp"), (), "bound by transport"),
        (moved(50, 0.01, 460e6, 0.001, 30), at("a", "InfiniBand 400"), (), "bound by bandwidth"),
        (moved(50, 0.3, 3e9, 0.001, 30), at("a", "InfiniBand 400"), (CONNECTED,), "bound by set-up"),
    ],
)  # fmt: skip
def test_slow_transfer_is_said_with_its_cause(
    load: Load, labels: ReplicaLabels, rates: tuple[LinkRate, ...], said: str
) -> None:
    """Each of the four causes has its own words, without a person writing a file of facts."""
    assert said in words(load, labels, rates)


POOL = '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{block_size="16",num_gpu_blocks="{}"}} 1\n'


@pytest.mark.parametrize(
    ("expired", "pool", "hold_s", "full"),
    [
        (50, 60_000, 300.0, True),
        (10, 8_000, 600.0, True),
        (25, 30_000, 300.0, True),
        (2, 60_000, 300.0, False),
        (50, 60_000, 30.0, False),
        (0, 60_000, 300.0, False),
    ],
)
def test_failed_hand_overs_that_would_fill_the_pool_switch_it_off(
    expired: int, pool: int, hold_s: float, full: bool
) -> None:
    """Blocks of a mean prompt, times those that expired in a minute, for as long as each is kept."""
    load = LOAD.but(prompt_length=Hist(100, 6400), finished=10, expired=expired)
    before = load.but(prompt_length=Hist(0, 0.0), expired=0)
    pages = tuple(
        read_sample((vllm(one) + POOL.format(pool)).encode(), source="p", at_s=60.0 * number)
        for number, one in enumerate((before, load))
    )
    facts = ServedFacts(hand_off=HandOffFacts(hold_s=hold_s, timeout_s=20.0))
    advice = advise_attached([("p", pages)], at_s=61.0, facts=facts)
    assert advice is not None
    assert fills_up(advice) is full
    assert ("disaggregation off" in advice_words(advice)) is full


def test_transfer_that_is_not_slow_is_not_spoken_of() -> None:
    """A link that is half used and nothing else that stands out."""
    load = moved(50, 0.01, 200e6, 0.001, 30)
    assert "transfers of KV" not in words(load, at("a", "InfiniBand 400"))


def test_each_lack_of_a_learned_cost_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that take turns, as traffic comes and goes, do not fill the terminal."""
    found = iter([Unknown("prefill_ms", "few"), Unknown("step_ms", "few")] * 3)
    monkeypatch.setattr(attached_advice, "cost_from_traffic", lambda *_: next(found))
    said: list[str] = []
    advisor = AttachedAdvisor(MagicMock(), said.append)
    for _ in range(6):
        advisor._learn()
    assert said == ["costs       not learned from the last 600 s: few"] * 2
