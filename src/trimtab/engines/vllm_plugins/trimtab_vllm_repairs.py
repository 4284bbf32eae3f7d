"""A repair of vLLM 0.32 on CPUs, loaded by vLLM itself through its plugin entry point.

Expert parallelism gives each rank a part of the experts and a map from an expert's global number to its local one. The
CPU kernel does not look at the map: it takes global numbers as places in the local weights and reads past their end.
Here the numbers are mapped before the kernel sees them; experts of other ranks get weight 0, and the sum over ranks
that follows is then complete.
"""

from typing import Any


def register() -> None:
    """Wrap the CPU kernel of unquantised experts; called by vLLM in each of its processes."""
    import torch
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    experts = cpu_moe.CPUUnquantizedExperts
    if getattr(experts, "maps_experts", False):
        return
    whole = experts.apply

    def apply(
        self: Any,
        output: Any,
        hidden_states: Any,
        w1: Any,
        w2: Any,
        topk_weights: Any,
        topk_ids: Any,
        activation: Any,
        global_num_experts: Any,
        expert_map: Any,
        *rest: Any,
        **named: Any,
    ) -> Any:
        if expert_map is not None:
            local = expert_map[topk_ids.long()]
            here = local >= 0
            topk_weights = torch.where(here, topk_weights, torch.zeros_like(topk_weights))
            topk_ids = torch.where(here, local, torch.zeros_like(local)).to(topk_ids.dtype)
        return whole(
            self,
            output,
            hidden_states,
            w1,
            w2,
            topk_weights,
            topk_ids,
            activation,
            global_num_experts,
            expert_map,
            *rest,
            **named,
        )

    experts.apply = apply
    experts.maps_experts = True
