"""`prepare images`: what is found is packed as it is; what is damaged, hostile or missing is exit code 64 and named."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

from stoker_trainer import cifar10, packed_images, prepare_images
from stoker_trainer.errors import BadConfig

pytestmark = pytest.mark.torch
RANDOM = np.random.default_rng(5)


def pictures(count, *shape):
    return RANDOM.integers(0, 256, (count, *shape), dtype=np.uint8)


def rows_of(packed, rows):
    """Content and class of each row."""
    return sorted((packed.images[row].tobytes(), packed.classes[packed.labels[row]]) for row in rows)


def prepared(source, out, size=None):
    prepare_images.prepare(source, out, size)
    return packed_images.load(str(out))


# -- npz


def test_an_npz_is_split_by_content_and_measured(tmp_path):
    x, y = pictures(60, 8, 6), np.arange(60)[:, None] % 3
    x[6] = x[0]  # a copy, of the same class
    np.savez_compressed(tmp_path / "some.npz", x=x, y=y)
    packed = prepared(tmp_path / "some.npz", tmp_path / "out")
    assert packed.images.shape == (60, 8, 6, 1) and packed.classes == ["0", "1", "2"]
    assert [(packed.labels[packed.test] == label).sum() for label in range(3)] == [4, 4, 4]
    assert len(packed.train) + len(packed.test) + packed.dropped == 60
    tested, trained = ({x.tobytes() for x in packed.images[rows]} for rows in (packed.test, packed.train))
    assert not tested & trained
    trained = packed.images[packed.train].astype(np.float64)
    assert packed.mean == pytest.approx([trained.mean()], abs=1e-4)
    assert packed.std == pytest.approx([trained.std()], abs=1e-4)
    x[7, 0, 0] ^= 1
    np.savez(tmp_path / "other.npz", images=x, labels=y.ravel())
    assert prepared(tmp_path / "other.npz", tmp_path / "other").digest != packed.digest


def test_an_npz_may_bring_its_own_split(tmp_path):
    parts = {"x_train": pictures(9, 4, 4, 3), "y_train": np.arange(9) % 2, "x_test": pictures(3, 4, 4, 3)}
    np.savez(tmp_path / "some.npz", **parts, y_test=np.array([1, 0, 1], dtype=np.uint8))
    packed = prepared(tmp_path / "some.npz", tmp_path / "out")
    assert rows_of(packed, packed.test) == sorted((x.tobytes(), y) for x, y in zip(parts["x_test"], "101", strict=True))
    assert (packed.images[packed.train] == parts["x_train"]).all()


def npz(path, compression=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)


def npy(array, shape=None):
    """An array's bytes, under another shape than its own."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    )
    return file.getvalue() + array.tobytes()


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (npy(pictures(6, 4, 4), (2**40, 2**40, 4)), npy(np.zeros(6, int)), "must be in C order, with at most"),
        (npy(pictures(6, 4, 4), (2**20, 64, 64)), npy(np.zeros(6, int)), "x is shorter than its shape"),
        (npy(pictures(6, 4, 4), (-6, 4, 4)), npy(np.zeros(6, int)), "must be in C order"),
        (npy(np.zeros((6, 4, 4))), npy(np.zeros(6, int)), "x is float64[6, 4, 4]; images must be uint8"),
        (npy(pictures(6, 4, 4, 2)), npy(np.zeros(6, int)), "has images of shape (4, 4, 2)"),
        (npy(pictures(6, 4, 4)), npy(np.zeros(5, int)), "6 images and 5 labels"),
        (npy(pictures(6, 4, 4)), npy(np.full(6, 2**40)), "labels begin at 0 and end below 65536"),
        (npy(pictures(6, 4, 4)), npy(np.zeros(6)), "y is float64[6]; labels must be whole numbers"),
        (npy(pictures(6, 4, 4)), npy(np.arange(6)), "no images to test on"),
        (b"\x93NUMPY\x01\x00" + b"\xff\xff" + b"(" * 65535, npy(np.zeros(6, int)), "is no npz file of images"),
        (np.zeros(9, object).dumps(), npy(np.zeros(6, int)), "is no npz file of images"),
    ],
)
def test_an_npz_that_will_not_do_is_named(tmp_path, x, y, says):
    npz(tmp_path / "some.npz", x=x, y=y)
    with pytest.raises(BadConfig) as caught:
        prepare_images.prepare(tmp_path / "some.npz", tmp_path / "out", None)
    assert says in str(caught.value) and "some.npz" in str(caught.value)
    with pytest.raises(BadConfig, match=r"is no folder of images .* `python -m stoker_trainer prepare images"):
        packed_images.load(str(tmp_path / "out"))


def test_a_zip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_images, "_MOST_PACKED", 2)
    x = np.zeros((50, 256, 256), dtype=np.uint8)
    npz(tmp_path / "bomb.npz", zipfile.ZIP_DEFLATED, x=npy(x), y=npy(np.zeros(50, int)))
    with pytest.raises(BadConfig, match="x unpacks to more than 2 times its size"):
        prepare_images.prepare(tmp_path / "bomb.npz", tmp_path / "out", None)


# -- CIFAR-10's archive


def py2_pickle(images, labels):
    """A batch as Python 2 and its numpy wrote them."""

    def text(value):
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value):
        return b"J" + struct.pack("<i", value)

    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + number(0) + b"t" + text(b"b") + b"tR("
    array += number(1) + b"(" + number(len(images)) + number(images[0].size) + b"tcnumpy\ndtype\n("
    array += text(b"u1") + number(0) + number(1) + b"tR(" + number(3) + text(b"|") + b"NNN" + number(-1) * 2
    array += number(0) + b"tbI00\n" + text(images.tobytes()) + b"tb"
    listed = b"](" + b"".join(map(number, labels)) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def archive(path, change=lambda members: None):
    members = {}
    for name in (*cifar10.TRAIN, cifar10.TEST):
        members[name] = py2_pickle(pictures(4, 3, 32, 32), [0, 9, 3, 3])
    members[cifar10.NAMES] = pickle.dumps({b"label_names": [b"name %d" % place for place in range(10)]}, 3)
    change(members)
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_cifar_10s_archive_is_packed_with_its_split_and_names(tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    archive(path)
    images, labels, _, is_test = cifar10.read(path)
    packed = prepared(path, tmp_path / "out")
    assert packed.images.shape == (24, 32, 32, 3) and packed.test.tolist() == [20, 21, 22, 23]
    assert packed.classes == [f"name {place}" for place in range(10)] and packed.labels[:4].tolist() == [0, 9, 3, 3]
    assert (packed.images == images).all() and (labels == packed.labels).all() and is_test.sum() == 4


def test_a_batchs_planes_become_channels(tmp_path):
    planes = pictures(4, 3, 32, 32)
    archive(tmp_path / "c.tar.gz", lambda members: members.update(data_batch_1=py2_pickle(planes, [1, 2, 3, 4])))
    assert (cifar10.read(tmp_path / "c.tar.gz")[0][:4] == planes.transpose(0, 2, 3, 1)).all()


class Hostile:
    def __init__(self, call, *args):
        self.made = call, args

    def __reduce__(self):
        return self.made


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("data_batch_2", pickle.dumps({b"data": Hostile(os.system, "touch owned")}), "it asks for posix.system"),
        ("data_batch_2", pickle.dumps(Hostile(eval, "1")), "it asks for builtins.eval"),
        ("data_batch_2", pickle.dumps({b"data": np.zeros((2, 3072), object), b"labels": [1, 1]}, 3), "unsigned bytes"),
        ("data_batch_2", pickle.dumps({b"data": np.zeros((2, 7), np.uint8), b"labels": [1, 1]}, 3), "reshape"),
        ("data_batch_2", py2_pickle(pictures(2, 3, 32, 32), [1, 10]), "labels must be numbers from 0 to 9"),
        ("data_batch_2", py2_pickle(pictures(2, 3, 32, 32), [1]), "2 images, 1 labels"),
        ("data_batch_2", b"\x80\x02]r\xff\xff\xff\xff.", "TypeError"),  # a place of the memo that takes 32 GiB in C
        ("data_batch_2", b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f", "not CIFAR-10"),
        ("test_batch", None, "KeyError: 'test_batch'"),
        ("batches.meta", pickle.dumps({b"label_names": [b"one"]}, 3), "names 1 classes"),
    ],
)
def test_a_hostile_archive_runs_nothing_and_is_named(tmp_path, monkeypatch, name, data, says):
    monkeypatch.chdir(tmp_path)
    archive(tmp_path / "c.tar.gz", lambda members: members.pop(name) if data is None else members.update({name: data}))
    with pytest.raises(BadConfig) as caught:
        prepare_images.prepare(tmp_path / "c.tar.gz", tmp_path / "out", None)
    assert says in str(caught.value) and "c.tar.gz" in str(caught.value)
    assert not (tmp_path / "owned").exists()


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "_LARGEST", 1 << 20)
    (tmp_path / "c.tar.gz").write_bytes(gzip.compress(bytes(8 << 20), 1))
    with pytest.raises(BadConfig, match="unpacks to more than 1 MiB"):
        cifar10.read(tmp_path / "c.tar.gz")


# -- folders


def folder(path, *sides, size=(8, 8)):
    from PIL import Image

    for side in sides:
        for name in ("cat", "dog"):
            (path / side / name).mkdir(parents=True)
            for number in range(6):
                Image.fromarray(pictures(1, *size, 3)[0]).save(path / side / name / f"{number}.png")
            (path / side / name / "notes.txt").write_text("not an image")


def test_a_folder_is_packed_with_a_class_per_sub_folder(tmp_path):
    from PIL import Image

    folder(tmp_path / "all", "")
    packed = prepared(tmp_path / "all", tmp_path / "out")
    there = [(np.asarray(Image.open(path)).tobytes(), path.parent.name) for path in (tmp_path / "all").rglob("*.png")]
    assert rows_of(packed, range(12)) == sorted(there) and len(packed.test) == 2
    folder(tmp_path / "two", "train", "val")
    assert len(prepared(tmp_path / "two", tmp_path / "out 2").test) == 12


def test_images_of_many_sizes_are_scaled_to_one(tmp_path):
    from PIL import Image

    folder(tmp_path / "all", "")
    Image.fromarray(np.full((300, 100), 77, dtype=np.uint8)).save(tmp_path / "all" / "cat" / "tall.jpg")
    with pytest.raises(BadConfig, match=r"images differ in size .*0.png has 8x8, .*tall.jpg 100x300.: give --size"):
        prepare_images.prepare(tmp_path / "all", tmp_path / "out", None)
    packed = prepared(tmp_path / "all", tmp_path / "out", size=16)
    assert packed.images.shape == (13, 16, 16, 3)
    assert sum((image == 77).all() for image in packed.images) == 1  # gray became RGB


@pytest.mark.parametrize(
    "content", [b"", b"\x89PNG\r\n\x1a\nrest", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"]
)
def test_a_file_that_is_no_image_is_named(tmp_path, content):
    folder(tmp_path / "all", "")
    (tmp_path / "all" / "dog" / "9.png").write_bytes(content)
    with pytest.raises(BadConfig, match=r"dog/9.png is no image that Pillow reads"):
        prepare_images.prepare(tmp_path / "all", tmp_path / "out", None)
    whole = (tmp_path / "all" / "dog" / "1.png").read_bytes()
    (tmp_path / "all" / "dog" / "9.png").write_bytes(whole[:80])
    with pytest.raises(BadConfig, match=r"dog/9.png is damaged"):
        prepare_images.prepare(tmp_path / "all", tmp_path / "out", None)


def test_without_pillow_the_package_is_named(tmp_path, monkeypatch):
    folder(tmp_path / "all", "")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(BadConfig, match="the package Pillow: pip install pillow"):
        prepare_images.prepare(tmp_path / "all", tmp_path / "out", None)


# -- all


def test_other_sources_and_full_folders_are_refused(tmp_path, monkeypatch):
    (tmp_path / "some.csv").write_text("1,2\n")
    (tmp_path / "full").mkdir()
    for name, says in (("some.csv", "no npz file"), ("full", "no image files")):
        with pytest.raises(BadConfig, match=says):
            prepare_images.prepare(tmp_path / name, tmp_path / "out", None)
    np.savez(tmp_path / "some.npz", x=pictures(20, 4, 4), y=np.arange(20) % 2)
    (tmp_path / "full" / "a").touch()
    with pytest.raises(BadConfig, match="full is not empty"):
        prepare_images.prepare(tmp_path / "some.npz", tmp_path / "full", None)
    monkeypatch.setattr(prepare_images.shutil, "disk_usage", lambda path: SimpleNamespace(free=300))
    with pytest.raises(BadConfig, match=r"the images take 0.0 GB, .* has 0.0 GB left"):
        prepare_images.prepare(tmp_path / "some.npz", tmp_path / "out", None)


def test_the_command_ends_with_64_and_names_what_is_missing(tmp_path):
    command = [sys.executable, "-m", "stoker_trainer", "prepare", "images", "/missing/images", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (64, "stoker-trainer: error: prepare: /missing/images is not there\n")
