# small helpers, named for what they do
"""A log tail over real files, with a clock that the test moves."""

from logs_help import NOON

from kvpressure.observe.logtail import POLL, LogTail


class Sink:
    """Keeps what it is given, in order."""

    def __init__(self):
        self.events, self.advanced, self.lost, self.calls = [], [], [], []

    def feed(self, events):
        self.events += events
        self.calls.append("feed")

    def advance(self, t):
        self.advanced.append(t)
        self.calls.append("advance")

    def lose(self, t):
        self.lost.append(t)
        self.calls.append("lose")

    @property
    def requests(self):
        return [event.request.decode() for event in self.events]


class Followed:
    """A tail of `names` below a folder; time goes on with each poll."""

    def __init__(self, folder, *names):
        self.folder, self.t, self.sink = folder, NOON, Sink()
        self.tail = LogTail(tuple(str(folder / name) for name in names or ("*.log",)), self.sink, lambda: self.t)
        self.steps = 0

    def poll(self, times=1, seconds=POLL):
        """Some polls, and what they gave."""
        before = len(self.sink.requests)
        for _ in range(times):
            self.t += seconds
            self.steps = sum(1 for _ in self.tail.poll())
        return self.sink.requests[before:]

    def write(self, name, *requests, end="\n"):
        """Append lines, stamped with the present moment."""
        self.append(name, b"".join(self.line(request, end) for request in requests))

    def append(self, name, data):
        """Append bytes."""
        with (self.folder / name).open("ab") as file:
            file.write(data)

    def line(self, request, end="\n"):
        return f'{{"request_id": "{request}", "event": "token", "time": {self.t:.3f}}}{end}'.encode()

    @property
    def facts(self):
        return self.tail.facts()
