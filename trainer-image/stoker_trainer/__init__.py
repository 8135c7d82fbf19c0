"""The trainer: `python -m stoker_trainer`, one process per rank, torchrun's environment (`docs/trainer.md`).

Owns recipes, precision, the step, checkpoints, evaluation, progress and its own metrics. Never imports anything else of
ours: its config arrives complete in `STOKER_TRAINER_CONFIG`, and it reports by files and exit code. Importing this
package costs nothing: torch is imported by the modules that need it, after the stop signal has a handler.
"""
