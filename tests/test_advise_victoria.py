"""What advice sees in a real VictoriaMetrics: the same as in a Prometheus with the same samples."""

import shutil
import urllib.parse
import urllib.request

import advise_past
import pytest
import victoria
from advise_past import LENGTH
from commands import get

from kvpressure.advise.prometheus import seen_by
from kvpressure.advise.recorded import seen_of

EARLIER = 400 * 86_400.0
"""Seconds: VictoriaMetrics takes no samples of a time to come."""
END = advise_past.END - EARLIER


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """One that has scraped half an hour of the lab's storm."""
    if shutil.which("victoria-metrics") is None:
        pytest.skip("there is no victoria-metrics here")
    with victoria.serving(tmp_path_factory.mktemp("victoria")) as address:
        lines = []
        for line in advise_past.past(advise_past.storm(), "a"):
            sample, _, at = line.rstrip().rpartition(" ")
            lines.append(f"{sample} {1000 * (float(at) - EARLIER):.0f}")
        urllib.request.urlopen(f"{address}/api/v1/import/prometheus", "\n".join(lines).encode(), timeout=30).close()
        get(f"{address}/internal/force_flush")
        yield address


def test_a_storm_is_seen(url):
    """Counts, lengths, gauges and the server's settings are those of the samples, to the last request."""
    found = seen_by(url, range_seconds=float(LENGTH), end=END)
    begin = found.slots[0].end - found.slots[0].seconds - (END - LENGTH)
    since = seen_of([row for row in advise_past.storm() if row.t >= begin], source="")

    for name in ("preemptions", "finished", "tokens"):
        assert sum(getattr(slot, name) for slot in found.slots) == sum(getattr(slot, name) for slot in since.slots) > 0
    for name in ("prompts", "answers", "first_tokens"):
        assert (
            sum(getattr(slot, name).count for slot in found.slots)
            == sum(getattr(slot, name).count for slot in since.slots)
            > 0
        )
    assert found.server.capacity.value == since.server.capacity.value
    assert found.server.block_size.value == since.server.block_size.value
    assert {slot.verdict for slot in found.slots[30:]} == {"kv_memory"}
    assert {slot.seconds for slot in found.slots} == {15.0}


def test_its_queries_can_be_pasted(url):
    """What the report gives as the source of a number is an answer here, too."""
    found = seen_by(url, range_seconds=float(LENGTH), end=END)

    assert len(found.sources) > 10
    for field, query in found.sources.items():
        address = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query, 'time': END})}"
        status, body = get(address)
        assert status == 200, field
        assert '"result":[]' not in body, field
