"""What the drift check reads in a package's source: families and log messages, from its syntax, without running it."""

import zipfile

import pytest
from drift_help import ran
from e2e import drift_logs, drift_package, drift_reports, drift_source, drift_table

from kvpressure.vllm import names

SOURCE = {
    "_version.py": "__version__ = version = '9.9.1'\n",
    "logger.py": '_FORMAT = (f"{envs.VLLM_LOGGING_PREFIX}%(levelname)s %(asctime)s "\n'
    '           "[%(filename)s:%(lineno)d] %(message)s")\n',
    "config/cache.py": "class CacheConfig:\n    block_size: int\n    num_gpu_blocks: int\n    D: ClassVar[int] = 1\n",
    "v1/metrics/loggers.py": '''
"""vllm:not_a_metric stands in a docstring."""
EDGES = (0.5, 1.0, 2.0)
class Names:
    LOADED = "vllm:kv_offload_load_bytes"
class Logger:
    reason = "finished_reason"
    def __init__(self, max_model_len):
        labelnames = ["model_name", "engine"]
        self._gauge_cls(name="vllm:num_requests_running", labelnames=labelnames, multiprocess_mode="sum")
        self._counter_cls(name="vllm:num_preemptions_total", labelnames=labelnames)
        prometheus_client.Counter(name="vllm:request_success", labelnames=labelnames + [Logger.reason])
        self._histogram_cls(name="vllm:inter_token_latency_seconds", buckets=EDGES, labelnames=labelnames)
        Histogram("vllm:request_prompt_tokens", buckets=build_1_2_5_buckets(max_model_len), labelnames=labelnames)
        if self.show_hidden_metrics:
            self._gauge_cls(name="vllm:gpu_cache_usage_perc", labelnames=labelnames)
        table = {Names.LOADED: OffloadingCounterMetadata(documentation="x")}
    def info(self, kind, config):
        name = None
        if kind == "cache_config":
            name = "vllm:cache_config_info"
        self._gauge_cls(name=name, labelnames=config.keys())
        other = f("vllm:mentioned")
''',
    "entrypoints/logger.py": """
stream_info = " (streaming delta)" if delta else " (streaming complete)"
logger.info("Received request %s: params: %s, "
            "lora_request: %s.", request_id, params, lora)
logger.info("Generated response %s%s: output: %r, finish_reason: %s", request_id, stream_info, outputs, reason)
logger.info("Request body follows")
""",
    "v1/engine/async_llm.py": """
logger.info("Aborted request(s) %s.", ",".join(ids))
logger.info("Added request %s.", one)
""",
}


def wheel(tmp_path, **changed):
    """A wheel with a source, some files of which are changed."""
    path = tmp_path / "vllm-9.9.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in (SOURCE | changed).items():
            packed.writestr(f"vllm/{name}", text)
    return path


def test_declarations_in_a_source(tmp_path):
    """Names, types, labels, edges and conditions are read from the syntax, through constants and tables."""
    source = drift_source.read(wheel(tmp_path))
    (families,) = drift_package.engines(source).values()

    assert "9.9.1" == source.release()
    assert families["num_requests_running"].labels == {"model_name", "engine"}
    assert ("counter", True) == (families["num_preemptions"].kind, families["num_preemptions"].whole)
    assert families["request_success"].labels == {"model_name", "engine", "finished_reason"}
    assert (0.5, 1.0, 2.0) == families["inter_token_latency_seconds"].edges
    assert drift_source.TOKENS == families["request_prompt_tokens"].edges
    assert "only if self.show_hidden_metrics" == families["gpu_cache_usage_perc"].note
    assert "counter" == families["kv_offload_load_bytes"].kind
    assert families["cache_config_info"].labels == {"block_size", "num_gpu_blocks"}
    assert ("", "named in the source") == (families["mentioned"].kind, families["mentioned"].note)
    assert "not_a_metric" not in families


def test_folder_and_wheel_are_alike(tmp_path):
    """An unpacked wheel, the package in it and the wheel itself give the same."""
    path = wheel(tmp_path)
    with zipfile.ZipFile(path) as packed:
        packed.extractall(tmp_path / "site")
    (tmp_path / "site" / "vllm" / "__init__.py").touch()

    known = drift_package.engines(drift_source.read(path))
    assert known == drift_package.engines(drift_source.read(tmp_path / "site"))
    assert known == drift_package.engines(drift_source.read(tmp_path / "site" / "vllm"))


def test_nothing_of_a_source_is_executed(tmp_path):
    """A module that would leave a trace when it is imported leaves none."""
    trace = tmp_path / "trace"
    text = f"open({str(trace)!r}, 'w').close()\n" + SOURCE["v1/metrics/loggers.py"]
    drift_package.engines(drift_source.read(wheel(tmp_path, **{"v1/metrics/loggers.py": text})))

    assert not trace.exists()


def test_hidden_before_the_table_says_so(tmp_path):
    """What a source shows on demand only is gone where the table says that it is in sight."""
    source = SOURCE["v1/metrics/loggers.py"].replace('"vllm:gpu_cache', '"vllm:time_per_output_token_seconds", x="')
    families = drift_package.engines(drift_source.read(wheel(tmp_path, **{"v1/metrics/loggers.py": source})))["V1"]
    del families["inter_token_latency_seconds"]

    rows = {release: drift_table.compare(families, "V1", release, source=True) for release in ((0, 9, 2), (0, 14, 1))}
    said = {release: next(row for row in told if row.family is names.GAPS) for release, told in rows.items()}
    assert "GONE: hidden, where the table says" in said[0, 9, 2].says
    assert "GONE: hidden" not in said[0, 14, 1].says


def test_v0_and_v1_in_one_package(tmp_path):
    """V0's metrics stand in engine/ and count while its engine is a class, not another name for V1's."""
    metrics = 'self._gauge_cls(name="vllm:num_requests_swapped", labelnames=["model_name"])\n'
    both = {"engine/metrics.py": metrics, "engine/llm_engine.py": "class LLMEngine:\n    pass\n"}
    found = drift_package.engines(drift_source.read(wheel(tmp_path, **both)))
    assert ["V0", "V1"] == list(found)
    assert ["num_requests_swapped"] == list(found["V0"])

    both["engine/llm_engine.py"] = "LLMEngine = V1LLMEngine\n"
    assert ["V1"] == list(drift_package.engines(drift_source.read(wheel(tmp_path, **both))))


def test_messages_of_a_source(tmp_path):
    """Each message about requests is put through the log reader behind the source's own header."""
    formats = drift_logs.formats(drift_source.read(wheel(tmp_path)))
    says = {message.template.split("%")[0].strip(): message.says for message in formats.messages}

    assert formats.header_read
    assert {
        "Aborted request(s)": ("abort",),
        "Added request": (),
        "Generated response": ("end", "last", "token"),
        "Received request": ("start",),
    } == says
    assert [] == formats.gone(None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("entrypoints/logger.py", "Generated response", "Sent response"), "token (a chunk of an answer)"),
        (("v1/engine/async_llm.py", "Aborted request(s) %s.", "Aborting %s."), "abort (a request was aborted)"),
        (("logger.py", "%(levelname)s", "<%(levelname)s>"), "does **not** know"),
    ],
)
def test_changed_messages(tmp_path, capsys, change, says):
    """A message or a header that is not understood any more breaks, and is named."""
    path, old, new = change
    assert old in SOURCE[path]
    status, out, _ = ran(capsys, "--package", wheel(tmp_path, **{path: SOURCE[path].replace(old, new)}))

    assert 1 == status
    assert says in out


def test_deltas_came_with_0_10(tmp_path):
    """A release before deltas need not log them."""
    text = SOURCE["entrypoints/logger.py"].replace('" (streaming delta)" if delta else ', "")
    formats = drift_logs.formats(drift_source.read(wheel(tmp_path, **{"entrypoints/logger.py": text})))

    assert [] == formats.gone((0, 9, 2))
    assert ["token (a chunk of an answer)", "last (the last chunk of an answer)"] == formats.gone((0, 10, 2))


def test_reports_of_wheels(tmp_path):
    """Each wheel of a folder gets a report, and is compared with the next older one."""
    wheel(tmp_path)
    older = SOURCE["v1/metrics/loggers.py"].replace('other = f("vllm:mentioned")', "")
    with zipfile.ZipFile(tmp_path / "vllm-9.8.0-py3-none-any.whl", "w") as packed:
        packed.writestr("vllm/_version.py", "__version__ = version = '9.8.0'")
        packed.writestr("vllm/v1/metrics/loggers.py", older)
    first, second = drift_reports.packages(tmp_path)

    assert ["9.8.0-package.md", "9.9.1-package.md"] == [first[0], second[0]]
    assert "Compared with vLLM 0.32.0" in first[1]
    assert "Compared with `vllm-9.8.0-py3-none-any.whl`" in second[1]
    assert "Not in it (1): `mentioned` (named in the source)." in second[1]
