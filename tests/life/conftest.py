"""The scheduler's builders, as tests/sched has them."""

from ..sched.conftest import sched as sched  # noqa: TID252
