"""KV events over a real ZeroMQ socket, as vLLM publishes them, and what happens where they cannot be heard."""

import asyncio
import importlib

import msgspec
import pytest
import zmq
import zmq.asyncio
from harness import until

from trimtab.core.kv_blocks import KvBatch
from trimtab.runtime.kv_events import KvEventsError, KvListener, open_receiver

STORED = {
    "type": "BlockStored",
    "block_hashes": [b"\x01" * 32],
    "parent_block_hash": None,
    "token_ids": [1, 2],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}


async def test_published_events_reach_the_router_and_broken_ones_are_counted() -> None:
    """What a publisher sends is heard under its replica's name; frames that cannot be read end nothing."""
    heard: list[tuple[str, KvBatch]] = []
    context = zmq.asyncio.Context.instance()
    publisher = context.socket(zmq.PUB)
    publisher.setsockopt(zmq.LINGER, 0)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    listener = KvListener(
        {"r0": f"tcp://127.0.0.1:{port}"}, lambda replica, batch: heard.append((replica, batch))
    )
    listener.open()
    task = asyncio.create_task(listener.run())
    payload = msgspec.msgpack.encode([1.0, [STORED]])
    try:

        async def sent() -> None:
            for sequence in range(1000):
                await publisher.send_multipart([b"", b"broken", b""])
                await publisher.send_multipart([b"", sequence.to_bytes(8, "big"), payload])
                await asyncio.sleep(0.01)
                if heard:
                    return

        await sent()
        await until(lambda: heard and listener.unreadable["r0"])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        publisher.close()
    replica, batch = heard[0]
    assert replica == "r0"
    assert batch.events[0].blocks == (b"\x01" * 32,)  # type: ignore[union-attr]


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:5557", "tcp://*:5557", "tcp://10.0.0.1:5557"])
def test_publishers_may_not_reach_in_from_elsewhere(address: str) -> None:
    """Binding is for loopback: whoever can send decides what the gateway believes in."""
    with pytest.raises(KvEventsError, match="loopback"):
        open_receiver(f"bind:{address}")


def test_without_pyzmq_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what is missing and how to get it or go without."""

    def absent(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(KvEventsError, match=r"kv-events.*routing\.kv_events"):
        open_receiver("tcp://127.0.0.1:5557")
