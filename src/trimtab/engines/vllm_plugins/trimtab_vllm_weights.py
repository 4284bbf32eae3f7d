"""Lets vLLM on a CPU log what each rank's weights take: on a GPU it says so itself, on a CPU it does not.

Counted are the weights as loaded, before the kernels pack them anew (one for one, but for the output matrix, of which
a packed copy is added). Bytes count once for each storage, so that tied embeddings count once and a slice counts as
what it keeps alive.
"""

from typing import Any


def register() -> None:
    """Count just before packing; called by vLLM in each of its processes."""
    from vllm.logger import init_logger
    from vllm.model_executor.model_loader import base_loader

    pack = base_loader.process_weights_after_loading
    if getattr(pack, "tells_weights", False):
        return
    logger = init_logger("vllm.trimtab_weights")

    def process_weights_after_loading(model: Any, *rest: Any, **named: Any) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
        size = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
        logger.info("Weights of this rank: %d bytes in %d tensors", size, len(tensors))
        pack(model, *rest, **named)

    process_weights_after_loading.tells_weights = True  # type: ignore[attr-defined]
    base_loader.process_weights_after_loading = process_weights_after_loading
