"""A worker of one machine with an api that wants sessions of it: what the tests of exec and of forwarding share."""

WAITS = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('done')"


class SessionWorker:
    """A worker on one machine and the api it reports to."""

    def __init__(self, worker, api):
        self.worker, self.api = worker, api
        self.count = 0

    def start(self, script=WAITS, **order):
        order.setdefault("report", {"url": self.api.url, "token": "wkr.x"})
        self.worker.python(script, **order)
        return self

    def call(self):
        """What the api does when a user wants a session; the worker's end of it."""
        return self.calls(1)[0]

    def calls(self, number):
        folder = self.worker.folder / "sessions"
        folder.mkdir(exist_ok=True)
        for _ in range(number):
            self.count += 1
            (folder / f"{self.count:032x}").touch()
        return [self.api.peer() for _ in range(number)]

    def go(self):
        (self.worker.folder / "go").touch()
        return self.worker.finish()
