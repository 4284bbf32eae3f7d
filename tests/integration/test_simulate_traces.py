"""`trimtab simulate` over every format that `trimtab load` reads, and over what a fleet recorded."""

import json
import math
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from trimtab.interfaces.cli import main
from trimtab.interfaces.simulate_inputs import read_trace
from trimtab.interfaces.trace_inputs import read_arrivals
from trimtab.sim.compare import Comparison
from trimtab.sim.run import horizon_of, simulate
from trimtab.sim.scenario import parse_scenario

SCENARIO = """
name = "a trace"
[replica]
kv_tokens = 64000
[replica.cost]
overhead_ms = 2.0
weights_ms = 10.0
token_ms = 0.05
[fleet]
replicas = 2
[workload]
duration_s = 60
"""

MOONCAKE = [
    {
        "timestamp": 1000 * at,
        "input_length": 1100,
        "output_length": 5,
        "hash_ids": [1, 2, 3 + at % 2],
    }
    for at in range(6)
]
AZURE = ["TIMESTAMP,ContextTokens,GeneratedTokens"] + [
    f"2023-11-16 18:17:{10 + at}.0000000,{500 + at},8" for at in range(6)
]
SESSIONS = [
    {
        "id": "a",
        "block_size": 64,
        "requests": [
            {"t": 0, "type": "main", "in": 640, "out": 9, "lcp": 0, "new": [0, 10]},
            {"t": 9, "type": "main", "in": 768, "out": 9, "lcp": 10, "new": [10, 2]},
        ],
    }
]
BODIES = [
    {"timestamp": at, "max_tokens": 6, "messages": [{"role": "user", "content": "Why? " * 100}]}
    for at in range(6)
]
RECORDED = [
    {"at_s": 2 * at, "input_tokens": 320, "output_tokens": 7}
    | ({"like": 0, "shared_tokens": 300} if at else {})
    for at in range(6)
]
TRACES = {
    "mooncake": [json.dumps(one) for one in MOONCAKE],
    "azure": AZURE,
    "sessions": [json.dumps(one) for one in SESSIONS],
    "jsonl": [json.dumps(one) for one in BODIES],
    "recorded": [json.dumps(one) for one in RECORDED],
}


def run(folder: Path, lines: list[str], kind: str, scenario: str = SCENARIO) -> Result:
    """Simulate a trace of these lines."""
    (folder / "x.toml").write_text(scenario)
    (folder / "trace").write_text("\n".join(lines) + "\n")
    words = ["simulate", "x.toml", "--trace", "trace", "--format", kind, "--json"]
    words = [str(folder / word) if word in {"x.toml", "trace"} else word for word in words]
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize(
    ("kind", "requests", "reuses"),
    [
        ("mooncake", 6, True),
        ("azure", 6, False),
        ("sessions", 2, True),
        ("jsonl", 6, True),
        ("recorded", 6, True),
    ],
)
def test_every_format_is_simulated_with_the_blocks_it_names(
    tmp_path: Path, kind: str, requests: int, reuses: bool
) -> None:
    """All requests finish; what shares a beginning is reused, a trace that names none reuses none."""
    ended = run(tmp_path, TRACES[kind], kind)
    assert ended.exit_code == 0, ended.output
    (found,) = json.loads(ended.stdout)["runs"]
    summary = found["summary"]
    assert (summary["arrived"], summary["finished"]) == (requests, requests)
    assert (summary["hit_share"] > 0.2) is reuses
    assert sum(one["requests"] for one in found["regimes"]) == requests


def test_several_traces_are_played_one_after_the_other(tmp_path: Path) -> None:
    """The second begins the gap after the last request of the first."""
    (tmp_path / "a").write_text("\n".join(TRACES["mooncake"]))
    (tmp_path / "b").write_text("\n".join(TRACES["mooncake"]))
    text = SCENARIO + 'trace = ["a", "b"]\ngap_s = 20\n'
    (tmp_path / "x.toml").write_text(text)
    ended = CliRunner().invoke(main, ["simulate", str(tmp_path / "x.toml"), "--json"])
    assert ended.exit_code == 0, ended.output
    (found,) = json.loads(ended.stdout)["runs"]
    assert found["summary"]["arrived"] == 12
    assert found["course"]["arrived"].count(0) == 60 - 12
    assert found["course"]["arrived"][25:31] == [1] * 6


@pytest.mark.parametrize(
    ("kind", "line", "change", "told"),
    [
        ("mooncake", 3, {"timestamp": 500}, "line 4, timestamp"),
        ("mooncake", 2, {"hash_ids": [1, 2, 3, 4]}, "line 3, hash_ids"),
        ("mooncake", 1, {"input_length": -5}, "line 2"),
        ("jsonl", 4, {"timestamp": 0}, "line 5, timestamp"),
        ("jsonl", 2, {"max_tokens": 0}, "line 3, max_tokens"),
        ("recorded", 5, {"at_s": 1}, "line 6, at_s"),
        ("recorded", 3, {"shared_tokens": 330}, "line 4, shared_tokens"),
    ],
)
def test_wrong_line_of_a_trace_ends_with_1_and_names_line_and_field(
    tmp_path: Path, kind: str, line: int, change: dict[str, object], told: str
) -> None:
    """Unsorted times, hashes beyond the input's length, lengths that cannot be."""
    lines = list(TRACES[kind])
    lines[line] = json.dumps(json.loads(lines[line]) | change)
    ended = run(tmp_path, lines, kind)
    assert ended.exit_code == 1
    assert told in " ".join(ended.output.split())


def test_report_says_in_which_regimes_the_model_was_never_measured(tmp_path: Path) -> None:
    """A scenario that names its regimes is marked for the others; one that does not is told so."""
    (tmp_path / "trace").write_text("\n".join(TRACES["mooncake"]))

    def shown(scenario: str) -> str:
        (tmp_path / "x.toml").write_text(scenario)
        words = ["simulate", str(tmp_path / "x.toml"), "--trace", str(tmp_path / "trace")]
        ended = CliRunner().invoke(main, [*words, "--report", str(tmp_path / "out")])
        assert ended.exit_code == 0, ended.output
        return " ".join(ended.output.split())

    assert "does not say in which regimes" in shown(SCENARIO)
    marked = SCENARIO.replace("[fleet]", 'regimes = ["queued"]\n[fleet]')
    assert "never measured, so an extrapolation of the engine model: light (100.0%" in shown(marked)
    assert "never measured" in (tmp_path / "out" / "index.html").read_text()
    assert "never measured" not in shown(marked.replace('"queued"', '"light"'))


@pytest.mark.parametrize("kind", sorted(TRACES))
def test_reading_no_further_than_the_scenario_changes_nothing(kind: str, tmp_path: Path) -> None:
    """The same requests arrive as of the whole trace, which is what a trace that begins elsewhere still needs."""
    path = tmp_path / kind
    path.write_text("\n".join(TRACES[kind]) + "\n")
    scenario = parse_scenario(SCENARIO.replace("= 60", "= 3"), source="s")
    shape = msgspec.structs.replace(scenario.workload, format=kind)
    short = msgspec.structs.replace(scenario, workload=shape)
    assert horizon_of(short) == 3.0
    asked = {"block_tokens": 16, "seed": 1, "gap_s": 0.0}
    some = read_trace(short, tmp_path, path, kind)
    whole = read_arrivals([path], kind, **asked)
    assert some == [one for one in whole if one.at_s <= 3.0]
    assert len(some) < len(whole)
    assert simulate(short, "round_robin", trace=some) == simulate(short, "round_robin", trace=whole)


@pytest.mark.parametrize(
    ("changes", "horizon_s"),
    [
        ({"copies": 0.5}, 30.0),
        ({"copies": 1.5}, 90.0),
        ({"copies": 0.5, "per_replica": True}, 60.0),
        ({"copies": 2.5}, math.inf),
        ({"begin_drawn": True}, math.inf),
        ({"diurnal_low": 0.5}, math.inf),
    ],
)
def test_a_scenario_says_how_much_of_a_trace_it_needs(
    changes: dict[str, object], horizon_s: float
) -> None:
    """Of sixty seconds: as many as the stretched gaps make of it, or the whole span where it is turned or bent."""
    scenario = parse_scenario(SCENARIO, source="s")
    shape = msgspec.structs.replace(scenario.workload, **changes)
    assert horizon_of(msgspec.structs.replace(scenario, workload=shape)) == horizon_s


def test_several_traces_are_read_up_to_the_scenarios_end(tmp_path: Path) -> None:
    """The second begins 2 s after the 5 s of the first; a third that begins too late is not even opened."""
    path = tmp_path / "mooncake"
    path.write_text("\n".join(TRACES["mooncake"]))
    made = read_arrivals(
        [path, path, tmp_path / "absent"],
        "mooncake",
        block_tokens=16,
        seed=1,
        gap_s=2.0,
        horizon_s=9.0,
    )
    assert [one.at_s for one in made] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 8.0, 9.0]


def test_trace_that_does_not_fit_the_memory_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where less is there than the names may take, the answer is the same and no traceback."""

    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("trimtab.interfaces.trace_inputs.from_records", full)
    ended = run(tmp_path, TRACES["mooncake"], "mooncake")
    assert ended.exit_code == 1
    told = " ".join(ended.output.split())
    assert "does not fit the memory there is" in told
    assert "duration_s" in told


def test_trace_that_no_seed_changes_has_no_interval_and_says_so(tmp_path: Path) -> None:
    """Three seeds of it are one run; seeds that begin it elsewhere are a sample, and the same again."""
    (tmp_path / "x.toml").write_text(SCENARIO)
    (tmp_path / "drawn.toml").write_text(f"{SCENARIO}begin_drawn = true\n")
    (tmp_path / "trace").write_text("\n".join(TRACES["mooncake"]))

    def told(scenario: str, *more: str) -> str:
        words = ["simulate", tmp_path / scenario, "--trace", tmp_path / "trace", "--seeds", 3]
        words += ["--compare", "round_robin", *more]
        ended = CliRunner().invoke(main, [str(word) for word in words])
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    found = msgspec.json.decode(told("x.toml", "--json"), type=Comparison)
    assert (found.drawn, found.seeds, len(found.runs)) == (False, (1,), 2)
    assert {one.low for one in found.differences} == {None}
    shown = told("x.toml", "--report", str(tmp_path / "out"))
    for words in (" ".join(shown.split()), (tmp_path / "out" / "index.html").read_text()):
        assert "Nothing is drawn here" in words
        assert "begin_drawn = true in [workload]" in words
        assert "\u00b1" not in words
    moved = told("drawn.toml", "--json")
    seen = msgspec.json.decode(moved, type=Comparison)
    assert (seen.drawn, seen.seeds, len(seen.runs)) == (True, (1, 2, 3), 6)
    assert told("drawn.toml", "--json") == moved
