"""The upstream names as data: spellings, fields and what they lead to."""

import dataclasses

import pytest

from kvpressure.vllm import names
from kvpressure.vllm.reading import EngineReading
from kvpressure.vllm.spellings import SPELLINGS


def test_every_field_is_read():
    """Every value of a reading comes from a family, and every family but the era's marker fills one."""
    fields = {field.name for field in dataclasses.fields(EngineReading)} - {"era", "unreadable"}

    assert fields == {family.field for family in names.FAMILIES} - {names.V1_MARKER.field}


@pytest.mark.parametrize("family", names.FAMILIES, ids=lambda family: family.field)
def test_ways_of_writing(family):
    """Each spelling is known with colon and underscore, with and without Ray's prefix."""
    end = "_bucket" if family.kind == "histogram" else ""
    for rank, alias in enumerate(family.aliases):
        for written in ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_"):
            found = SPELLINGS[f"{written}{alias.name}{end}"]

            assert (family, alias, rank) in [(s.family, s.alias, s.rank) for s in found]


def test_counters_with_and_without_total():
    """A counter is known with and without _total, a gauge only without."""
    assert SPELLINGS["vllm:num_preemptions"] == SPELLINGS["vllm:num_preemptions_total"]
    assert "vllm:num_requests_running_total" not in SPELLINGS


def test_label_tells_apart():
    """Where one name leads to two fields, a label tells which; a series with neither is meant by none."""
    load, store = SPELLINGS["vllm:kv_offload_total_bytes_total"]

    assert load.fits({"transfer_type": "CPU_to_GPU"})
    assert not load.fits({"transfer_type": "GPU_to_CPU"})
    assert store.fits({"transfer_type": "GPU_to_CPU", "model_name": "m"})
    assert not store.fits({})


def test_series_as_promql_sees_it():
    """A family's series is its newest spelling, with _total for a counter."""
    assert names.PREEMPTIONS.series == "vllm:num_preemptions_total"
    assert names.KV_USAGE.series == "vllm:kv_cache_usage_perc"
    assert names.GAPS.series == "vllm:inter_token_latency_seconds"
