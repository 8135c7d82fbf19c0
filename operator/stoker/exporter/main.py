"""The exporter's process: composes its parts, runs until SIGTERM or Ctrl-C, ends within two seconds whatever hangs.

Holds no rule of its own. The meters get their time from here.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from stoker.heap import hold_heap_together

from .allocation import NoAllocation
from .allocation.folders import EVERY_S as FOLDERS_EVERY_S
from .allocation.folders import FolderAllocation
from .clock import now, process_began
from .ledger_writer import LedgerWriter
from .loop import PollLoop
from .meters import ledger_file
from .meters.node import NodeMeters
from .options import Options, parse
from .owners import Allocations
from .receipts import Receipt
from .serving.page import RenderedPage
from .serving.server import Server
from .serving.tls_and_tokens import BearerTokens, Certificate, CredentialsError
from .watch import ReaderWatch

if TYPE_CHECKING:
    from stoker.push.link import Link
    from stoker.push.sender import Push

    from .reporting.reporter import UsageReporter

END_S = 1.5
"""For the last writes to disk, api and receiver. What is left then is in the spool; a push is lost."""
STACK_BYTES = 512 << 10
"""Of each thread; the default of 8 MiB counts where memory is not overcommitted."""

log = logging.getLogger("stoker.exporter")


class CannotStart(Exception):
    """The text says what to do."""


def main() -> None:
    """The script `stoker-exporter`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    code = run(parse(sys.argv[1:], os.environ))
    sys.stdout.flush()
    os._exit(code)  # not through the interpreter's end: a thread may hang on a disk


def run(options: Options) -> int:
    """Until SIGTERM or SIGINT. Returns the exit code: 0, or 1 when it could not start."""
    threading.stack_size(STACK_BYTES)
    hold_heap_together()
    over = threading.Event()
    try:
        with ExitStack() as stack:
            _run(options, over, stack)
    except (CannotStart, ledger_file.StateError) as error:
        log.error("%s", error)
        return 1
    return 0


def _run(options: Options, over: threading.Event, stack: ExitStack) -> None:
    state = options.state
    if state is not None:
        stack.enter_context(ledger_file.locked(state))
    begin, boot = now(), ledger_file.boot_id()
    ledger = (
        ledger_file.fresh(options.node, begin, boot)
        if state is None
        else ledger_file.load(state, options.node, begin, boot)
    )
    tracks = options.allocation != "none"
    meters = NodeMeters(
        ledger,
        interval_s=options.interval,
        now=process_began(),
        expected_gpus=options.expected_gpus,
        retired_gpus=options.retired_gpu,
        simulated_gpus=options.simulated_gpus,
        tracks_allocation=tracks,
    )
    page = RenderedPage()
    reporter, push = _reporter(options), _push(options)
    watch: ReaderWatch | None = None

    def send(receipts: tuple[Receipt, ...]) -> None:
        if reporter is not None:
            reporter.offer(receipts)

    writer = LedgerWriter(state, meters.books(), send)
    loop = PollLoop(
        meters,
        page,
        writer,
        clock=now,
        interval_s=options.interval,
        tracks_allocation=tracks,
        polls=not options.simulated_gpus,
        push=push,
        reports=reporter,
        parts=lambda: _counts(watch, reporter, push),
    )
    server = _server(options, page)
    if not options.simulated_gpus:
        watch = ReaderWatch(child_command(options), loop.put, stuck_after_s=options.stuck_after)
    ending = _end_signal(stack)
    writer.start()
    loop.start()
    for part in (reporter, push, watch):
        if part is not None:
            part.start()
    # It ends with the process, so it need not look twice a second whether to end.
    threading.Thread(target=server.serve_forever, args=(3600.0,), name="serving", daemon=True).start()
    if tracks:
        _start_reading(*_allocation(options, loop), loop, over)
    gc.collect()
    gc.freeze()
    log.info("node %s: metrics on port %d", options.node, server.server_address[1])
    os.read(ending, 1)
    over.set()
    _end(watch, loop, writer, reporter, push)


def child_command(options: Options) -> list[str]:
    command = [sys.executable, "-P", "-m", "stoker.nvml", "--interval", str(options.interval)]
    command += ["--collectors", ",".join(options.collectors)]
    return [*command, "--expected", str(options.expected_gpus)] if options.expected_gpus else command


def _end(
    watch: ReaderWatch | None, loop: PollLoop, writer: LedgerWriter, reporter: UsageReporter | None, push: Push | None
) -> None:
    """The last figures are counted first, then kept, then sent; each only as long as the deadline leaves it."""
    by_s = time.monotonic() + END_S

    def left_s() -> float:
        return max(0.05, by_s - time.monotonic())

    last = [threading.Thread(target=push.stop, args=(left_s(),), daemon=True)] if push is not None else []
    loop.stop(left_s() / 2)
    if not writer.stop(left_s() / 2):
        log.error("the disk hangs: the ledger's last seconds are lost")
    if reporter is not None:
        last.append(threading.Thread(target=reporter.stop, args=(left_s(),), daemon=True))
    if watch is not None:
        last.append(threading.Thread(target=watch.stop, args=(left_s(),), daemon=True))
    for thread in last:
        thread.start()
    for thread in last:
        thread.join(left_s())


def _server(options: Options, page: RenderedPage) -> Server:
    tokens = certificate = None
    if options.auth_token_file or options.tls_cert:
        try:
            if options.auth_token_file:
                tokens = BearerTokens(options.auth_token_file)
            if options.tls_cert and options.tls_key:
                certificate = Certificate(options.tls_cert, options.tls_key)
        except CredentialsError as error:
            raise CannotStart(str(error)) from None
    try:
        return Server((options.host, options.port), page, tokens=tokens, certificate=certificate)
    except OSError as error:
        where = f"{options.host}:{options.port}"
        raise CannotStart(f"can't listen on {where}: {error.strerror}; choose another by --host and --port") from None


def _reporter(options: Options) -> UsageReporter | None:
    if not options.api_url:
        return None
    from .reporting.reporter import UsageReporter

    return UsageReporter(_link(options), options.node, options.state)


def _link(options: Options, timeout_s: float = 10.0) -> Link:
    from stoker.push.link import Link

    try:
        return Link(options.api_url, options.api_token_file, options.api_ca, timeout_s)
    except ValueError as error:
        raise CannotStart(f"--api-url: {error}") from None


def _push(options: Options) -> Push | None:
    if not options.push_url:
        return None
    from stoker.push.client import Receiver
    from stoker.push.sender import Push, PushOptions

    try:
        receiver = Receiver(
            options.push_url,
            options.push_token_file,
            options.push_basic_auth_file,
            options.push_ca,
            options.push_header,
            options.push_allow_http,
        )
        labels = {"job": "stoker-exporter", "instance": options.node, **options.push_label}
        return Push(PushOptions(receiver, options.push_every, labels))
    except (OSError, ValueError) as error:
        raise CannotStart(f"--push-…: {error}") from None


def _allocation(options: Options, loop: PollLoop) -> tuple[Allocations, float]:
    """Where allocations come from, and how often they are read."""
    if options.allocation == "workers" and options.workers is not None:
        return FolderAllocation(options.workers, lambda: loop.gpus, began_at=process_began().at), FOLDERS_EVERY_S
    if options.allocation == "kubelet":
        from .allocation.jobs import PodJobs
        from .allocation.kubelet import EVERY_S, KubeletAllocation
        from .allocation.kubelet_client import Kubelet
        from .allocation.owners_route import TIMEOUT_S, OwnersRoute

        jobs = PodJobs(OwnersRoute(_link(options, TIMEOUT_S)) if options.api_url else None)
        return KubeletAllocation(Kubelet(options.kubelet_socket), lambda: loop.gpus, jobs), EVERY_S
    return NoAllocation(), 60.0


def _start_reading(allocations: Allocations, every_s: float, loop: PollLoop, over: threading.Event) -> None:
    def read() -> None:
        while not over.is_set():
            loop.put(allocations.read())
            over.wait(every_s)

    threading.Thread(target=read, name="allocation", daemon=True).start()


def _counts(watch: ReaderWatch | None, reporter: UsageReporter | None, push: Push | None) -> dict[str, float]:
    """What the parts count of themselves, as `catalogue.EXPORTER` names it."""
    values: dict[str, float] = {}
    if watch is not None:
        values["child_stuck"] = float(watch.stuck)
        values |= {f"child_restarts_total|{why}": float(times) for why, times in watch.restarts.items()}
    if reporter is not None:
        stats = reporter.stats
        values["receipts_spooled"] = float(stats.waiting_receipts)
        values |= {f"receipts_total|{what}": float(times) for what, times in stats.receipts.items()}
        values |= {f"events_total|{what}": float(times) for what, times in stats.events.items()}
    if push is not None:
        sent = push.stats
        values["push_buffered_samples"] = float(sent.buffered)
        for what, samples in (("sent", sent.sent), ("refused", sent.refused), ("dropped", sent.dropped)):
            values[f"push_samples_total|{what}"] = float(samples)
        values |= {f"push_retries_total|{code}": float(times) for code, times in sent.retries.items()}
    return values


def _end_signal(stack: ExitStack) -> int:
    """What can be read from once SIGTERM or SIGINT has come, whichever thread the kernel gave it to.

    Not an Event that a handler sets: the handler may find the Event's lock held by what it interrupts, and a signal
    given to another thread interrupts no lock the main thread waits for.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for fd in (reading, writing):
        stack.callback(os.close, fd)
    os.set_blocking(reading, True)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    stack.callback(signal.set_wakeup_fd, -1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    return reading
