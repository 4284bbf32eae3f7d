"""Windows of real servers under loads that bind differently, recorded with what was known of them, judged again.

Recorded with `bench/live_diagnosis.py --record`: pages of each server at a window's start, middle and end.
"""

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from scrape_kit import Told, invoke

LIVE = Path(__file__).with_name("transcripts") / "live"
CASES = sorted(path.parent for path in LIVE.glob("*/*/case.json"))
DIAGNOSES = Path(__file__).resolve().parents[2] / "docs/diagnoses"
WHOLE = (0, 1, 2)
WINDOWS = (WHOLE, (0, 2), (0, 1), (1, 2))
LEFT_OUT: tuple[tuple[str, ...], ...] = ((), ("slots",), ("cost",), ("cost", "slots"), ("cache",))
"""Facts that a person may not know. Without what prompts allow, nothing tells an evicted prompt from a new one."""

BIN_EDGES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.96)
BIN_MIN = 8
"""Fewer answers say nothing of how often such answers are right."""


def judged(
    folder: Path, case: Path, *, scrapes: tuple[int, ...] = WHOLE, without: tuple[str, ...] = ()
) -> tuple[Told, tuple[str, ...]]:
    """Diagnose a recorded window; return the answer and the expected phase and resource."""
    known = json.loads((case / "case.json").read_text())
    facts = {name: fact for name, fact in known["facts"].items() if name not in without}
    path = folder / "facts.json"
    path.write_text(json.dumps(facts))
    servers = sorted({page.name.partition("-")[0] for page in case.glob("*.prom")})
    pages = [f"s{server}={case}/{server}-{at}.prom" for server in servers for at in scrapes]
    apart_s = known["between_s"] * (scrapes[1] - scrapes[0])
    options = ("--facts", str(path), "--between", str(apart_s), "--json")
    ran = invoke(*pages, *options)
    assert ran.stdout.startswith("{"), ran.output
    expected = tuple(known["expected"].split())
    return Told(ran.exit_code, json.loads(ran.stdout), ran.stdout), expected


def named(case: Path) -> str:
    return f"{case.parent.name}, {case.name}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_recorded_load_is_told_by_what_it_binds(tmp_path: Path, case: Path) -> None:
    """Phase and resource are those the load was made for; waiting and evicting are no health."""
    told, expected = judged(tmp_path, case)
    unwell = "queue" in expected or "memory_capacity" in expected
    assert (told.binding, told.code in ({1} if unwell else {0, 1})) == (expected, True)


def test_every_kind_of_load_was_recorded_on_both_engines() -> None:
    """Four loads on each engine, and the one that only an engine with a KV gauge shows."""
    loads: dict[str, set[str]] = defaultdict(set)
    for case in CASES:
        loads[case.parent.name].add(case.name)
    four = {"long-prompts", "short-decodes", "evicted-context", "more-arrivals"}
    assert loads == {"embedded": four, "vllm": {*four, "filled-context"}}


@pytest.mark.parametrize(
    "case", [each for each in CASES if each.name == "filled-context"], ids=named
)
def test_full_cache_is_read_from_the_engines_own_gauge(tmp_path: Path, case: Path) -> None:
    """vLLM's gauge is near 1 and requests wait; nothing else is needed."""
    told, expected = judged(tmp_path, case, without=("cost", "slots", "cache"))
    assert (told.binding, told.reading("kv_used_share_max") > 0.9) == (expected, True)


def test_answers_are_right_at_least_as_often_as_they_are_confident(tmp_path: Path) -> None:
    """Over all windows of all recordings, with and without facts: by confidence, the share right is no lower."""
    answers: list[tuple[float, bool]] = []
    for case, scrapes, without in itertools.product(CASES, WINDOWS, LEFT_OUT):
        told, expected = judged(tmp_path, case, scrapes=scrapes, without=without)
        if told.binding is not None:
            answers.append((told.answer["confidence"], told.binding == expected))
    assert len(answers) > len(CASES) * len(WINDOWS)
    assert _overconfident(answers) == {}


def _overconfident(answers: list[tuple[float, bool]]) -> dict[str, Any]:
    """Return the bins whose share right is below their mean confidence, with both."""
    found = {}
    for low, high in itertools.pairwise(BIN_EDGES):
        held = [(sure, right) for sure, right in answers if low <= sure < high]
        if len(held) < BIN_MIN:
            continue
        sure = sum(each for each, _ in held) / len(held)
        right = sum(each for _, each in held) / len(held)
        if right < sure:
            found[f"{low:.0%} to {high:.0%}"] = (right, sure)
    return found


@pytest.mark.parametrize(
    ("load", "page"),
    [
        ("embedded/short-decodes", "decode-compute.md"),
        ("embedded/evicted-context", "prefill-memory-capacity.md"),
    ],
)
def test_worked_example_of_a_page_is_the_answer_to_its_recording(
    tmp_path: Path, load: str, page: str
) -> None:
    """What binds, why and how sure that is stand on the page as the command says them."""
    told, _ = judged(tmp_path, LIVE / load)
    text = (DIAGNOSES / page).read_text()
    binding = told.answer["binding"]
    assert (
        f"{binding['share']:.0%} of request time (confidence {told.answer['confidence']:.0%};"
        in text
    )
    assert binding["because"] in text
