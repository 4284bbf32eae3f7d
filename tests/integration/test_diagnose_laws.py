"""Laws of reading, through the command: order and unknown metrics change nothing, garbage ends in an answer."""

import random
from pathlib import Path

import pytest
from scrape_kit import Hist, Load, diagnose, invoke, llamacpp, sglang, vllm

RANK = Load(
    running=7,
    waiting=3,
    kv=0.6,
    preemptions=1,
    queries=5000,
    hits=900,
    prompt_tokens=5000,
    output_tokens=900,
    finished=40,
    ttft=Hist(40, 0.4),
    queue=Hist(40, 0.1),
    e2e=Hist(40, 3.0),
    tpot=Hist(40, 0.02),
    drafts=5,
    drafted=20,
    accepted=9,
)
PAGES = {
    "vllm": vllm(RANK, RANK.but(running=1, waiting=0, kv=0.1), RANK.but(kv=0.9)),
    "sglang": sglang(RANK, RANK.but(running=1, waiting=0, kv=0.1)),
    "llamacpp": llamacpp(RANK),
}


def families(page: str) -> list[list[str]]:
    """The lines of each series' name, kept together."""
    groups: dict[str, list[str]] = {}
    for line in page.splitlines():
        name = line.split()[2] if line.startswith("#") else line.split("{")[0].split(" ")[0]
        for end in ("_bucket", "_sum", "_count"):
            name = name.removesuffix(end)
        groups.setdefault(name, []).append(line)
    return list(groups.values())


def facts_of(folder: Path, page: str) -> dict[str, object]:
    """What an answer says, without its time."""
    answer = dict(diagnose(folder, page).answer)
    answer.pop("at_s")
    for reading in answer["readings"].values():
        reading.pop("id")
    return answer


@pytest.mark.parametrize("engine", PAGES)
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_families_and_ranks_gives_the_same_answer(
    tmp_path: Path, engine: str, seed: int
) -> None:
    """Families are shuffled, and the samples inside each."""
    rng = random.Random(seed)
    groups = families(PAGES[engine])
    rng.shuffle(groups)
    lines = []
    for group in groups:
        types = [line for line in group if line.startswith("#")][:1]
        samples = [line for line in group if not line.startswith("#")]
        rng.shuffle(samples)
        lines += types + samples
    shuffled = "\n".join(lines) + "\n"
    assert facts_of(tmp_path, PAGES[engine]) == facts_of(tmp_path, shuffled)


@pytest.mark.parametrize("engine", PAGES)
def test_unknown_metrics_change_nothing(tmp_path: Path, engine: str) -> None:
    """Metrics that nobody knows are not read, whatever their engine's prefix."""
    page = PAGES[engine]
    prefix = {"vllm": "vllm:", "sglang": "sglang:", "llamacpp": "llamacpp:"}[engine]
    more = f'{prefix}brand_new_gauge 7\n{prefix}brand_new_total 8\nfoo_bar{{a="b"}} NaN\n'
    assert facts_of(tmp_path, page) == facts_of(tmp_path, more + page)


def broken(rng: random.Random) -> bytes:
    """A page with a few things wrong in it."""
    body = bytearray(rng.choice(list(PAGES.values())).encode())
    for _ in range(rng.randrange(1, 12)):
        at = rng.randrange(len(body))
        match rng.randrange(7):
            case 0:
                body[at] = rng.randrange(256)
            case 1:
                del body[at : at + rng.randrange(1, 200)]
            case 2:
                body[at:at] = bytes(rng.randrange(256) for _ in range(20))
            case 3:
                body = body.replace(b" 40", rng.choice([b" NaN", b" +Inf", b" -7", b" 1e999"]), 3)
            case 4:
                body = body.replace(b'le="+Inf"', b'le="oops"', 1)
            case 5:
                line = rng.choice(bytes(body).split(b"\n"))
                body += line + b"\n"
            case _:
                body += (
                    b'vllm:num_requests_running{engine="' + b"x" * rng.randrange(500) + b'"} 1\n'
                )
        if not body:
            return b""
    return bytes(body)


@pytest.mark.parametrize("seed", range(200))
def test_broken_page_ends_in_an_answer_or_one_line(tmp_path: Path, seed: int) -> None:
    """Whatever is on a page: an answer, or a typed error in one line; never a traceback."""
    path = tmp_path / "a.prom"
    path.write_bytes(broken(random.Random(seed)))
    ran = invoke(str(path), "--json")
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    assert ran.exit_code in {0, 1, 3, 4}
    assert ran.exit_code != 3 or len(ran.stderr.strip().splitlines()) == 1
