"""Arrivals, estimates and the detection of loops."""

import ast
import random

import pytest
from msgspec.json import decode

from trimtab.workloads.base import (
    Message,
    PeakShape,
    WorkloadError,
    arrivals,
    chat_body,
    estimate_tokens,
    first_arrivals,
    looks_looping,
)

FLAT = PeakShape(period_s=60.0, low=1.0, high=1.0)


def test_arrivals_have_the_rate_they_were_asked_for() -> None:
    """A flat process of 5 per second over 2,000 s has 10,000 arrivals, within four deviations."""
    times = arrivals(5.0, 2_000.0, FLAT, random.Random(1))
    assert abs(len(times) - 10_000) < 400
    assert list(times) == sorted(times)
    assert times[0] > 0.0
    assert times[-1] < 2_000.0


def test_arrivals_are_denser_at_the_peak() -> None:
    """The busy half of each cycle holds its integral share of the arrivals (here 0.755)."""
    peak = PeakShape(period_s=60.0, low=0.2, high=1.8)
    times = arrivals(5.0, 6_000.0, peak, random.Random(2))
    busy = sum(15.0 <= at % 60.0 < 45.0 for at in times) / len(times)
    assert abs(busy - 0.755) < 0.015


def test_first_arrivals_keep_the_cycle_across_windows() -> None:
    """Asking for a count gives exactly the count, in order, with the same mean rate."""
    peak = PeakShape(period_s=10.0, low=0.5, high=1.5)
    times = first_arrivals(2.0, 4_000, peak, random.Random(3))
    assert len(times) == 4_000
    assert list(times) == sorted(times)
    assert abs(times[-1] - 2_000.0) < 140.0


@pytest.mark.parametrize(("rate", "duration"), [(0.0, 1.0), (float("nan"), 1.0), (1.0, -1.0)])
def test_arrivals_refuse_a_rate_or_duration_of_nothing(rate: float, duration: float) -> None:
    """A process without rate or time is an error, not an empty workload."""
    with pytest.raises(WorkloadError, match="above 0"):
        arrivals(rate, duration, FLAT, random.Random(1))


def test_peak_refuses_a_high_end_under_its_low_end() -> None:
    """A cycle upside down is refused with the fix."""
    with pytest.raises(ValueError, match="exchange them"):
        PeakShape(low=2.0, high=1.0)


def test_peak_multiplier_runs_from_low_to_high_and_back() -> None:
    """The cycle starts low, is high at half its period, and repeats."""
    peak = PeakShape(period_s=40.0, low=0.5, high=1.5)
    assert [round(peak.multiplier(at), 6) for at in (0.0, 10.0, 20.0, 40.0)] == [0.5, 1.0, 1.5, 0.5]


def test_chat_body_is_an_openai_body_that_asks_for_usage() -> None:
    """The body decodes to the fields of a chat completion, with usage in the stream."""
    body = chat_body([Message("user", "Hi")], max_tokens=5, temperature=0.0, seed=7)
    assert decode(body) == {
        "model": "default",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 5,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 7,
    }


# Texts and their counts by the tokenizer of SmolLM2 (the /tokenize endpoint of its server).
COUNTED = (
    ("def install_opener(opener):\n    global _opener\n    _opener = opener", 21),
    (
        "def is_alive(self):\n    assert not self._is_stopped and self._started.is_set()\n    return True",
        28,
    ),
    (
        "def append(self, thread):\n    self.reap()\n    if thread.daemon:\n        return\n    super().append(thread)",
        29,
    ),
    ("def read(self, size):\n    self.read = self.fileobj.read\n    return self.buf", 23),
    ("def pop_all(self):\n    self[:], result = [], self[:]\n    return result", 19),
    (
        "Mostly other helpers of the same file, a few times per request; outside code seldom needs it directly.",
        22,
    ),
    ("What would you test first here?", 7),
    (
        "Start with empty input, then a single element, and after that a case in which the caller"
        " passes the wrong type.",
        24,
    ),
    ("def heappush(heap, item):\n    heap.append(item)\n    _siftdown(heap, 0, len(heap)-1)", 36),
    (
        "The server keeps the prompts of earlier requests in its cache, so that a new request that"
        " starts with the same words needs less work. A router should send it to the replica that"
        " already holds them, unless that replica has more work than the others.",
        50,
    ),
)


def test_estimate_is_near_the_tokenizer() -> None:
    """Short texts are estimated within a third each, and within 10% together."""
    ratios = [estimate_tokens(text) / tokens for text, tokens in COUNTED]
    assert all(2 / 3 <= ratio <= 4 / 3 for ratio in ratios)
    together = sum(estimate_tokens(text) for text, _ in COUNTED) / sum(n for _, n in COUNTED)
    assert abs(together - 1.0) <= 0.10


def test_estimate_of_nothing_is_zero() -> None:
    """No text is no token, and any text is at least one."""
    assert (estimate_tokens(""), estimate_tokens("a")) == (0, 1)


LOOPS = (
    "a a a a a a a a",
    "I am sorry, I am sorry, I am sorry, I am sorry, I am sorry",
    "    return_entry = None\n" * 6,
    "The list is sorted.\nThe list is sorted.\nThe list is sorted.\n",
    "1. Check the input.\n2. Check the input.\n3. Check the input.\n4. Check the input.",
    "It depends.\n\nFirst open the file.\nThen read it.\n\n"
    + "First open the file.\nThen read it.\n\n" * 3,
    "It holds a helper that reads a file and " + "returns the value of the value " * 5,
    "```python\ndef f(x):\n" + "    x = x + 1\n" * 8,
    "the same the same the same the same",
)


@pytest.mark.parametrize("text", LOOPS)
def test_a_loop_is_detected(text: str) -> None:
    """Words, phrases, lines, numbered lists and paragraphs that repeat are a loop."""
    assert looks_looping(text)


ORDINARY = (
    "",
    "No.",
    "It is what it is, and that is all it is.",
    "very, very, very good",
    "def f(a, b):\n    self.a = a\n    self.b = b\n    self.c = None\n    self.d = None\n    self.e = 0",
    "| --- | --- | --- | --- |",
    "=" * 60,
    "Row, row, row your boat gently down the stream.",
    "    }\n    }\n    }\n}\n",
)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_no_loop(text: str) -> None:
    """Short repeats, rulers, tables and closing brackets are not loops."""
    assert not looks_looping(text)


def test_no_standard_library_function_is_a_loop(sources: dict[str, str]) -> None:
    """300 real functions raise no false alarm, whole and cut to what a model may output."""
    functions = [
        "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
        for text in sources.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) > node.lineno + 1
    ]
    chosen = random.Random(1).sample(functions, 300)
    assert [text for text in chosen if looks_looping(text) or looks_looping(text[:150])] == []


def test_looping_check_is_bounded_in_cost() -> None:
    """A very long text is judged by its end only."""
    words = [str(number) for number in range(100_000)]
    assert not looks_looping(" ".join(words))
    assert looks_looping(" ".join(words) + " again and" * 2_000)
