"""Lets vLLM on a CPU log what each rank's weights take: on a GPU it says so itself, on a CPU it does not.

Bytes are counted once for each storage that a parameter or buffer of the loaded model lies in, so that tied embeddings
count once and a slice counts as what it keeps alive.
"""

from typing import Any


def register() -> None:
    """Wrap the loading of a model; called by vLLM in each of its processes."""
    from vllm.logger import init_logger
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if getattr(CPUModelRunner, "tells_weights", False):
        return
    load = CPUModelRunner.load_model
    logger = init_logger("vllm.trimtab_weights")

    def load_model(self: Any, *rest: Any, **named: Any) -> None:
        load(self, *rest, **named)
        tensors = [*self.model.parameters(), *self.model.buffers()]
        storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
        size = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
        logger.info("Weights of this rank: %d bytes in %d tensors", size, len(tensors))

    CPUModelRunner.load_model = load_model
    CPUModelRunner.tells_weights = True
