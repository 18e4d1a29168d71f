# a test's name is the fact that it proves
"""The lab's exposition is that of vLLM 0.32, and its numbers mean what vLLM's mean."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvpressure.lab.engine import Engine
from kvpressure.lab.metrics import ServerMetrics, length_edges
from kvpressure.lab.model import Config, Request, StepTime

RECORDED = (Path(__file__).parent / "fixtures" / "lab" / "vllm-0.32.0.prom").read_text()
"""The `vllm:` lines of one complete exposition of a real vLLM 0.32.0: 60 blocks of 32, 1024 tokens at most."""

SLOW = StepTime(base=1.0, decode=0.0, prefill=0.0)
"""Every step takes one second, so that times can be read off."""


def shape(text):
    """An exposition's `vllm:` lines in order, without the values."""
    lines = [line for line in text.splitlines() if "vllm:" in line]
    return [line if line.startswith("#") else line.rpartition(" ")[0] for line in lines]


class Served:
    """An engine and its metrics, without a server."""

    def __init__(self, config) -> None:
        self.engine = Engine(config)
        self.metrics = ServerMetrics(config, "tiny")

    def step(self):
        result, duration = self.engine.begin()
        self.metrics.record(self.engine.finish(result, duration))

    def finish_all(self):
        while not self.engine.scheduler.idle:
            self.step()

    def value(self, sample, **labels):
        found = self.metrics.registry.get_sample_value(
            sample, {"model_name": "tiny", "engine": "0"} | {name: str(value) for name, value in labels.items()}
        )
        assert found is not None, f"no sample {sample} {labels}"
        return found


def tight(**changes):
    """Four usable blocks of four: two requests of 8 + 6 do not fit together."""
    settings = {"num_gpu_blocks": 5, "block_size": 4, "max_model_len": 16, "step_time": SLOW}
    return Config(**(settings | changes))


def test_names_help_types_labels_edges_and_order_are_those_of_the_recorded_exposition():
    metrics = ServerMetrics(Config(num_gpu_blocks=60, block_size=32, max_model_len=1024), "tiny")
    assert shape(metrics.render().decode()) == shape(RECORDED)


def test_every_number_is_written_as_vllm_writes_it():
    served = Served(tight())
    served.engine.submit(Request("a", 8, 3))
    served.finish_all()
    for line in served.metrics.render().decode().splitlines():
        if line.startswith("vllm:"):
            assert re.fullmatch(r"\d+\.\d+(e[+-]\d\d)?", line.rpartition(" ")[2]), line


def test_process_and_python_families_stand_before_vllms():
    families = [f.name for f in text_string_to_metric_families(ServerMetrics(tight(), "tiny").render().decode())]
    assert families[0] == "python_gc_objects_collected"
    assert "process_start_time_seconds" in families
    assert families.index("python_info") < families.index("vllm:num_requests_running")


@pytest.mark.parametrize(
    ("longest", "edges"),
    [
        (1, [1]),
        (7, [1, 2, 5]),
        (1024, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
        (2000, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]),
    ],
)
def test_edges_of_token_counts_are_1_2_5_up_to_the_longest_request(longest, edges):
    assert list(length_edges(longest)) == edges


def test_cache_config_tells_this_servers_cache():
    text = ServerMetrics(Config(1662, max_model_len=8192, prefix_caching=False), "tiny").render().decode()
    (line,) = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
    assert "model_name" not in line
    for label in ('block_size="16"', 'num_gpu_blocks="1662"', 'kv_cache_size_tokens="26592"', 'engine="0"'):
        assert label in line
    assert 'enable_prefix_caching="False"' in line
    assert 'kv_cache_max_concurrency="3.24609375"' in line


def test_the_gaps_are_one_sample_per_token_except_the_first():
    served = Served(tight())
    served.engine.submit(Request("a", 8, 5))
    served.finish_all()
    assert served.value("vllm:inter_token_latency_seconds_count") == 4
    assert served.value("vllm:inter_token_latency_seconds_sum") == 4.0
    assert served.value("vllm:generation_tokens_total") == 5
    assert served.value("vllm:time_to_first_token_seconds_sum") == 1.0


def test_a_preemption_moves_the_counter_at_resume_together_with_one_large_gap():
    served = Served(tight())
    served.engine.submit(Request("old", 8, 6))
    served.engine.submit(Request("young", 8, 6))
    served.step()
    served.step()
    assert served.engine.scheduler.waiting[0].preemptions == 1
    while served.engine.scheduler.get("young").generated == 1:
        assert served.value("vllm:num_preemptions_total") == 0
        assert served.value("vllm:inter_token_latency_seconds_bucket", le="1.0") == served.value(
            "vllm:inter_token_latency_seconds_count"
        )
        served.step()
    assert served.value("vllm:num_preemptions_total") == 1
    large = served.value("vllm:inter_token_latency_seconds_count") - served.value(
        "vllm:inter_token_latency_seconds_bucket", le="1.0"
    )
    assert large == 1
    served.finish_all()
    assert served.value("vllm:request_num_preemptions_sum") == 1
    assert served.value("vllm:request_num_preemptions_count") == 2


def test_a_stalled_victim_whose_user_leaves_is_in_no_count_at_all():
    served = Served(tight())
    served.engine.submit(Request("old", 8, 6))
    served.engine.submit(Request("young", 8, 6))
    served.step()
    served.step()
    served.engine.abort("young")
    served.finish_all()
    assert served.value("vllm:num_preemptions_total") == 0
    assert served.value("vllm:request_num_preemptions_count") == 1
    assert served.value("vllm:request_success_total", finished_reason="length") == 1
    assert served.value("vllm:request_success_total", finished_reason="abort") == 0


def test_a_preemption_of_a_request_that_is_aborted_while_it_resumes_is_lost():
    served = Served(tight())
    served.engine.submit(Request("old", 8, 6))
    served.engine.submit(Request("young", 8, 6))
    while True:
        result, duration = served.engine.begin()
        if result.reports:
            break
        served.metrics.record(served.engine.finish(result, duration))
    served.engine.abort("young")
    served.metrics.record(served.engine.finish(result, duration))
    assert served.value("vllm:num_preemptions_total") == 0


def test_the_queue_time_of_a_preempted_request_is_that_of_its_first_start():
    served = Served(tight())
    served.engine.submit(Request("old", 8, 6))
    served.engine.submit(Request("young", 8, 6))
    served.finish_all()
    assert served.value("vllm:request_queue_time_seconds_sum") == 0
    assert served.value("vllm:request_num_preemptions_sum") == 1


def test_a_request_is_queued_when_the_scheduler_gets_it_not_when_the_front_end_does():
    served = Served(tight())
    served.step()
    served.engine.submit(Request("a", 8, 1), arrival=0.25)
    served.finish_all()
    assert served.value("vllm:time_to_first_token_seconds_sum") == 1.75
    assert served.value("vllm:request_queue_time_seconds_sum") == 0


def test_tokens_of_a_request_that_is_aborted_during_its_step_are_not_delivered():
    served = Served(tight())
    served.engine.submit(Request("a", 8, 1))
    result, duration = served.engine.begin()
    served.engine.abort("a")
    served.metrics.record(served.engine.finish(result, duration))
    assert served.value("vllm:generation_tokens_total") == 0
    assert served.value("vllm:request_success_total", finished_reason="length") == 0


def test_gauges_are_those_of_the_end_of_the_step():
    served = Served(tight(max_num_seqs=1))
    for name in ("a", "b", "c"):
        served.engine.submit(Request(name, 4, 3))
    served.step()
    assert served.value("vllm:num_requests_running") == 1
    assert served.value("vllm:num_requests_waiting") == 2
    assert served.value("vllm:num_requests_waiting_by_reason", reason="capacity") == 2
    assert served.value("vllm:kv_cache_usage_perc") == 0.25
    assert served.value("vllm:engine_sleep_state", sleep_state="awake") == 1


def test_a_finished_request_fills_every_histogram_once_with_its_own_times():
    served = Served(tight(max_num_seqs=1))
    served.engine.submit(Request("first", 4, 2))
    served.engine.submit(Request("second", 6, max_tokens=9, answer_tokens=3))
    served.finish_all()
    expected = {
        "request_prompt_tokens": 4 + 6,
        "request_generation_tokens": 2 + 3,
        "request_params_max_tokens": 2 + 9,
        "request_params_n": 2,
        "request_queue_time_seconds": 0 + 2,
        "request_prefill_time_seconds": 1 + 1,
        "request_decode_time_seconds": 1 + 2,
        "request_inference_time_seconds": 2 + 3,
        "e2e_request_latency_seconds": 2 + 5,
        "request_time_per_output_token_seconds": 1 + 1,
        "request_prefill_kv_computed_tokens": 4 + 6,
    }
    for family, total in expected.items():
        assert served.value(f"vllm:{family}_sum") == total, family
        assert served.value(f"vllm:{family}_count") == 2, family
    assert served.value("vllm:request_success_total", finished_reason="stop") == 1
    assert served.value("vllm:request_success_total", finished_reason="length") == 1


def test_prompt_tokens_split_into_computed_and_cached_and_count_when_the_prefill_is_over():
    served = Served(tight(num_gpu_blocks=20, max_num_batched_tokens=6))
    served.engine.submit(Request("a", 8, 2, block_keys=("k0",)))
    served.step()
    assert served.value("vllm:prompt_tokens_total") == 0
    assert served.value("vllm:iteration_tokens_total_count") == 0
    served.step()
    assert served.value("vllm:prompt_tokens_total") == 8
    assert served.value("vllm:iteration_tokens_total_sum") == 8 + 1
    served.engine.submit(Request("b", 8, 2, block_keys=("k0",)))
    served.finish_all()
    assert served.value("vllm:prefix_cache_queries_total") == 16
    assert served.value("vllm:prefix_cache_hits_total") == 4
    assert served.value("vllm:prompt_tokens_cached_total") == 4
    assert served.value("vllm:prompt_tokens_cached_by_source_total", source="device") == 4
    assert served.value("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 4
    assert served.value("vllm:prompt_tokens_by_source_total", source="local_compute") == 12


def test_the_look_up_of_a_resumed_request_is_not_counted():
    served = Served(tight())
    served.engine.submit(Request("old", 8, 6))
    served.engine.submit(Request("young", 8, 6))
    served.finish_all()
    assert served.value("vllm:num_preemptions_total") == 1
    assert served.value("vllm:prefix_cache_queries_total") == 16
    assert served.value("vllm:prompt_tokens_total") == 16


def test_openmetrics_is_served_to_those_who_ask_for_it():
    body, content_type = ServerMetrics(tight(), "tiny").negotiate("application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
