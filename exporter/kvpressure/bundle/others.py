"""Series that dashboards read and that neither the catalogue nor vLLM has. Nobody else here spells their names."""

ALERTS = "ALERTS"
"""Prometheus' own: the alerts that are pending or fire."""

GPU_UTILISATION = "DCGM_FI_DEV_GPU_UTIL"
"""NVIDIA's DCGM exporter's, where there is one: percent, per GPU."""

CPU_SECONDS = "process_cpu_seconds_total"
"""Every Prometheus client's, ours by prometheus_client."""

MEMORY_BYTES = "process_resident_memory_bytes"
"""The same."""
