"""What passes through the gateway in streams, byte for byte, and what is recorded of it."""


from fake_engine import FakeEngine
from harness import SECRET, Harness


async def test_stream_passes_with_a_complete_record() -> None:
    """A stream arrives as the engine sent it, and its record has what the engine reported."""
    engine = FakeEngine(cached_tokens=5, pause_s=0.01)
    async with Harness(engine) as fleet:
        reply = await fleet.post({"temperature": 0, "max_tokens": 9}, X_Trimtab_Label="edit")
        record = await fleet.record()
    sent = b"".join(engine.events(engine.requests[0])[:-2]) + b"data: [DONE]\n\n"
    assert (200, sent) == (reply.status, reply.body)
    assert (
        record.ok,
        record.chunks,
        record.label,
        record.replica,
        record.revision,
        record.temperature,
        record.max_tokens,
    ) == (True, 4, "edit", "r0", "fake-1", 0.0, 9)
    assert (
        record.tokens.output,
        record.tokens.delivered,
        record.tokens.output_estimated,
    ) == (4, 5, False)
    assert SECRET.digest(b"Hello, world!") == record.output_hash
