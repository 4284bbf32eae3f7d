"""Pages and facts that are damaged, mixed or at odds with each other: an answer or one line, and never a guess.

Real pages are damaged the way networks, proxies and collectors damage them; what may be read of them afterwards is at
most what the whole page says.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from engine_pages import dynamo, tgi, trtllm, vllm_v0
from prompts_kit import nonce_at_top, shuffled_tools
from scrape_kit import Hist, Load, apart, diagnose, facts, invoke, kinds, llamacpp, sglang, vllm

from trimtab.interfaces.cli import main

Page = Callable[..., str]
Damage = Callable[[random.Random, list[str]], list[str]]


def cut(rng: random.Random, lines: list[str]) -> list[str]:
    """The connection broke in the middle of a line."""
    at = rng.randrange(1, len(lines))
    return [*lines[:at], lines[at][: rng.randrange(len(lines[at]) + 1)]]


def thinned(rng: random.Random, lines: list[str]) -> list[str]:
    """A collector dropped some families."""
    return [line for line in lines if rng.random() < 0.5]


def shuffled(rng: random.Random, lines: list[str]) -> list[str]:
    """Lines in any order."""
    return rng.sample(lines, len(lines))


def doubled(rng: random.Random, lines: list[str]) -> list[str]:
    """Two answers were joined."""
    return [*lines, *rng.sample(lines, len(lines) // 2)]


def renumbered(rng: random.Random, lines: list[str]) -> list[str]:
    """Some values are none."""
    wrong = ("NaN", "+Inf", "-Inf", "-5", "1e999", "1e-320", "0x10", "", "12 34 56", "1_000", "٣")
    return [
        f"{line.rsplit(' ', 1)[0]} {rng.choice(wrong)}" if rng.random() < 0.1 else line
        for line in lines
    ]


def relabelled(rng: random.Random, lines: list[str]) -> list[str]:
    """Labels lose their quotes, gain emptiness, another rank, or another edge."""
    swaps = (
        ('"', "'"),
        ("{", "{,"),
        ("}", ""),
        ('le="', 'le="-'),
        ('model_name="', 'model_name="\\'),
    )
    ends = (("{", '{engine="7",'), ("{", '{dp_rank="x",'), ("+Inf", "inf"), (",", ",,"))
    return [
        line.replace(*rng.choice(swaps + ends)) if rng.random() < 0.1 else line for line in lines
    ]


def mixed_up(rng: random.Random, lines: list[str]) -> list[str]:
    """Types that are not theirs, exemplars, timestamps, comments without end, Windows line ends."""
    more = ("# TYPE vllm:num_requests_running histogram", "# HELP", "# EOF", "#", "\r", "\x00")
    made = []
    for line in lines:
        made.append(f"{line} 1700000000000" if rng.random() < 0.1 else line)
        made += [rng.choice(more)] if rng.random() < 0.05 else []
    return made


DAMAGES: dict[str, Damage] = {
    each.__name__: each
    for each in (cut, thinned, shuffled, doubled, renumbered, relabelled, mixed_up)
}


def real_pages(public_data: Path) -> list[Path]:
    return sorted((public_data / "metrics").glob("*.prom"))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("seed", range(30))
def test_damaged_real_page_ends_in_an_answer_or_one_line(
    public_data: Path, tmp_path: Path, damage: str, seed: int
) -> None:
    """No traceback, no code but those that are promised, and no number that JSON does not have."""
    rng = random.Random(f"{damage}{seed}")
    path = rng.choice(real_pages(public_data))
    lines = DAMAGES[damage](rng, path.read_text().splitlines())
    (tmp_path / "a.prom").write_text("\n".join(lines) + rng.choice(("\n", "")))
    ran = invoke(str(tmp_path / "a.prom"), "--json")
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    assert ran.exit_code in {0, 1, 3, 4}
    if ran.exit_code == 3:
        assert len(ran.stderr.strip().splitlines()) == 1
        return
    answer = json.loads(ran.stdout, parse_constant=pytest.fail)
    assert (answer["binding"] is None) or answer["outcome"] in {
        "bottleneck",
        "healthy",
        "cannot_tell",
    }


@pytest.mark.parametrize("seed", range(30))
def test_two_real_pages_as_one_server_end_in_an_answer(
    public_data: Path, tmp_path: Path, seed: int
) -> None:
    """Scrapes of two engines under one name are servers of their own, or told apart; nothing breaks."""
    rng = random.Random(seed)
    first, last = rng.sample(real_pages(public_data), 2)
    ran = invoke(f"one={first}", f"one={last}", "--between", "30", "--json")
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    assert ran.exit_code in {0, 1, 3, 4}


def test_what_a_cut_page_still_says_is_what_the_whole_one_says(
    public_data: Path, tmp_path: Path
) -> None:
    """A page cut after any tenth of its lines gives no other figure of these, only fewer."""
    page = (public_data / "metrics" / "sglang_2025_overloaded_llama31-8b.prom").read_text()
    lines = page.splitlines()
    whole = diagnose(tmp_path, page)
    for tenth in range(1, 10):
        told = diagnose(tmp_path, "\n".join(lines[: len(lines) * tenth // 10]) + "\n")
        for name in ("running_mean", "waiting_mean", "kv_used_share_max", "ttft_ms_mean"):
            assert told.reading(name) in {None, whole.reading(name)}, (tenth, name)


BUSY = Load(running=8, waiting=0, kv=0.3, output_tokens=1000, prompt_tokens=9000, finished=10)
QUEUED = Load(running=8, waiting=60, kv=0.3, output_tokens=1000, prompt_tokens=9000, finished=10)


@pytest.mark.parametrize(
    ("told_page", "silent_page"),
    [
        (vllm, tgi),
        (sglang, tgi),
        (trtllm, dynamo_worker := "dynamo_component_inflight_requests 8\n"),
    ],
    ids=["vllm and tgi", "sglang and tgi", "trtllm and a worker"],
)
def test_room_in_one_engine_is_no_room_in_another(
    tmp_path: Path, told_page: Page, silent_page: Page | str
) -> None:
    """The queue stands at an engine that never tells its KV: the other's free cache rules nothing out."""
    other = silent_page if isinstance(silent_page, str) else silent_page(QUEUED)
    told = diagnose(tmp_path, told_page(BUSY if callable(silent_page) else QUEUED), other)
    assert told.reading("kv_used_share_max") is None
    assert "KV capacity" not in told.said("ruled_out")
    assert (told.binding, told.code) == (None, 4)


def test_engine_whose_slots_hold_their_memory_needs_no_gauge_of_it(tmp_path: Path) -> None:
    """llama.cpp makes a request wait for a slot only: beside vLLM with room its queue is admission."""
    told = diagnose(tmp_path, vllm(BUSY), llamacpp(QUEUED))
    assert told.binding == ("queue", "admission")


def test_engine_inside_a_worker_is_counted_once(tmp_path: Path) -> None:
    """A worker's page carries its engine's names too: 8 requests are 8, and the note says why."""
    around = 'dynamo_component_inflight_requests{model="m"} 8\n'
    told = diagnose(tmp_path, vllm(BUSY) + around)
    assert (told.reading("running_mean"), told.reading("ranks")) == (8, 1)
    assert "not read twice" in told.said("warnings")
    alone = diagnose(tmp_path, around)
    assert alone.reading("running_mean") == 8


def test_two_engines_on_one_page_are_two_servers(tmp_path: Path) -> None:
    """A collector's page of several engines: each is a source, and loads are added."""
    told = diagnose(tmp_path, vllm(BUSY) + sglang(QUEUED))
    assert [each["engine"] for each in told.answer["sources"]] == ["vllm", "sglang"]
    assert (told.reading("running_mean"), told.reading("waiting_mean")) == (16, 60)


def test_front_end_and_engine_count_a_request_once(tmp_path: Path) -> None:
    """What the engine tells goes before what the front end tells of the same requests."""
    told = diagnose(tmp_path, dynamo(BUSY.but(running=5)), vllm(BUSY))
    assert told.reading("running_mean") == 8


AT_ENGINE = BUSY.but(ttft=Hist(100, 0.1), e2e=Hist(100, 2.0))


@pytest.mark.parametrize(("at_front", "flagged"), [(3.0, True), (0.4, True), (0.12, False)])
def test_wait_before_the_engines_is_shown_and_is_no_health(
    tmp_path: Path, at_front: float, flagged: bool
) -> None:
    """First tokens late at the front end and in time at the engine: a conflict, and the target is not met."""
    pages = (dynamo(AT_ENGINE.but(ttft=Hist(100, at_front))), vllm(AT_ENGINE))
    told = diagnose(tmp_path, *pages, options=("--ttft-ms", "300"))
    assert ("at the front end" in told.said("warnings")) is flagged
    assert (told.code == 0) is not flagged


def test_mean_alone_meets_no_target_of_a_tail(tmp_path: Path) -> None:
    """A summary without buckets: a mean of 100 ms under 500 ms says nothing of the p99, one above it does."""
    summary = "".join(
        f'vllm:time_to_first_token_seconds_{end}{{engine="0",model_name="m"}} {value}\n'
        for end, value in (("sum", 10), ("count", 100))
    )
    codes = [
        diagnose(tmp_path, vllm(BUSY) + summary, options=("--ttft-ms", target)).answer["healthy"]
        for target in ("500", "50")
    ]
    assert codes == [None, False]


def test_times_that_one_of_two_engines_tells_are_of_its_requests_alone(tmp_path: Path) -> None:
    """TGI times no first tokens: those of vLLM are not the fleet's, and meet no target for it."""
    ended = BUSY.but(queue=Hist(100, 0.01), e2e=Hist(100, 2.0), tpot=Hist(100, 0.02))
    told = diagnose(
        tmp_path, vllm(ended.but(ttft=Hist(100, 0.1))), tgi(ended), options=("--ttft-ms", "300")
    )
    assert told.reading("ttft_ms_mean") is None
    assert "does not tell ttft_s" in told.answer["readings"]["ttft_ms_mean"]["unknown"]
    assert told.reading("e2e_ms_mean") == pytest.approx(2000.0)
    assert told.code == 4


def test_older_and_newer_name_at_odds_are_shown_at_every_rank(tmp_path: Path) -> None:
    """Two ranks whose old and new gauges differ: the newer is read, and one note tells of both."""
    old = "".join(
        f'vllm:gpu_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.{rank + 7}\n'
        for rank in (0, 1)
    )
    told = diagnose(tmp_path, vllm(BUSY, BUSY) + old)
    assert told.reading("kv_used_share_max") == 0.3
    notes = [each["text"] for each in told.answer["warnings"] if each["kind"] == "conflict"]
    assert len(notes) == 1
    assert "one of 2 that differ" in notes[0]


@pytest.mark.parametrize("page", [vllm, sglang, trtllm], ids=["vllm", "sglang", "trtllm"])
def test_ranks_that_come_and_go_leave_no_number_behind(tmp_path: Path, page: Page) -> None:
    """Three scrapes with other ranks each: whoever is gone at the end makes the sums unknown."""
    rank = Load(running=4, waiting=1, kv=0.4, output_tokens=100)
    all_of_it = page(rank, rank.but(running=6), rank.but(running=2))
    middle = "\n".join(line for line in all_of_it.splitlines() if '"1"' not in line) + "\n"
    last = "\n".join(line for line in all_of_it.splitlines() if '"2"' not in line) + "\n"
    told = diagnose(tmp_path, all_of_it, middle, last, options=("--between", "10"))
    assert told.answer["sources"][0]["lost_ranks"] == ["2"]
    assert told.reading("running_mean") is None
    assert told.reading("output_tokens_per_s") is None
    assert told.code != 0


def test_restart_of_one_rank_of_two_is_no_negative_rate(tmp_path: Path) -> None:
    """One rank's counters fell and the other's grew: no rate is below 0 and the restart is told."""
    first = vllm(BUSY, BUSY, started_s=100.0)
    last = vllm(BUSY.but(output_tokens=10, prompt_tokens=90, finished=1),
                BUSY.but(output_tokens=1600, prompt_tokens=9900, finished=16), started_s=100.0)  # fmt: skip
    told = apart(tmp_path, first, last)
    rates = [
        each["value"] for name, each in told.answer["readings"].items() if name.endswith("per_s")
    ]
    assert all(value is None or value >= 0 for value in rates)
    assert told.answer["sources"][0]["restarts"] >= 1 or len(told.answer["sources"]) == 2


@pytest.mark.parametrize("kv", ["NaN", "-0.5", "+Inf", "1.7", "250"])
def test_usage_that_cannot_be_is_unknown_with_a_note(tmp_path: Path, kv: str) -> None:
    """No number, negative, infinite, between a share and a per cent, above 100%: none of it is a usage."""
    page = vllm(QUEUED.without("kv")) + f'vllm:kv_cache_usage_perc{{engine="0"}} {kv}\n'
    told = diagnose(tmp_path, page)
    assert told.reading("kv_used_share_max") is None
    assert kinds(told) & {"broken", "unit"}
    assert told.binding is None


def broken_facts(rng: random.Random) -> str:
    """A file of facts with a value of another kind, a key of none, or no end."""
    keys = ("slots", "ttft_ms_target", "accelerators", "prompts", "requested", "cache", "balance",
            "speculation", "layout", "transfer", "hand_off", "arms", "acceptance", "gaps", "nonsense")  # fmt: skip
    values = ("-1", "0", "1e400", "nan", "inf", '"x"', "[]", "{}", "[1, 2]", "true", '[""]', "{a = 1}",
              "[{}]", "[{}, {}]", "999999999999999999999")  # fmt: skip
    lines = [f"{rng.choice(keys)} = {rng.choice(values)}" for _ in range(rng.randrange(1, 3))]
    tables = ("[cache]\nproxy_hit_share = {}\n", "[balance]\nthreshold = {}\nseen_gap = {}\n",
              "[layout]\nheads = {}\ntensor_parallel = {}\n", "[[arms]]\nchunk_gap_ms = {}\n",
              "[transfer]\nlink_bytes_per_s = {}\n", "[hand_off]\nprompt_tokens = {}\ntransfer_ms = {}\n",
              "[speculation]\nstep_ms = {}\nproposer_ms = {}\n", "[[balance.replicas]]\nname = {}\n")  # fmt: skip
    table = rng.choice(tables)
    lines.append(table.format(*(rng.choice(values) for _ in range(table.count("{}")))))
    return "\n".join(rng.sample(lines, len(lines)))


@pytest.mark.parametrize("seed", range(200))
def test_broken_facts_end_in_an_answer_or_one_line(tmp_path: Path, seed: int) -> None:
    """Whatever stands in a file of facts: an answer, or one line with the key."""
    text = broken_facts(random.Random(seed))
    (tmp_path / "a.prom").write_text(vllm(BUSY))
    ran = invoke(str(tmp_path / "a.prom"), *facts(tmp_path, text), "--json")
    assert ran.exception is None or isinstance(ran.exception, SystemExit), (text, ran.exception)
    assert ran.exit_code in {0, 1, 3, 4}
    if ran.exit_code == 3:
        assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr
        return
    json.loads(ran.stdout, parse_constant=pytest.fail)


def broken_requests(rng: random.Random) -> bytes:
    """Request bodies with a part of them replaced by something that does not belong there."""
    bodies = [*nonce_at_top(3, tokens=200), *shuffled_tools(3, tools=3)]
    wrong = (None, 5, "x", [], {}, [None], [[]], {"a": []}, True, 1e308, "\udcff", [{"type": 5}],
             [{"type": "text", "text": None}], [{"type": "image_url"}])  # fmt: skip
    lines = []
    for body in rng.sample(bodies, len(bodies)):
        made = dict(body)
        place = rng.choice(
            ("messages", "tools", "system", "prompt", "session", "segments", "body", "event")
        )
        if rng.random() < 0.4:
            made[place] = rng.choice(wrong)
        elif rng.random() < 0.6:
            made["messages"] = [
                {**each, rng.choice(("content", "role", "tool_calls")): rng.choice(wrong)}
                for each in made["messages"]
            ]
        lines.append(json.dumps(made).encode())
    text = b"\n".join(lines)
    if rng.random() < 0.2:
        at = rng.randrange(len(text))
        text = text[:at] + bytes([rng.randrange(256)]) + text[at + rng.randrange(3) :]
    return text


@pytest.mark.parametrize("seed", range(100))
def test_broken_requests_end_in_a_lint_or_one_line(tmp_path: Path, seed: int) -> None:
    """Whatever stands in a file of requests: a lint, or one line with file and line."""
    path = tmp_path / "requests.jsonl"
    path.write_bytes(broken_requests(random.Random(seed)))
    ran = CliRunner().invoke(main, ["prompts", str(path), "--json"])
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    assert ran.exit_code in {0, 1, 3, 4}
    assert ran.exit_code != 3 or (
        len(ran.stderr.strip().splitlines()) == 1 and "line " in ran.stderr
    )


@pytest.mark.parametrize("page", [vllm, vllm_v0, sglang, trtllm, tgi, llamacpp, dynamo])
def test_empty_load_of_every_engine_is_no_verdict(tmp_path: Path, page: Page) -> None:
    """A page that names nothing of load is answered with what would tell."""
    told = diagnose(tmp_path, page(Load(output_tokens=5, running=1, finished=1)))
    assert (told.binding, told.code) == (None, 4)
    assert told.answer["would_tell"]
