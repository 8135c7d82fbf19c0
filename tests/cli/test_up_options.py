"""What follows from options of `stoker up`."""

from __future__ import annotations

import pytest

from stoker.cli.up_options import UpOptions


def test_names_to_pass_on_come_by_comma_or_one_by_one() -> None:
    assert UpOptions(pass_env=("HF_HOME, SSL_CERT_FILE", "http_proxy")).passed() == (
        "HF_HOME",
        "SSL_CERT_FILE",
        "http_proxy",
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("HF-HOME", "--pass-env HF-HOME: an environment variable's name is letters, digits and '_'"),
        ("A,STOKER_TOKEN", "--pass-env STOKER_TOKEN: STOKER_TOKEN is set by Stoker"),
        ("A,,B", "--pass-env : an environment variable's name"),
    ],
)
def test_a_name_that_can_t_be_passed_on(given: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        UpOptions(pass_env=(given,)).passed()
