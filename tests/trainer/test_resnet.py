"""The recipe for images: it learns, an interruption changes no bit, batches are what their samples say."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stoker.spec.recipes import resolve  # noqa: E402
from stoker_trainer import packed_images, prepare_images  # noqa: E402
from stoker_trainer.augment import cropped, fill_holes, zoomed  # noqa: E402
from stoker_trainer.checkpoint import CheckpointFolder  # noqa: E402
from stoker_trainer.counter import order  # noqa: E402
from stoker_trainer.distributed import Vote  # noqa: E402
from stoker_trainer.errors import BadConfig  # noqa: E402
from stoker_trainer.fence import Fence  # noqa: E402
from stoker_trainer.recipes import image_source  # noqa: E402
from stoker_trainer.recipes.resnet_net import ResNet  # noqa: E402
from stoker_trainer.recipes.settings import Crop  # noqa: E402
from stoker_trainer.save import Keeper, gathered_state, pack, unpack  # noqa: E402
from stoker_trainer.step import train_step  # noqa: E402
from tests.trainer.conftest import STOPS, moments  # noqa: E402

pytestmark = pytest.mark.torch
ROWS = 300
SETTINGS = {
    "model": {"depth": 10, "width": 4},
    "augment": {"pad": 1, "flip": True, "cutout": 2},
    "batchSize": 34,  # an epoch's last 2 samples are left out
    "epochs": 6,
    "deterministic": True,
}
# The training in one go holds its images in memory; the one that is interrupted streams them.
STREAMED_WHEN_INTERRUPTED = """
import os, stoker_trainer.prefetch as prefetch
prefetch.fits = lambda size, device: os.environ["STOKER_CHECKPOINT_DIR"].endswith("whole")
"""


@pytest.fixture
def colours(tmp_path):
    """A prepared folder of noise in which one channel is the brightest: the class."""
    drawn = np.random.default_rng(0)
    images, labels = drawn.integers(0, 180, (ROWS, 8, 8, 3), dtype=np.uint8), np.arange(ROWS) % 3
    images[np.arange(ROWS), :, :, labels] += 60
    np.savez(tmp_path / "colours.npz", x=images, y=labels)
    prepare_images.prepare(tmp_path / "colours.npz", tmp_path / "colours", None)
    return str(tmp_path / "colours")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stops", STOPS)
def test_it_learns_and_interruptions_change_no_bit(run, make_config, colours, ranks, stops):
    """With two ranks in fewer steps: that they compute what one does is test_ranks' to show."""
    epochs = 30 if stops > 3 else 6 if ranks == 1 else 3
    config = {"recipe": "resnet", "config": resolve("resnet", SETTINGS | {"data": colours, "epochs": epochs})}
    at = moments(stops, epochs * 7, ranks)
    whole, parts = run.whole_and_interrupted(make_config() | config, ranks, at, STREAMED_WHEN_INTERRUPTED)
    assert parts == whole and whole[-1]["step"] == epochs * 7
    if ranks == 1:
        assert run.progress()["summary"]["metrics"]["accuracy"] > 0.8
        program = "import sys; sys.path[:0] = ['.']; from load_example import *; x = torch.zeros(3, 8, 8, 3); "
        program += "x[[0, 1, 2], :, :, [2, 0, 1]] = 120; print(classify(x).tolist(), 'stoker_trainer' in sys.modules)"
        command = [sys.executable, "-I", "-c", program]
        out = subprocess.check_output(command, cwd=run.folder / "output", text=True, timeout=100)
        assert out.strip() == "[2, 0, 1] False"


def test_a_resume_on_changed_data_is_refused(make_training, colours, tmp_path):
    def keeper():
        settings = resolve("resnet", SETTINGS | {"data": colours})
        folder = CheckpointFolder(tmp_path / "saved", Fence.claim(tmp_path / "saved", None), 2)
        return Keeper(make_training(None, recipe="resnet", config=settings), {"config": settings}, folder)

    assert keeper().save() and keeper().resume()
    about = json.loads(Path(colours, "images.json").read_text())
    Path(colours, "images.json").write_text(json.dumps(about | {"digest": "other"}))
    with pytest.raises(BadConfig, match=rf"config.data: {colours} has changed since .*sha256:other now"):
        keeper().resume()


def test_streamed_batches_are_the_resident_ones(make_training, colours, monkeypatch):
    config = resolve("resnet", SETTINGS | {"data": colours})
    resident = make_training(None, recipe="resnet", config=config).data
    monkeypatch.setattr(image_source, "fits", lambda size, device: False)
    streamed = make_training(None, recipe="resnet", config=config).data
    assert ", streamed," in streamed.words and ", streamed," not in resident.words
    fetched = []
    monkeypatch.setattr(streamed.images, "rows", lambda rows: fetched.append(rows))
    for epoch in range(2):
        samples = order(1, epoch, streamed.train_rows, torch.device("cpu"))
        streamed.expect(samples[:34])
        for start in range(0, len(samples), 34):
            streamed.expect(samples[start + 34 : start + 68])
            for part in samples[start : start + 34].split(9) * 2:  # twice: a step is redone
                one, other = resident.batch(1, epoch, part), streamed.batch(1, epoch, part)
                assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)
    assert not fetched  # all of it was there before
    monkeypatch.undo()
    for way in ("batch", "test_batch"):
        places = torch.arange(7)
        one, other = (getattr(x, way)(*((1, 5) if way == "batch" else ()), places) for x in (resident, streamed))
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


def test_gray_images_lie_in_memory_channels_first(make_training):
    training = make_training(recipe="resnet", config=resolve("resnet", SETTINGS | {"data": "digits"}))
    for batch in (training.data.batch(0, 0, torch.arange(2)), training.data.test_batch(torch.arange(2))):
        assert batch.inputs.stride() == (64, 64, 8, 1)


def test_each_image_is_one_of_its_crops_by_its_own_draw():
    images = torch.randint(256, (40, 5, 6, 3), dtype=torch.uint8)
    samples = torch.arange(40)
    made = cropped(images, samples, samples, 1, 2, Crop(area=1.0, pad=1, flip=True, cutout=0))
    seen = set()
    for image, found in zip(images, made, strict=True):
        padded = torch.nn.functional.pad(image, (0, 0, 1, 1, 1, 1))
        ways = {}
        for down, right, flipped in itertools.product(range(3), range(3), (False, True)):
            way = padded[down : down + 5, right : right + 6]
            ways[down, right, flipped] = way.flip(1) if flipped else way
        seen |= {name for name, way in ways.items() if torch.equal(way, found)}
    assert {name[0] for name in seen} == {name[1] for name in seen} == {0, 1, 2} and {name[2] for name in seen} == {
        0,
        1,
    }
    apart = samples[[7, 3]]
    assert torch.equal(cropped(images, apart, apart, 1, 2, Crop(area=1.0, pad=1, flip=True, cutout=0)), made[apart])
    assert not torch.equal(cropped(images, samples, samples, 1, 3, Crop(area=1.0, pad=1, flip=True, cutout=0)), made)


def test_a_hole_is_a_square_around_a_place_in_the_image():
    images = torch.ones(200, 8, 8, 3)
    fill_holes(images, torch.arange(200), 1, 2, Crop(area=1.0, pad=0, flip=False, cutout=4))
    holes = images.sum((1, 2)) - 64
    assert torch.equal(holes[:, 0], holes[:, 1]) and set(images.unique().tolist()) == {0.0, 1.0}
    assert holes.min() == -16 and holes.max() <= -4  # whole, or cut by the image's edge


def test_the_networks_are_the_papers():
    counts = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}
    for depth, count in counts.items():
        with torch.device("meta"):
            assert sum(p.numel() for p in ResNet(depth, 64, "imagenet", 3, 1000).parameters()) == count
        narrow = ResNet(depth, 4, "imagenet", 3, 1000)  # a pass on "meta" imports sympy: two seconds
        assert narrow(torch.zeros(2, 3, 64, 64)).shape == (2, 1000)
    assert ResNet(18, 64, "cifar", 3, 10).stem(torch.zeros(2, 3, 32, 32)).shape == (2, 64, 32, 32)


def test_training_on_one_sample_has_a_gradient_whatever_the_running_statistics_are():
    def gradient(shift):
        torch.manual_seed(0)
        net = ResNet(10, 4, "cifar", 3, 2)
        for name, buffer in net.named_buffers():
            if name.endswith("mean"):
                buffer += shift
        net(torch.ones(1, 3, 8, 8)).sum().backward()
        return torch.cat([p.grad.flatten() for p in net.parameters()])

    assert gradient(0).isfinite().all() and gradient(0).norm() > 0
    assert torch.equal(gradient(0), gradient(7))


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("labels", lambda labels: labels + 1, "labels.npy: a value is not from 0 to 2"),
        ("labels", lambda labels: labels[:-1], "300 images, 299 labels"),
        ("train", lambda rows: rows + 299, "train.npy: a value is not from 0 to 299"),
        ("test", lambda rows: rows[:0], "test.npy: wrong shape or type, or empty"),
        ("images", lambda images: images[..., :2], "images.npy: wrong shape or type"),
        ("images", lambda images: images.astype(object), "no folder of images (ValueError"),
    ],
)
def test_a_folder_whose_parts_do_not_fit_is_named(colours, name, change, says):
    path = f"{colours}/{name}.npy"
    np.save(path, change(np.load(path)), allow_pickle=True)
    with pytest.raises(BadConfig) as caught:
        packed_images.load(colours)
    assert str(caught.value).startswith(f"config.data: {colours} is no folder of images") and says in str(caught.value)


def test_a_pad_as_large_as_the_images_is_named(make_training, colours):
    config = resolve("resnet", SETTINGS | {"data": colours, "augment": {"pad": 8}})
    with pytest.raises(BadConfig, match=r"config.augment.pad: must be below the images' side, 8 in "):
        make_training(None, recipe="resnet", config=config)


def test_an_average_saved_without_running_statistics_goes_on_with_those_of_the_net(make_training, colours):
    settings = resolve("resnet", SETTINGS | {"data": colours, "optimizer": {"ema": 0.9}})
    training, other = (make_training(None, recipe="resnet", config=settings) for _ in range(2))
    train_step(training, torch.arange(34), Vote())
    state = gathered_state(training)
    state["average"] = {name: t for name, t in state["average"].items() if "running" not in name}
    unpack(other, pack(state))
    live = training.net.state_dict()
    assert other.average.buffers and all(torch.equal(t, live[name]) for name, t in other.average.buffers.items())


def test_batches_are_whole_where_the_network_normalises_over_them(make_training, colours):
    def rows(batch):
        return make_training(
            None, recipe="resnet", config=resolve("resnet", settings | {"batchSize": batch})
        ).train_rows

    settings = SETTINGS | {"data": colours}
    assert [rows(batch) for batch in (34, 240, 241)] == [238, 240, 240]


def test_a_zoomed_image_is_a_part_of_itself_and_depends_on_its_sample_alone():
    rule = Crop(area=0.25, pad=0, flip=False, cutout=0)
    slope = torch.linspace(0, 1, 16).expand(40, 16, 16)[..., None].contiguous()
    samples = torch.arange(40)
    out = zoomed(slope, samples, 1, 0, rule)
    assert out.shape == slope.shape and torch.equal(out, zoomed(slope, samples, 1, 0, rule))
    torch.testing.assert_close(zoomed(slope[7:9], samples[7:9], 1, 0, rule), out[7:9])
    kept = out[:, 0, -1, 0] - out[:, 0, 0, 0]
    least = (0.25 * 0.75) ** 0.5
    assert kept.min() > 0.9 * least * 15 / 16 and kept.max() <= 1.0 and kept.max() - kept.min() > 0.2
    assert not torch.equal(out, zoomed(slope, samples, 1, 1, rule))
