"""Record what a real llama.cpp replica answers, for the contract tests of its wire format.

    .venv/bin/python scripts/record_transcripts.py

writes tests/contract/transcripts/llamacpp/<version of xllamacpp>/: each answer as status line, content type, empty
line and body, chunked transfer undone. Takes about ten seconds.
"""

import asyncio
from pathlib import Path

import aiohttp

from trimtab.core.config import EngineConfig
from trimtab.core.revision import Revision, Speculation, SpeculationMethod
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.model import baseline_revision, engine_version

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "contract" / "transcripts" / "llamacpp" / engine_version()
COUNTING = "one two three four five six seven eight nine ten " * 4
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def chat(text: str, **more: object) -> dict[str, object]:
    """Return the body of a short chat."""
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        "temperature": 0,
        **more,
    }


def completion(text: str, **more: object) -> dict[str, object]:
    """Return the body of a short completion."""
    return {"prompt": text, "max_tokens": 4, "temperature": 0, **more}


PLAIN = (
    ("chat", "/v1/chat/completions", chat("Say hello to the llama.")),
    ("chat_stream", "/v1/chat/completions", chat("Say hello to the llama.", stream=True)),
    ("chat_stream_usage", "/v1/chat/completions", chat("Say hello to the llama.", **USAGE)),
    ("completion", "/v1/completions", completion("Once upon a time")),
    ("completion_stream", "/v1/completions", completion("Once upon a time", stream=True)),
    ("completion_stream_usage", "/v1/completions", completion("Once upon a time", **USAGE)),
    ("context_overflow", "/v1/chat/completions", chat("llama " * 400)),
    ("context_overflow_stream", "/v1/chat/completions", chat("llama " * 400, **USAGE)),
    ("bad_request", "/v1/chat/completions", {"messages": "llama"}),
    ("slots", "/slots", None),
    ("metrics", "/metrics", None),
)
SPECULATING = (
    ("speculating_chat", "/v1/completions", completion(COUNTING) | {"max_tokens": 32}),
    ("speculating_stream", "/v1/completions", completion(COUNTING, **USAGE) | {"max_tokens": 32}),
    ("speculating_metrics", "/metrics", None),
)


async def main() -> None:
    """Start a replica without and one with speculation, ask, and write the answers."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    revision = baseline_revision(EngineConfig(slots=2, context_tokens=256, chunk_tokens=256))
    drafting = Speculation(
        method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=4, draft_tokens_max=8
    )
    launcher = LlamaCppLauncher(clock=SystemClock(), start_timeout_s=60, threads=1)
    try:
        await record(launcher, "plain", revision, PLAIN)
        await record(launcher, "speculating", revision.replace(speculation=drafting), SPECULATING)
    finally:
        await launcher.close()


async def record(
    launcher: LlamaCppLauncher,
    replica: str,
    revision: Revision,
    requests: tuple[tuple[str, str, dict[str, object] | None], ...],
) -> None:
    """Ask one replica and write its answers."""
    (placement,) = launcher.place([replica])
    url = await launcher.start(revision, placement)
    # The engine closes a connection after a stream without announcing it, so none is used twice.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        for name, path, body in requests:
            method = "GET" if body is None else "POST"
            async with session.request(method, url + path, json=body) as response:
                head = f"HTTP/1.1 {response.status} {response.reason}\n"
                kind = f"content-type: {response.headers['content-type']}\n\n"
                data = head.encode() + kind.encode() + await response.read()
                (FOLDER / f"{name}.http").write_bytes(data)
    await launcher.stop(replica, grace_s=5)


if __name__ == "__main__":
    asyncio.run(main())
