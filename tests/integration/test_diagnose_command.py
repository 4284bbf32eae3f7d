"""The command around a diagnosis: exit codes, sources, windows, watching, the page, and errors in one line."""

import gzip
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cli_kit import Background
from scrape_kit import Hist, Load, diagnose, invoke, sglang, vllm

CALM = Load(
    running=2,
    waiting=0,
    kv=0.2,
    preemptions=0,
    queries=1000,
    hits=0,
    prompt_tokens=1000,
    output_tokens=1000,
    finished=50,
    ttft=Hist(50, 0.08),
    queue=Hist(50, 0.0005),
    prefill=Hist(50, 0.08),
    decode=Hist(50, 0.9),
    e2e=Hist(50, 1.0),
    tpot=Hist(50, 0.009),
)
QUEUED = CALM.but(
    waiting=300, running=64, queue=Hist(50, 20.0), ttft=Hist(50, 20.1), e2e=Hist(50, 21.0)
)


class Server:
    """Answers with pages in turn; the last one again and again."""

    def __init__(self) -> None:
        self.pages: list[bytes] = []
        self.asked: list[str] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                body = outer.pages.pop(0) if len(outer.pages) > 1 else outer.pages[0]
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def answer(*arguments: str) -> tuple[int, dict[str, Any]]:
    ran = invoke(*arguments, "--json")
    assert ran.stdout.startswith("{"), ran.output
    return ran.exit_code, json.loads(ran.stdout)


def test_answer_has_every_part_that_is_promised(tmp_path: Path) -> None:
    """Scripts rely on these names."""
    told = diagnose(tmp_path, vllm(QUEUED))
    parts = {"binding", "phases", "confidence", "for", "against", "ruled_out", "unknown"}
    assert parts | {"budgets", "levers", "warnings", "sources"} <= told.answer.keys()
    assert set(told.answer["binding"]) >= {"phase", "resource"}
    assert all("resource" in phase for phase in told.answer["phases"])
    assert 0.0 <= told.answer["confidence"] <= 1.0
    assert [each["budget"] for each in told.answer["budgets"]] == [
        "compute",
        "memory",
        "communication",
        "quality",
    ]


def later(load: Load, times: int) -> Load:
    """The same load when everything that counts has grown so many times over."""
    grown = {
        name: value * times
        if isinstance(value, int | float)
        else replace(value, count=value.count * times)
        for name, value in vars(load).items()
        if value is not None and name not in {"running", "waiting", "kv"}
    }
    return load.but(**grown)


CEILINGS = ("--model", "Qwen/Qwen2.5-0.5B-Instruct", "--hardware", "H100")
TARGETS = ("--ttft-ms", "500", "--tpot-ms", "50")


def test_calm_server_is_healthy(tmp_path: Path) -> None:
    """Nothing queued and nothing near a known ceiling is exit code 0."""
    pages = (vllm(CALM), vllm(later(CALM, 2)))
    told = diagnose(tmp_path, *pages, options=("--between", "60", *CEILINGS))
    assert (told.code, told.answer["outcome"]) == (0, "healthy")


def test_server_whose_ceilings_nobody_tells_is_not_called_healthy(tmp_path: Path) -> None:
    """Without targets, model and hardware nothing says how near the ceilings are."""
    told = diagnose(tmp_path, vllm(CALM), vllm(later(CALM, 2)), options=("--between", "60"))
    assert told.code == 4
    assert "--model and --hardware" in told.said("would_tell")


@pytest.mark.parametrize(("finished", "code"), [(10, 0), (40, 0), (58, 4)])
def test_server_that_is_mostly_empty_is_near_no_ceiling(
    tmp_path: Path, finished: int, code: int
) -> None:
    """Requests of a second each, so many a minute: no ceiling is used for longer than requests are there."""
    each = {"finished": finished, "prompt_tokens": 20 * finished, "output_tokens": 20 * finished}
    load = CALM.but(running=0, e2e=Hist(finished, 1.0), **each)
    told = diagnose(tmp_path, vllm(load), vllm(later(load, 2)), options=("--between", "60"))
    assert told.code == code


@pytest.mark.parametrize(
    ("load", "code"),
    [
        (CALM.but(prefill=Hist(50, 0.7), decode=Hist(50, 0.2), ttft=Hist(50, 0.7)), 4),
        (CALM.but(queue=Hist(50, 0.7), decode=Hist(50, 0.2), ttft=Hist(50, 0.75)), 1),
    ],
    ids=["prefill is the work itself", "queueing yields nothing"],
)
def test_phase_that_leads_is_a_bottleneck_only_where_something_says_so(
    tmp_path: Path, load: Load, code: int
) -> None:
    """Without ceilings and targets a phase of work may lead on a server that does well; waiting may not."""
    told = diagnose(tmp_path, vllm(load), vllm(later(load, 2)), options=("--between", "60"))
    assert (told.code, told.binding is None) == (code, False)


def test_failing_requests_alone_are_no_bottleneck(tmp_path: Path) -> None:
    """A server known to fail is not healthy; without anything that binds, exit code 1 would name what nobody knows."""
    page = """tgi_batch_current_size 2
tgi_queue_size 0
tgi_request_success {success}
tgi_request_failure{{err="generation"}} {failure}
tgi_request_generated_tokens_sum {tokens}
"""
    pages = [page.format(success=50 * n, failure=20 * n, tokens=900 * n) for n in (1, 2)]
    told = diagnose(tmp_path, *pages, options=("--between", "60"))
    assert (told.code, told.binding, told.answer["healthy"]) == (4, None, False)
    assert "fail" in told.answer["healthy_because"]


def test_idle_server_is_healthy(tmp_path: Path) -> None:
    """Nothing runs and nothing waits."""
    assert diagnose(tmp_path, vllm(CALM.but(running=0))).code == 0


def test_queued_server_is_a_bottleneck(tmp_path: Path) -> None:
    """A queue is exit code 1."""
    assert diagnose(tmp_path, vllm(QUEUED)).code == 1


def test_page_without_what_is_needed_cannot_tell(tmp_path: Path) -> None:
    """Exit code 4 and no binding, with a reason."""
    told = diagnose(tmp_path, vllm(Load(drafts=10, drafted=40, accepted=20)))
    assert (told.code, told.binding) == (4, None)
    assert told.answer["unknown"] or told.answer["would_tell"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--ttft-ms", "500"), 0),
        (("--ttft-ms", "500", "--tpot-ms", "20"), 0),
    ],
)
def test_targets_that_are_met_are_healthy(
    tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    """Targets judge before ceilings do."""
    assert diagnose(tmp_path, vllm(CALM), options=options).code == code


def test_target_that_is_missed_is_no_health(tmp_path: Path) -> None:
    """A target missed is never exit code 0."""
    assert diagnose(tmp_path, vllm(CALM), options=("--tpot-ms", "2")).code in {1, 4}
    assert diagnose(tmp_path, vllm(QUEUED), options=("--ttft-ms", "500")).code == 1


def test_long_times_beside_a_target_are_told_as_numbers(tmp_path: Path) -> None:
    """Bucket edges of ten seconds and more are no powers of ten."""
    slow = CALM.but(ttft=Hist(100, 12.0))
    told = diagnose(tmp_path, vllm(slow), options=("--ttft-ms", "1000"))
    assert (
        "TTFT p99 between 10,000 and 15,000 ms, target 1,000 ms" in told.answer["healthy_because"]
    )


def test_target_without_its_reading_cannot_tell(tmp_path: Path) -> None:
    """A target that no metric speaks of is neither met nor missed."""
    page = vllm(CALM.without("ttft", "queue", "e2e", "prefill"))
    assert diagnose(tmp_path, page, options=("--ttft-ms", "500")).code == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name an address or a file"),
        (("nowhere.prom",), "neither a file nor an address"),
        (("localhost:8000",), "write http://localhost:8000"),
        (("http://",), "names no host"),
        (("--prometheus", "http://127.0.0.1:1"), "belong together"),
        (("--prometheus", "ftp://x", "--selector", "{}"), "is no address"),
        (("--window", "-1"), "--window"),
        (("--window", "nan"), "no finite number"),
        (("--ttft-ms", "nan"), "no finite number"),
        (("--between", "inf"), "no finite number"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    """What cannot be meant is told with its fix."""
    ran = invoke(*arguments)
    assert (ran.exit_code, words in ran.output) == (2, True), ran.output


def test_address_that_nobody_answers_is_an_error() -> None:
    """Nothing read is exit code 3, in one line without a traceback."""
    ran = invoke("http://127.0.0.1:9/metrics", "--window", "0")
    assert ran.exit_code == 3
    assert ran.stderr.startswith("Error: nothing could be read. http://127.0.0.1:9/metrics:")
    assert len(ran.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"<html><body>no metrics</body></html>", b"\xff\xfe\x00", b'{"json": true}'],
    ids=["empty", "html", "bytes", "json"],
)
def test_file_that_is_no_page_of_metrics_is_an_error(tmp_path: Path, body: bytes) -> None:
    """A wrong file is named."""
    (tmp_path / "a.prom").write_bytes(body)
    ran = invoke(str(tmp_path / "a.prom"))
    assert ran.exit_code in {3, 4}
    assert "a.prom" in ran.output


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--model", "no-such-model", "no known model"),
        ("--hardware", "abacus", "abacus"),
        ("--facts", "absent.toml", "cannot be read"),
    ],
)
def test_facts_that_cannot_be_read_are_an_error(
    tmp_path: Path, option: str, value: str, words: str
) -> None:
    """A model, a device or a file that is not known is told, not skipped."""
    (tmp_path / "a.prom").write_text(vllm(CALM))
    ran = invoke(str(tmp_path / "a.prom"), option, value)
    assert (ran.exit_code, words in ran.stderr) == (3, True), ran.stderr


def test_misspelt_fact_is_refused_with_its_key(tmp_path: Path) -> None:
    """A fact that is not known is not half read."""
    (tmp_path / "facts.toml").write_text("slotz = 4\n")
    (tmp_path / "a.prom").write_text(vllm(CALM))
    ran = invoke(str(tmp_path / "a.prom"), "--facts", str(tmp_path / "facts.toml"))
    assert (ran.exit_code, "slotz" in ran.stderr) == (3, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slots = -3\n", "slots is -3"),
        ("ttft_ms_target = nan\n", "ttft_ms_target is nan"),
        ("[transfer]\nlink_bytes_per_s = inf\n", "not finite"),
        ("prompts = " + "[" * 100_000, "no file of facts"),
    ],
)
def test_fact_that_cannot_be_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """A number that nothing can have is told, and never counted with."""
    (tmp_path / "facts.toml").write_text(text)
    (tmp_path / "a.prom").write_text(vllm(CALM))
    ran = invoke(str(tmp_path / "a.prom"), "--facts", str(tmp_path / "facts.toml"))
    assert (ran.exit_code, words in ran.stderr) == (3, True), ran.output


def test_label_of_a_server_does_not_steer_the_terminal(server: Server, tmp_path: Path) -> None:
    """Escape sequences and line ends in a label, or in a refusal, reach neither terminal, page nor JSON."""
    (tmp_path / "a.prom").write_text(
        vllm(CALM).replace('model_name="', 'model_name="\x1b[2J\\n\x9b')
    )
    page = tmp_path / "page.html"
    shown = invoke(str(tmp_path / "a.prom"), "--html", str(page))
    assert "[2J" in shown.stdout
    assert [
        text for text in (shown.stdout, page.read_text()) if "\x1b" in text or "\x9b" in text
    ] == []
    _, told = answer(str(tmp_path / "a.prom"))
    assert "\x1b" not in told["sources"][0]["model"]
    server.pages = [b'{"status":"error","error":"\\u001b[2Jno\\nmore"}']
    refused = invoke("--prometheus", server.url, "--selector", "{}", "--window", "60")
    assert (refused.exit_code, "\x1b" in refused.stderr) == (3, False)
    assert len(refused.stderr.strip().splitlines()) == 1


def test_address_is_read_over_a_window(server: Server) -> None:
    """Two reads of an address make rates; its path is /metrics unless it says another."""
    server.pages = [vllm(CALM).encode(), vllm(later(CALM, 2)).encode()]
    code, told = answer(server.url, "--window", "0.2", "--scrapes", "2", *TARGETS)
    source = told["sources"][0]
    assert (code, source["scrapes"], source["lifetime"]) == (0, 2, False)
    assert source["window_s"] == pytest.approx(0.2, abs=0.15)
    assert told["readings"]["output_tokens_per_s"]["value"] > 500
    assert server.asked == ["/metrics", "/metrics"]


def test_address_read_once_tells_of_its_life(server: Server) -> None:
    """A window of 0 is one read, and its figures are since the start."""
    server.pages = [vllm(CALM).encode()]
    _, told = answer(f"{server.url}/other?x=1", "--window", "0")
    assert (told["sources"][0]["lifetime"], server.asked) == (True, ["/other?x=1"])
    assert told["sources"][0]["source"] == f"{server.url}/other"


def test_secrets_of_an_address_are_not_shown(server: Server) -> None:
    """User, password and query do not reach the answer."""
    server.pages = [vllm(CALM).encode()]
    url = server.url.replace("http://", "http://user:secret@")
    ran = invoke(f"{url}/metrics?token=hidden", "--window", "0", "--json", *TARGETS)
    assert ran.exit_code == 0
    assert [word for word in ("secret", "hidden") if word in ran.output] == []


def test_one_source_that_fails_is_told_beside_the_others(server: Server, tmp_path: Path) -> None:
    """The rest is diagnosed; what failed is a source with its reason and a warning."""
    server.pages, server.status = [b"no"], 503
    (tmp_path / "a.prom").write_text(vllm(CALM))
    _, told = answer(str(tmp_path / "a.prom"), server.url, "--window", "0")
    assert [bool(each["failed"]) for each in told["sources"]] == [False, True]
    assert "status 503" in told["sources"][1]["failed"]
    assert any("was not read" in each["text"] for each in told["warnings"])


def test_servers_are_not_healthy_while_one_cannot_be_read(tmp_path: Path) -> None:
    """What one of two servers does is unknown, so a healthy one does not speak for both."""
    (tmp_path / "a.prom").write_text(vllm(CALM))
    alone, _ = answer(str(tmp_path / "a.prom"), *TARGETS)
    code, told = answer(str(tmp_path / "a.prom"), "http://127.0.0.1:9", "--window", "0", *TARGETS)
    assert (alone, code, told["healthy"]) == (0, 4, None)
    assert "http://127.0.0.1:9/metrics was not read" in told["healthy_because"]


def test_answer_beyond_the_limit_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small answer that unpacks into a large one is cut off at the limit in bytes."""
    monkeypatch.setattr("trimtab.runtime.served_sources.BODY_BYTES_MAX", 100_000)
    server.pages = [gzip.compress(b"a 1\n" * 1_000_000)]
    server.headers = {"Content-Encoding": "gzip"}
    ran = invoke(server.url, "--window", "0")
    assert (ran.exit_code, "longer than 100,000 bytes" in ran.stderr) == (3, True), ran.output


def test_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is not read when it is too large."""
    monkeypatch.setattr("trimtab.runtime.served_sources.BODY_BYTES_MAX", 1000)
    (tmp_path / "a.prom").write_text(vllm(CALM))
    ran = invoke(str(tmp_path / "a.prom"))
    assert (ran.exit_code, "more than 1,000" in ran.stderr) == (3, True)


def test_two_files_of_one_server_are_a_window(tmp_path: Path) -> None:
    """Files that fit are scrapes of one server; their distance is unknown until somebody tells it."""
    first, last = vllm(CALM), vllm(CALM.but(output_tokens=1600))
    told = diagnose(tmp_path, first, last)
    assert [each["scrapes"] for each in told.answer["sources"]] == [2]
    assert told.answer["sources"][0]["window_s"] is None
    assert told.reading("output_tokens_per_s") is None
    assert "--between" in told.said("warnings")
    told = diagnose(tmp_path, first, last, options=("--between", "60"))
    assert told.reading("output_tokens_per_s") == pytest.approx(10.0)


def test_times_of_files_are_used_where_they_rise(tmp_path: Path) -> None:
    """Files saved a minute apart need no option."""
    paths = [tmp_path / "1.prom", tmp_path / "2.prom"]
    for index, path in enumerate(paths):
        path.write_text(vllm(CALM.but(output_tokens=1000 + 600 * index)))
        os.utime(path, (1e9 + 60 * index, 1e9 + 60 * index))
    _, told = answer(*map(str, paths))
    assert told["readings"]["output_tokens_per_s"]["value"] == pytest.approx(10.0)


def test_files_whose_counters_part_are_two_servers(tmp_path: Path) -> None:
    """One counter up and another down is not one server's life."""
    told = diagnose(tmp_path, vllm(CALM), vllm(CALM.but(output_tokens=1600, prompt_tokens=10)))
    assert [each["scrapes"] for each in told.answer["sources"]] == [1, 1]
    assert told.reading("running_mean") == 4


def test_names_say_which_server_a_file_is_of(tmp_path: Path) -> None:
    """NAME=FILE keeps servers apart that look like one, and joins one that looks like two."""
    for name in ("1", "2"):
        (tmp_path / name).write_text(vllm(CALM))
    _, told = answer(f"blue={tmp_path}/1", f"green={tmp_path}/2")
    assert [each["source"] for each in told["sources"]] == ["blue", "green"]
    _, told = answer(f"blue={tmp_path}/1", f"blue={tmp_path}/2")
    assert [(each["source"], each["scrapes"]) for each in told["sources"]] == [("blue", 2)]


def test_restart_between_two_files_is_found(tmp_path: Path) -> None:
    """Counters that all fell are a restart and not a negative rate."""
    fell = Load(running=1, waiting=0, kv=0.1, prompt_tokens=10, output_tokens=10, finished=1)
    told = diagnose(
        tmp_path,
        vllm(CALM.without("ttft", "queue", "prefill", "decode", "e2e", "tpot", "preemptions")),
        vllm(fell),
        options=("--between", "60"),
    )
    assert told.answer["sources"][0]["restarts"] == 1
    assert "restarted" in {each["kind"] for each in told.answer["warnings"]}


def test_prometheus_api_is_asked_for_its_window(server: Server) -> None:
    """One query reads the window from the API's memory; several instances are servers of their own."""

    def series(name: str, instance: str, *values: float) -> dict[str, Any]:
        labels = {"__name__": name, "instance": instance, "job": "v", "model_name": "m"}
        return {
            "metric": labels,
            "values": [[1000.0 + 15 * index, str(value)] for index, value in enumerate(values)],
        }

    found = [
        series("vllm:num_requests_running", "a:8000", 3, 3, 3),
        series("vllm:num_requests_waiting", "a:8000", 0, 0, 0),
        series("vllm:generation_tokens_total", "a:8000", 100, 250, 400),
        series("vllm:num_requests_running", "b:8000", 5, 5, 5),
        series("vllm:num_requests_waiting", "b:8000", 0, 0, 0),
        series("vllm:generation_tokens_total", "b:8000", 0, 150, 300),
    ]
    body = {"status": "success", "data": {"resultType": "matrix", "result": found}}
    server.pages = [json.dumps(body).encode()]
    _, told = answer("--prometheus", server.url, "--selector", '{job="v"}', "--window", "60")
    query = parse_qs(urlsplit(server.asked[0]).query)["query"][0]
    assert 'job="v"' in query
    assert query.endswith("[60s]")
    assert len(told["sources"]) == 2
    assert told["readings"]["running_mean"]["value"] == pytest.approx(8)
    assert told["readings"]["output_tokens_per_s"]["value"] == pytest.approx(20.0)


def test_refusal_of_a_prometheus_api_is_told(server: Server) -> None:
    """The API's own words say what is wrong with a selector."""
    body = {"status": "error", "errorType": "bad_data", "error": "parse error: unexpected x"}
    server.pages, server.status = [json.dumps(body).encode()], 400
    ran = invoke("--prometheus", server.url, "--selector", "{x", "--window", "60")
    assert (ran.exit_code, "unexpected x" in ran.stderr) == (3, True), ran.output


def test_watch_ends_after_its_refreshes_with_the_last_code(server: Server) -> None:
    """Each look is about the last window; as JSON it is one line a look."""
    calm = [vllm(later(CALM, times)).encode() for times in (1, 2, 3)]
    queued = [vllm(later(QUEUED, times)).encode() for times in (10, 20, 30, 40)]
    server.pages = calm + queued
    ran = invoke(
        server.url, "--watch", "--every", "0.1", "--window", "0.15", "--refreshes", "7", "--json",
        *TARGETS,
    )  # fmt: skip
    looks = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [look["outcome"] for look in (looks[0], looks[-1])] == ["healthy", "bottleneck"]
    assert ran.exit_code == 1


def test_watch_goes_on_while_a_server_is_away(server: Server) -> None:
    """A look that fails is a warning; what was read before stays until it is too old."""
    server.pages = [vllm(CALM).encode(), b"<html>restarting</html>"]
    ran = invoke(
        server.url, "--watch", "--every", "0.05", "--window", "60", "--refreshes", "3", "--json"
    )
    looks = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(looks) == 3
    assert any("was not read" in each["text"] for each in looks[-1]["warnings"])


def test_watch_draws_trends_on_a_terminal_and_a_page(server: Server, tmp_path: Path) -> None:
    """The page has a chart of each trend and loads itself anew."""
    server.pages = [vllm(later(CALM, times)).encode() for times in (1, 2, 3)]
    page = tmp_path / "deep" / "page.html"
    ran = invoke(
        server.url, "--watch", "--every", "0.05", "--window", "1", "--refreshes", "3",
        "--html", str(page), *TARGETS,
    )  # fmt: skip
    text = page.read_text()
    assert ran.exit_code == 0
    assert "Running requests" in ran.stdout
    assert 'http-equiv="refresh"' in text
    assert 'id="trends"' in text
    assert list(page.parent.iterdir()) == [page]


def test_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    """Nothing is loaded from anywhere, and a model's name is shown, not obeyed."""
    page = tmp_path / "page.html"
    text = sglang(QUEUED).replace('model_name="m"', 'model_name="<b>m</b>"')
    diagnose(tmp_path, text, options=("--html", str(page)))
    shown = page.read_text()
    assert re.findall(r"url\(|@import|<script|https?://(?!www\.w3\.org)", shown) == []
    assert "<b>m</b>" not in shown
    assert "prefers-color-scheme: dark" in shown
    assert shown.count("<desc>") == shown.count("<svg ")


def test_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A folder in the way is told."""
    (tmp_path / "a.prom").write_text(vllm(CALM))
    (tmp_path / "file").write_text("")
    ran = invoke(str(tmp_path / "a.prom"), "--html", str(tmp_path / "file" / "page.html"))
    assert (ran.exit_code, "cannot be written" in ran.stderr) == (3, True)


def test_text_says_what_binds_and_what_was_read(tmp_path: Path) -> None:
    """The terminal's first line is the answer."""
    (tmp_path / "a.prom").write_text(vllm(QUEUED))
    ran = invoke(str(tmp_path / "a.prom"))
    assert ran.exit_code == 1
    first = ran.stdout.splitlines()[0]
    assert first.startswith("! bottleneck queue is bound by admission")
    for words in ("Budgets used", "Levers, narrowest first", "Sources", "TTFT p50"):
        assert words in ran.stdout
    assert "None" not in ran.stdout


def test_interrupt_ends_a_watch_with_the_code_of_its_last_answer(
    server: Server, tmp_path: Path
) -> None:
    """Ctrl-C is how a watch ends: no traceback, and the code says what was seen last."""
    server.pages = [vllm(later(QUEUED, times)).encode() for times in range(1, 400)]
    arguments = (server.url, "--watch", "--every", "0.1", "--window", "5", "--json", *TARGETS)
    with Background(tmp_path, "diagnose", *arguments) as watch:
        watch.wait_for('"outcome":"bottleneck"')
        watch.interrupt()
        ended = watch.end()
    assert (ended.code, "Traceback" in ended.out, ended.left) == (1, False, {})
