"""`trimtab plan --measure` on servers that a test starts: what is run, what it corrects, and what it says otherwise."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_engine import FakeEngine, Seen, whole

from trimtab.interfaces.plan_cli import plan

ASKED = ("--model", "llama-3.1-8b", "--hardware", "H100:2", "--isl", 200, "--osl", 20)
LOAD = ("--concurrency", 4, "--tpot-ms", 12)


class Server(FakeEngine):
    """A fake engine that says which model it serves, on an event loop of its own thread."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(words=("word",) * 20, pause_s=pause_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    async def completion(self, seen: Seen) -> AsyncIterator[bytes]:
        """Answer the list of models too."""
        if seen.path == "/v1/models":
            yield whole(200, json.dumps({"data": [{"id": "fake"}]}).encode())
            return
        async for piece in super().completion(seen):
            yield piece

    def __enter__(self) -> str:
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self.start(), self._loop).result(10)

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def run(*words: object) -> Any:
    return CliRunner().invoke(plan, [str(word) for word in words])


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    """A slow server for one device and a quick one for two."""
    with Server(0.03) as one, Server(0.005) as two:
        yield one, two


def test_measurements_replace_estimates_and_both_plans_are_shown(
    servers: tuple[str, str],
) -> None:
    """One device is slower than estimated, so after the measurement the plan takes two."""
    one, two = servers
    done = run(
        *ASKED, *LOAD, "--measure", "--url", f"single={one}", "--url", f"TP2={two}", "--json"
    )
    answer = json.loads(done.stdout)
    before, after = answer["before"]["chosen"], answer["after"]["chosen"]
    assert (done.exit_code, before["label"], after["label"]) == (0, "one device", "TP2")
    measured = {each["layout"]["tp"]: each for each in answer["measured"]}
    assert measured[1]["tpot_ms"] > 25 > measured[2]["tpot_ms"]
    assert (after["source"], after["tpot_ms"]["value"]) == (
        "measured",
        pytest.approx(measured[2]["tpot_ms"]),
    )


def test_server_of_a_layout_that_is_not_measured_is_said_to_be_unused(
    servers: tuple[str, str],
) -> None:
    """Nothing is asked of it, and the reader is told instead of left to wonder."""
    one = servers[0]
    done = run(*ASKED, *LOAD, "--measure", "--url", f"single={one}", "--url", f"TP8={one}")
    told = " ".join(done.stderr.split())
    assert (
        f"not used: TP8 at {one}: the plan asks for no measurement of it, but of one device" in told
    )
    none = run(*ASKED, *LOAD, "--measure", "--url", f"TP8={one}")
    assert (none.exit_code, "no measurement of it" in none.stderr) == (3, True)


def test_measurement_without_a_server_says_how_to_give_one(servers: tuple[str, str]) -> None:
    """What can be run is run; of the other it is said what is missing."""
    done = run(*ASKED, *LOAD, "--measure", "--url", f"single={servers[0]}", "--json")
    told = [each["why_not"] for each in json.loads(done.stdout)["measured"]]
    assert [bool(each) for each in told] == [False, True]
    assert "--url 'TP2=http://...'" in told[1]


def test_nothing_to_measure_on_is_an_error() -> None:
    """Without any server the plan is not called corrected."""
    done = run(*ASKED, *LOAD, "--measure")
    assert (done.exit_code, len(done.stderr.splitlines())) == (3, 1)
    assert "nothing was measured" in done.stderr


@pytest.mark.parametrize(
    "word", ["http://a:1", "TP2=a:1", "four=http://a:1", "=http://a:1"], ids=str
)
def test_url_needs_its_layout(word: str) -> None:
    """The error names the option and shows one that is right."""
    done = run(*ASKED, *LOAD, "--measure", "--url", word)
    assert (done.exit_code, done.stderr.startswith("Error: url: ")) == (3, True)


def test_dead_server_is_an_error_with_its_address(servers: tuple[str, str]) -> None:
    """No plan is made of requests that failed."""
    done = run(*ASKED, *LOAD, "--measure", "--url", "single=http://127.0.0.1:9")
    assert (done.exit_code, "http://127.0.0.1:9" in done.stderr) == (3, True)


def test_written_files_name_the_layout_and_no_part_is_left(tmp_path: Path) -> None:
    """Command, manifests and Ray configuration of what was chosen, and nothing beside them."""
    done = run(*ASKED, *LOAD, "--tp", 2, "--write", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["command.sh", "kubernetes.yaml", "ray-serve.yaml"]
    texts = {name: (tmp_path / "out" / name).read_text() for name in names}
    assert "--tensor-parallel-size 2" in texts["command.sh"]
    assert "--tensor-parallel-size 2" in texts["kubernetes.yaml"]
    assert (tmp_path / "out" / "command.sh").stat().st_mode & 0o111


def test_written_manifests_are_whole_documents(tmp_path: Path) -> None:
    """Any YAML reader finds the kinds, and no document refers to a part of another."""
    yaml = pytest.importorskip("yaml")
    run(*ASKED, *LOAD, "--write", tmp_path)
    text = (tmp_path / "kubernetes.yaml").read_text()
    assert [each["kind"] for each in yaml.safe_load_all(text)] == ["Deployment", "Service"]
    assert "&id" not in text
    (ray,) = yaml.safe_load_all((tmp_path / "ray-serve.yaml").read_text())
    assert ray["applications"][0]["import_path"] == "ray.serve.llm:build_openai_app"


def test_nothing_chosen_writes_nothing(tmp_path: Path) -> None:
    """No layout meets a tenth of a millisecond, so there is no command, and it is said."""
    done = run(*ASKED, "--concurrency", 4, "--tpot-ms", 0.1, "--write", tmp_path / "out")
    assert (done.exit_code, (tmp_path / "out").exists()) == (1, False)
    assert "nothing was written" in done.stderr


def test_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """A file in the way is named, and no half of the files is there."""
    (tmp_path / "kubernetes.yaml").mkdir()
    done = run(*ASKED, *LOAD, "--write", tmp_path)
    assert done.exit_code == 3
    assert "cannot be written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kubernetes.yaml"]
