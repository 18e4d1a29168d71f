"""Many runs of the model: what of them counts, who goes to another replica, and how many must be good."""

import os
import signal
from dataclasses import replace
from itertools import count, pairwise
from statistics import fmean, variance

import pytest

from kvpressure.advise.drawn import Listed
from kvpressure.advise.seen import AdviseError, Figure, Server
from kvpressure.advise.sweep import Setting, Sweep, simulated, staying
from kvpressure.advise.workload import Poisson, Workload
from kvpressure.lab.leap import Job
from kvpressure.lab.model import Config

UNKNOWN = Figure(None, "", "not told")
SERVER = Server(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
CONFIG = Config(num_gpu_blocks=600, max_model_len=9600)


def workload(traffic, seconds=60.0):
    """Traffic on a server of which nothing else is known."""
    return Workload("w.yml", SERVER, None, seconds, traffic, 0, UNKNOWN, ())


def test_a_burst_at_the_beginning_counts():
    """Eighty requests at once, who do not fit, are preempted, though nobody comes after them."""
    burst = workload(Poisson(0.0, 80, Listed((16,)), Listed((500,))))
    with Sweep(CONFIG, burst, burst.seconds, 1, cores=1) as sweep:
        (run,) = sweep.runs(Setting())

    assert run.per_thousand > 100.0
    assert run.ttft_p95 is not None


def test_who_goes_to_another_replica_does_not_depend_on_what_he_asks():
    """Half of a trace is like all of it, though the trace was drawn by chance with the same seed."""
    trace = workload(tuple(Job(0.5 * i, 10, 100 if i < 600 else 1000) for i in range(1200)), seconds=600.0)
    for seed in range(1, 4):
        jobs = trace.jobs(seed)
        all_of_them, half = (fmean(job.answer for job in some) for some in (jobs, staying(jobs, 0.5, seed)))

        assert half == pytest.approx(all_of_them, rel=0.1)


def test_those_who_stay_come_as_irregularly():
    """Half of what comes by chance comes by chance: the squared variation of its gaps is one."""
    jobs = workload(Poisson(2.0, 0, Listed((10,)), Listed((100,))), seconds=6000.0).jobs(1)
    gaps = [after.arrival - before.arrival for before, after in pairwise(staying(jobs, 0.5, 1))]

    assert variance(gaps) / fmean(gaps) ** 2 == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("bad", "holds"), [(3, True), (4, False)])
def test_more_than_nine_of_ten(bad, holds):
    """Of forty runs three may fail, and not four."""
    judged = count()
    light = workload(Poisson(1.0, 0, Listed((10,)), Listed((2,))), seconds=5.0)
    with Sweep(CONFIG, light, light.seconds, 10, cores=1) as sweep:
        assert sweep.holds(Setting(), lambda _: next(judged) >= bad) is holds


GROWS = {
    "more than is served": (Poisson(2.0, 0, Listed((10,)), Listed((300,))), True),
    "a burst and more than is served": (Poisson(2.0, 60, Listed((10,)), Listed((300,))), True),
    "a burst that is being worked off": (Poisson(0.05, 500, Listed((10,)), Listed((300,))), False),
    "a burst at the end": (tuple(Job(0.0 if i < 20 else 290.0, 10, 30) for i in range(220)), False),
    "less than is served": (Poisson(0.3, 0, Listed((10,)), Listed((300,))), False),
}
"""Traffic on a batch of four, which serves one request of 300 tokens a second, and whether its queue grows."""


@pytest.mark.parametrize("name", GROWS)
def test_a_queue_grows_only_where_it_grows_all_the_time(name):
    """One that a burst leaves is long at the end and shorter than before, or was not there before."""
    traffic, grows = GROWS[name]
    described = workload(traffic, seconds=300.0)
    run = simulated(replace(CONFIG, max_num_seqs=4), described.jobs(0), Setting(), (0.0, 300.0), 0)

    assert (run.queued > 0.1) is grows


class Deadly:
    """Traffic that ends the process which wants to know it, as the kernel does where memory is short."""

    run_in = 0.0

    def jobs(self, _seed):
        """Nobody comes back from here."""
        os.kill(os.getpid(), signal.SIGKILL)


class Packed:
    """Traffic that notes, whenever it is packed for another process, whether Ctrl-C is heard then."""

    run_in = 0.0

    def __init__(self):
        self.heard = []

    def __getstate__(self):
        self.heard.append(signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return {}

    def jobs(self, _seed):
        """One user."""
        return [Job(0.0, 10, 2)]


def test_traffic_is_packed_once_while_ctrl_c_is_heard():
    """A trace of a million requests takes seconds to be packed: once for all processes, and not deaf to Ctrl-C."""
    traffic = Packed()
    with Sweep(CONFIG, traffic, 1.0, 4, cores=2) as sweep:
        assert len(sweep.runs(Setting())) == 4
    assert traffic.heard == [True]


def test_a_process_that_is_killed():
    """It is told in a sentence, not as a fault of the program."""
    with Sweep(CONFIG, Deadly(), 1.0, 1, cores=1) as sweep, pytest.raises(AdviseError, match="ended from outside"):
        sweep.runs(Setting())
