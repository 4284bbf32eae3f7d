"""The names of exporters that speak of devices and hosts: DCGM and nvidia-smi exporters, the node exporter.

DCGM counts MiB and percents whatever the name says. The node exporter knows the memory of AMD devices (its `drm`
collector) and of the host, which is the accelerator's memory only where the processor is the accelerator.
"""

from trimtab.core.served import EngineKind, Gauge
from trimtab.engines.served_names import MIB, GaugeRow, NameTable, Source, named

DCGM = NameTable(
    engine=EngineKind.DCGM,
    prefixes=("DCGM_FI_", "nvidia_smi_"),
    gauges=(
        GaugeRow(
            Gauge.GPU_MEMORY_USED_BYTES,
            (Source("DEV_FB_USED", scale=MIB), Source("memory_used_bytes")),
            largest=True,
            renamed=False,
        ),
        GaugeRow(
            Gauge.GPU_MEMORY_TOTAL_BYTES,
            (Source("DEV_FB_TOTAL", scale=MIB), Source("memory_total_bytes")),
            largest=True,
            renamed=False,
        ),
        GaugeRow(
            Gauge.GPU_BUSY_SHARE,
            (
                Source("DEV_GPU_UTIL", percent=True),
                Source("PROF_GR_ENGINE_ACTIVE"),
                Source("utilization_gpu_ratio"),
            ),
            share=True,
            renamed=False,
        ),
        GaugeRow(
            Gauge.GPU_POWER_W,
            (Source("DEV_POWER_USAGE"), Source("power_draw_watts")),
            renamed=False,
        ),
        GaugeRow(
            Gauge.GPU_POWER_LIMIT_W,
            (Source("DEV_POWER_MGMT_LIMIT"), Source("enforced_power_limit_watts")),
            renamed=False,
        ),
    ),
    extras=("DEV_FB_FREE", "DEV_FB_RESERVED"),
    rank_labels=("gpu", "uuid", "UUID"),
    rank_suffix_labels=("GPU_I_ID",),
    facts={"modelName": "accelerator"},
)

NODE = NameTable(
    engine=EngineKind.NODE,
    prefixes=("node_",),
    gauges=(
        GaugeRow(Gauge.GPU_MEMORY_USED_BYTES, named("drm_memory_vram_used_bytes"), largest=True),
        GaugeRow(Gauge.GPU_MEMORY_TOTAL_BYTES, named("drm_memory_vram_size_bytes"), largest=True),
        GaugeRow(Gauge.GPU_BUSY_SHARE, (Source("drm_gpu_busy_percent", percent=True),), share=True),
        GaugeRow(Gauge.HOST_MEMORY_TOTAL_BYTES, named("memory_MemTotal_bytes"), largest=True),
    ),
    extras=("memory_MemAvailable_bytes",),
    rank_labels=("card",),
)
