"""Owns the order of a rank's life: config, torch, ranks, resume, training, result; each end becomes an exit code.

Called by `__main__`. The config is read before torch is imported, so a bad one costs a tenth of a second.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from . import command_line
from . import config as configs
from .errors import DONE, FAILED, OUT_OF_MEMORY, STOPPED, BadConfig, PeerLost, Stopped, TrainerError, out_of_memory
from .stop import StopSignal

if TYPE_CHECKING:
    from .metrics import Metrics
    from .tensorboard import Board
    from .training import Training

log = logging.getLogger("stoker_trainer")
PEER_S = 1.0
"""After another rank's end this one waits so long for a stop: that rank's supervisor then knows it as the cause."""


def main(argv: list[str], env: Mapping[str, str], stop: StopSignal) -> int:
    """Runs this rank to its end; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    try:
        request = command_line.read(argv, env)
        if isinstance(request, command_line.Prepare):
            _prepare(request)
            return DONE
        if isinstance(request, command_line.Predict):
            from . import finished

            for line in finished.predictions(request.folder, request.inputs):
                log.info("%s", line)
            return DONE
        config = configs.parse(request.config)
        if isinstance(request, command_line.Evaluate):
            from . import finished

            log.info("%s", json.dumps(finished.measure(config, request.weights, env)))
            return DONE
        if request.dry_run:
            from . import dry_run

            dry_run.show(config, request.config, print)
            return DONE
        _run(config, request, env, stop)
    except Stopped as stopped:
        log.info("%s", stopped)
        return stopped.exit_code
    except TrainerError as error:
        if isinstance(error, PeerLost) and stop.requested_within(PEER_S):
            log.info("stopped on request, with another rank gone before this one: %s", error)
            return STOPPED
        sys.stderr.write(f"stoker-trainer: error: {error}\n")
        return error.exit_code
    except Exception as error:  # noqa: BLE001  (the edge: whatever it was, the log shows where)
        traceback.print_exc()
        if not out_of_memory(error):
            return FAILED
        sys.stderr.write(f"stoker-trainer: error: out of memory where a smaller micro-batch does not help: {error}\n")
        return OUT_OF_MEMORY
    return DONE


def _prepare(request: command_line.Prepare) -> None:
    if request.kind != "images":
        from . import pairs, tokens

        packing = tokens if request.kind == "text" else pairs
        packing.prepare(request.source, request.out)
    else:
        from . import prepare_images

        log.info("%s", prepare_images.prepare(request.source, request.out, request.size))


def _run(
    config: configs.TrainerConfig, request: command_line.Request, env: Mapping[str, str], stop: StopSignal
) -> None:
    from . import finished, rate
    from .checkpoint import CheckpointFolder
    from .distributed import Place, Ranks, Vote
    from .export import Results
    from .fence import Fence
    from .ledger import Ledger, Spent
    from .loop import Loop
    from .report import Report, Silent
    from .save import Keeper
    from .trace import Trace
    from .training import device_for, prepare_torch, set_up
    from .tune import Tuned, micro_batch
    from .watchdog import Watchdog

    watchdog = Watchdog(_number(env, "STOKER_STALL_SECONDS", 600.0))
    watchdog.start()
    place = Place.of(env)
    first = place.rank == 0
    checkpoints, output, progress, trace = (
        _path(env, f"STOKER_{name}") for name in ("CHECKPOINT_DIR", "OUTPUT_DIR", "PROGRESS_FILE", "TRACE_FILE")
    )
    attempt = int(_number(env, "STOKER_ATTEMPT", -1))
    fence = Fence.claim(checkpoints, None if attempt < 0 else attempt) if first and checkpoints else None
    device = device_for(env, place)
    prepare_torch(env, config, device)
    ranks = Ranks(place, device, config.config.deterministic)
    ranks.join(env)
    watchdog.beat()
    folder = CheckpointFolder(checkpoints, fence, config.checkpoint.keep) if checkpoints and fence else None
    cache = checkpoints / "tuned" if checkpoints else None

    def tuned() -> Tuned:
        return micro_batch(config, request.config, env, device, ranks, cache, watchdog.beat)

    # Before the model takes its memory; a checkpoint brings what was found.
    begins = request.checkpoint_from is not None or (folder is not None and folder.holds_any())
    begun = ranks.from_first(b"begun" if begins else None)
    found = tuned() if config.config.batch == "auto" and begun is None else None
    training = set_up(config, device, ranks)
    keeper = Keeper(
        training,
        configs.trajectory_of(request.config),
        folder,
        extend=request.extend,
        source=(request.checkpoint_from, request.checkpoint_step) if request.checkpoint_from is not None else None,
    )
    resumed = keeper.resume()
    if config.config.batch == "auto" and not resumed:
        training.tuned = found or tuned()
        training.micro_batch = training.tuned.micro_batch or training.micro_batch
    if request.init_from is not None and not resumed:
        for fault in finished.begin_with(training, request.init_from, partly=request.init_partly):
            log.warning("--init-partly: %s", fault)
    if config.config.optimizer.lr == "find" and not resumed:
        rate.find(training, watchdog.beat)
    watchdog.beat()
    report: Silent = Silent()
    if first:
        ledger = Ledger(checkpoints, fence.attempt if fence else 0)
        if keeper.taken_over is not None:
            log.info("begins with %s", keeper.taken_over)
            ledger.take_over(Spent(training.cursor.step, training.tally.samples, training.tally.seconds))
        report = Report(training, keeper, ledger, progress, _metrics(env, config), _board(env, training))
        _log_start(training, resumed, checkpoints)
    ranks.vote(Vote())  # all ranks are here: from now on a stop is agreed by vote
    stop.begin_training()
    report.publish()
    results = Results(training, request.config, output, fence) if first and output is not None else None
    keep_best = results.best if results is not None else lambda: None
    loop = Loop(training, keeper, report, stop, Trace(trace) if trace and first else None, watchdog.beat, keep_best)
    try:
        loop.run()
    except TrainerError:
        report.publish()
        raise
    if isinstance(report, Report):
        if results is not None:
            report.weights = str(results.final(report.summary()))
        report.publish()
        _log_end(training)
    ranks.leave()
    watchdog.stop()


def _log_start(training: Training, resumed: bool, checkpoints: Path | None) -> None:
    t, recipe = training, training.config.config
    log.info("%s", t.data.words)
    log.info(
        "%s parameters, %s, %s, %d rank(s), %d samples per step, %d steps",
        f"{t.flat.parameters.numel():,}",
        t.device,
        t.precision,
        t.ranks.world,
        recipe.batch_size,
        t.total_steps,
    )
    if resumed:
        log.info("resumed at step %d (epoch %d, sample %d)", t.cursor.step, t.cursor.epoch, t.cursor.consumed)
    elif checkpoints is None:
        log.info("STOKER_CHECKPOINT_DIR is not set: nothing is saved, and a stop loses all")


def _log_end(training: Training) -> None:
    from .report import metrics_text

    t = training.tally
    target = training.config.stop.target
    reached = ""
    if target is not None:
        reached = f", target {target.value:g} " + (
            f"reached after {t.time_to_target_s:.1f} s" if t.time_to_target_s is not None else "not reached"
        )
    log.info(
        "done: step %d, %s, %.1f s%s",
        training.cursor.step,
        metrics_text(t.metrics),
        t.seconds,
        reached,
    )


def _metrics(env: Mapping[str, str], config: configs.TrainerConfig) -> Metrics | None:
    """`/metrics`, if a port was given and is free."""
    port = env.get("STOKER_METRICS_PORT")
    if not port:
        return None
    from .metrics import Metrics

    metrics = Metrics(env, config.recipe)
    try:
        metrics.serve(int(port), env.get("STOKER_METRICS_HOST") or "127.0.0.1")
    except (OSError, ValueError, OverflowError) as error:
        log.warning("no /metrics on port %s, training goes on: %s", port, error)
    return metrics


def _board(env: Mapping[str, str], training: Training) -> Board | None:
    folder = _path(env, "STOKER_TENSORBOARD_DIR")
    if folder is None:
        return None
    from .tensorboard import Board

    return Board(folder, training.cursor.step)


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(env.get(name) or default)
    except ValueError:
        raise BadConfig(f"{name}: expected a number, got {env[name]!r}") from None


def _path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None
