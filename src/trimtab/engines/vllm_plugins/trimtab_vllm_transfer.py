"""Leaves a vLLM 0.32 server on CPUs its cores where it hands over KV, loaded by vLLM through its plugin entry point.

With a KV connector the worker is moved to the last core of each NUMA node, away from the cores that it was bound to,
and NIXL's progress thread asks for work without pause: one core per server is gone before the first token. On a machine
of few cores the servers then wait for each other, and what they measure says nothing of prefill and decode. Here the
worker stays where it was, and the thread sleeps between two looks.
"""

import os
import sys
from typing import Any, Final

LOOKS_EVERY_US: Final = 1000
"""Between two looks of the progress thread: a transfer takes tens of milliseconds."""


def register() -> None:
    """Wrap the connector's start and NIXL's agent; called by vLLM in each of its processes."""
    from vllm.distributed import nixl_utils
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

    worker = base_worker.NixlBaseConnectorWorker
    if nixl_utils.NixlWrapper is None or getattr(worker, "keeps_cores", False):
        return
    # The package that vLLM found is named by the accelerator that it was built for.
    bindings = sys.modules[nixl_utils.NixlWrapper.__module__].nixlBind
    begin, agent = worker.__init__, bindings.nixlAgent

    def begin_here(self: Any, *given: Any, **named: Any) -> None:
        cores = os.sched_getaffinity(0)
        begin(self, *given, **named)
        os.sched_setaffinity(0, cores)

    def patient_agent(name: str, config: Any) -> Any:
        config.pthrDelay = LOOKS_EVERY_US
        return agent(name, config)

    worker.__init__ = begin_here
    bindings.nixlAgent = patient_agent
    worker.keeps_cores = True
