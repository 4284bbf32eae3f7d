"""Routing and caching across tenants, with loads and hits as the engines' own pages tell them; variants of each case.

What a router decides for single requests (credit across tenants, whose salt counts) is not read from metrics: it is
tested where routing is.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from engine_pages import tgi, trtllm
from scrape_kit import Load, Told, diagnose, facts, invoke, judgement, kinds, llamacpp, sglang, vllm

PLACE = "where the next request should go"
BALANCE = "balance of the servers"
CACHE = "prefix hits by source"
SALT = "router keys of salted requests"
TENANTS = "isolation of tenants"


def fleet(folder: Path, pages: Mapping[str, str], text: str) -> Told:
    """Diagnose the pages of several servers by name, with facts beside them."""
    named = []
    for name, page in pages.items():
        path = folder / f"{name}.prom"
        path.write_text(page)
        named.append(f"{name}={path}")
    ran = invoke(*named, *facts(folder, text), "--json")
    assert ran.stdout.startswith("{"), ran.output
    return Told(ran.exit_code, json.loads(ran.stdout), ran.stdout)


def matches(**shares: float | None) -> str:
    """Facts of the part of the prompt that each server holds; None leaves it out."""
    text = ""
    for name, share in shares.items():
        text += f'[[balance.replicas]]\nname = "{name}"\n'
        text += "" if share is None else f"match_share = {share}\n"
    return text


HOT = Load(running=30, waiting=9, kv=0.97)
WARM = Load(running=12, waiting=0, kv=0.40)
COOL = Load(running=9, waiting=0, kv=0.35)
EVEN = Load(running=10, waiting=0, kv=0.41)


@pytest.mark.parametrize(
    ("pages", "shares", "choice"),
    [
        ({"A": vllm(HOT), "B": vllm(WARM), "C": vllm(COOL)}, {"A": 0.9, "B": 0.6, "C": 0.0}, "B"),
        ({"A": vllm(EVEN), "B": vllm(WARM), "C": vllm(COOL)}, {"A": 0.9, "B": 0.6, "C": 0.0}, "A"),
        ({"A": sglang(HOT), "B": sglang(WARM), "C": sglang(COOL)}, {"A": 0.9, "B": 0.6, "C": 0.0}, "B"),
        ({"A": trtllm(HOT), "B": vllm(WARM), "C": sglang(COOL)}, {"A": 0.9, "B": 0.2, "C": 0.3}, "C"),
        ({"A": llamacpp(Load(running=4, waiting=30)), "B": llamacpp(Load(running=0, waiting=0))},
         {"A": 0.0, "B": 0.0}, "B"),
        ({"A": tgi(Load(running=4, waiting=30)), "B": tgi(Load(running=4, waiting=0))},
         {"A": 0.8, "B": 0.5}, "B"),
        ({"A": vllm(HOT, COOL), "B": vllm(WARM, WARM)}, {"A": 0.9, "B": 0.6}, "B"),
    ],
    ids=["hot spot", "balanced", "sglang", "other numbers, mixed engines", "llamacpp, no match",
         "tgi, by its queue", "one rank of a server is full"],
)  # fmt: skip
def test_place_is_chosen_by_the_load_that_pages_tell(
    tmp_path: Path, pages: Mapping[str, str], shares: Mapping[str, float], choice: str
) -> None:
    """Load bound first, then the longest match, then the least load; the load comes from each server's own page."""
    found = judgement(fleet(tmp_path, pages, matches(**shares)), PLACE)
    assert (found["answer"], found["choice"]) == ("chosen", choice)


@pytest.mark.parametrize(
    ("pages", "shares", "words"),
    [
        ({"A": vllm(Load(running=3)), "B": vllm(WARM)}, {"A": 0.9, "B": 0.6}, "the load of A is unknown"),
        ({"A": vllm(EVEN), "B": vllm(WARM)}, {"A": None, "B": 0.6}, "how much of the prompt A holds"),
        ({"A": vllm(EVEN), "B": vllm(WARM)}, {"A": 0.9, "D": 0.6}, "the load of D is unknown"),
    ],
    ids=["load untold", "match untold", "server not read"],
)  # fmt: skip
def test_place_with_a_fact_missing_is_not_chosen(
    tmp_path: Path, pages: Mapping[str, str], shares: Mapping[str, float | None], words: str
) -> None:
    """An unknown load is not idle and an unknown match is not none."""
    found = judgement(fleet(tmp_path, pages, matches(**shares)), PLACE)
    assert (found["answer"], found["choice"]) == (None, "")
    assert words in found["because"]
    assert found["would_tell"]


def test_match_of_a_server_over_the_bound_need_not_be_known(tmp_path: Path) -> None:
    """Whatever the hot server holds, nothing goes there."""
    pages = {"A": vllm(HOT), "B": vllm(WARM), "C": vllm(COOL)}
    found = judgement(fleet(tmp_path, pages, matches(A=None, B=0.6, C=0.0)), PLACE)
    assert found["choice"] == "B"


def test_what_a_person_tells_of_load_goes_before_the_page(tmp_path: Path) -> None:
    """A fact is not overwritten: told to be full, A is passed over, whatever its page says."""
    full = '[[balance.replicas]]\nname = "A"\nmatch_share = 0.9\nkv_used_share = 0.99\n'
    pages = {"A": vllm(EVEN), "B": vllm(WARM)}
    assert judgement(fleet(tmp_path, pages, full + matches(B=0.6)), PLACE)["choice"] == "B"
    assert judgement(fleet(tmp_path, pages, matches(A=0.9, B=0.6)), PLACE)["choice"] == "A"


def test_no_place_is_judged_where_nobody_asks(tmp_path: Path) -> None:
    """Pages alone raise no judgement of routing."""
    told = fleet(tmp_path, {"A": vllm(HOT), "B": vllm(WARM)}, "slots = 64\n")
    subjects = {each["subject"] for each in told.answer["judgements"]}
    assert subjects & {PLACE, BALANCE} == set()


ROUTERS = "[balance]\nrouters = 4\nseen_gap = {}\nthreshold = {}\n"


def busy(running: float, waiting: float) -> Load:
    return Load(running=running, waiting=waiting)


@pytest.mark.parametrize(
    ("pages", "seen", "threshold", "answer", "gap"),
    [
        ({"A": vllm(busy(90, 0)), "B": vllm(busy(10, 0))}, 20, 64, "imbalanced", 80.0),
        ({"A": vllm(busy(40, 60)), "B": vllm(busy(20, 0))}, 20, 64, "imbalanced", 80.0),
        ({"A": sglang(busy(25, 4)), "B": sglang(busy(5, 0)), "C": sglang(busy(9, 0))}, 6, 16, "imbalanced", 24.0),
        ({"A": llamacpp(busy(8, 70)), "B": vllm(busy(6, 0))}, 18, 64, "imbalanced", 72.0),
        ({"A": vllm(busy(30, 0)), "B": vllm(busy(10, 0))}, 5, 64, "balanced", 20.0),
    ],
    ids=["by running", "by waiting", "other numbers, sglang", "mixed engines", "balanced"],
)  # fmt: skip
def test_gap_that_counts_is_that_of_the_engines(
    tmp_path: Path,
    pages: Mapping[str, str],
    seen: float,
    threshold: float,
    answer: str,
    gap: float,
) -> None:
    """Four routers see a quarter each; the engines' pages tell the whole."""
    told = fleet(tmp_path, pages, ROUTERS.format(seen, threshold))
    found = judgement(told, BALANCE)
    assert (found["answer"], found["numbers"]["true_gap"]) == (answer, gap)


@pytest.mark.parametrize(
    "pages",
    [
        {"A": vllm(busy(90, 0)), "B": vllm(Load(running=10))},
        {"A": vllm(busy(90, 0)), "B": sglang(Load(waiting=0, kv=0.1))},
        {"A": vllm(busy(90, 0))},
        {"A": vllm(busy(90, 0)), "B": vllm(busy(70, 0)), "C": vllm(Load(running=1))},
    ],
    ids=["waiting untold", "running untold", "one engine of several", "the third untold"],
)
def test_gap_with_an_engine_missing_is_unknown(tmp_path: Path, pages: Mapping[str, str]) -> None:
    """What one engine does not tell is no zero, and one engine is no gap."""
    found = judgement(fleet(tmp_path, pages, ROUTERS.format(20, 64)), BALANCE)
    assert found["answer"] is None
    assert found["would_tell"] == "requests in flight by engine"


PROXY = "[cache]\nproxy_hit_share = {}\n"


@pytest.mark.parametrize(
    ("page", "answer"),
    [
        (trtllm(Load(running=1, prompt_tokens=1e6, hits=0)), "trust the engine"),
        (llamacpp(Load(running=1, prompt_tokens=1e6, hits=0)), "trust the engine"),
        ('sglang:cache_hit_rate{model_name="m"} 0.0\n', "trust the engine"),
        (trtllm(Load(running=1, prompt_tokens=1e6, hits=9.2e5)), "sources agree"),
        (tgi(Load(running=1, waiting=0)), None),
        (sglang(Load(running=1, hits=5e5)), None),
        (vllm(Load(running=1, queries=1e6, hits=1.4e6)), None),
    ],
    ids=["trtllm", "llamacpp", "sglang's gauge", "agree", "tgi counts none", "hits of unknown prompts",
         "impossible hits"],
)  # fmt: skip
def test_engine_is_heard_before_a_proxy(tmp_path: Path, page: str, answer: str | None) -> None:
    """95% at the proxy against none at the engine is a conflict; without the engine's word it is neither."""
    told = diagnose(tmp_path, page, options=facts(tmp_path, PROXY.format(0.95)))
    found = judgement(told, CACHE)
    assert found["answer"] == answer
    assert ("hit_share_conflict" in kinds(told)) is (answer == "trust the engine")
    assert bool(found["would_tell"]) is (answer is None)


def test_conflict_is_judged_on_the_window_and_not_on_the_life(tmp_path: Path) -> None:
    """82% since the start and 5% in the window: a proxy's 80% is of the past, and a conflict now."""
    pages = [
        vllm(Load(running=1, waiting=0, queries=q, hits=h))
        for q, h in ((1e6, 9e5), (1.1e6, 9.05e5))
    ]
    options = ("--between", "60", *facts(tmp_path, PROXY.format(0.8)))
    found = judgement(diagnose(tmp_path, *pages, options=options), CACHE)
    assert found["answer"] == "trust the engine"
    assert found["numbers"]["engine_hit_share"] == pytest.approx(0.05)


OFF_AT_VLLM = 'vllm:cache_config_info{enable_prefix_caching="False",engine="0"} 1.0\n'
ON_AT_VLLM = OFF_AT_VLLM.replace("False", "True")
OFF_AT_TRTLLM = 'trtllm_kv_cache_config_info{enable_block_reuse="False",page_size="32"} 1.0\n'
QUIET = vllm(Load(running=1, waiting=0, kv=0.1))
TESTED = "[cache]\nsame_tenant_hit = {}\nother_tenant_hit = {}\n"


@pytest.mark.parametrize(
    ("page", "same", "other", "answer"),
    [
        (QUIET + OFF_AT_VLLM, "false", "false", "not proven"),
        (trtllm(Load(running=1, waiting=0)) + OFF_AT_TRTLLM, "true", "false", "not proven"),
        (QUIET + OFF_AT_VLLM, "true", "false", "not proven"),
        (QUIET + ON_AT_VLLM, "true", "false", "proven"),
        (QUIET + ON_AT_VLLM, "true", "true", "broken"),
        (QUIET + ON_AT_VLLM, "false", "false", "not proven"),
        (QUIET, "true", "false", None),
    ],
    ids=["off at vllm", "off at trtllm", "off, whatever was seen", "on", "on, and found", "on, never reached",
         "untold"],
)  # fmt: skip
def test_isolation_is_judged_with_the_engines_own_word_on_caching(
    tmp_path: Path, page: str, same: str, other: str, answer: str | None
) -> None:
    """That nothing hits across tenants proves nothing where the engine caches nothing, or nobody says that it does."""
    told = diagnose(tmp_path, page, options=facts(tmp_path, TESTED.format(same, other)))
    found = judgement(told, TENANTS)
    assert found["answer"] == answer
    assert bool(found["would_tell"]) is (answer is None)


@pytest.mark.parametrize(
    ("text", "answer", "words"),
    [
        ("salted_predicted_share = 0.0\nsalted_engine_share = 0.7\n", "router key mismatch", "no claim about caching"),
        ("salted_predicted_share = 0.05\nsalted_engine_share = 0.4\n", "router key mismatch", "affinity off for them"),
        ("salted_predicted_share = 0.9\nsalted_engine_share = 0.1\n", "trust the engine", "distrust the index"),
        ("salted_predicted_share = 0.3\nsalted_engine_share = 0.35\n", "keys match", "delivered 35%"),
        ("salted_engine_share = 0.7\n", None, "not both told"),
    ],
)  # fmt: skip
def test_keys_of_salted_requests_are_held_against_the_engine(
    tmp_path: Path, text: str, answer: str | None, words: str
) -> None:
    """A router that predicts nothing where the engine hits has other keys; the other way its index is wrong."""
    told = diagnose(tmp_path, QUIET, options=facts(tmp_path, f"[cache]\n{text}"))
    found = judgement(told, SALT)
    assert found["answer"] == answer
    assert words in found["because"]


def test_hits_of_all_traffic_do_not_stand_for_those_of_salted_requests(tmp_path: Path) -> None:
    """The page's 70% is of everybody: without the salted ones' own share the keys cannot be judged."""
    page = vllm(Load(running=1, waiting=0, queries=1e6, hits=7e5))
    text = "[cache]\nsalted_predicted_share = 0.0\n"
    found = judgement(diagnose(tmp_path, page, options=facts(tmp_path, text)), SALT)
    assert found["answer"] is None
    assert "the engine's hits" in found["would_tell"]
