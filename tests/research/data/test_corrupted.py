"""Corrupted versions of the data sets' streams, in miniature."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.errors import DataError
from equipoise.research.data import (
    Cache,
    Corrupted,
    DataSet,
    Images,
    Reader,
    Shift,
    corrupted,
    corrupted_version,
    open_data_set,
    read_stored,
)
from equipoise.research.data.corruptions import CORRUPTIONS, TIERS, corrupt, jpeg
from tests.research.data.miniatures import PACS_CLASSES, PACS_DOMAINS, digits_npz, domain_folders


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return open_data_set("digits-c", digits_npz(tmp_path_factory.mktemp("digits")))


def test_a_target_comes_as_it_is_and_under_each_corruption_of_a_tier(digits: DataSet) -> None:
    for tier in TIERS:
        of_model = [s for s in digits.shifts if s.sources == ("usps/train", "svhn/train") and s.tier == tier]
        assert {s.target for s in of_model} == {"mnist"}
        assert [s.corruption for s in of_model] == [None, *CORRUPTIONS]
        assert [s.stream for s in of_model] == [
            "mnist/test",
            *(f"mnist/test/{corruption}/{tier}" for corruption in CORRUPTIONS),
        ]
        assert [s.domain for s in of_model][:2] == ["mnist", "mnist, gaussian_noise"]
    assert len(digits.shifts) == 3 * 5 * 16
    assert len(digits.parts) == 3 * 2 + 3 * 15 * 5


@pytest.mark.parametrize("corruption", ["gaussian_noise", "fog", "jpeg_compression"])
def test_a_part_is_that_of_the_clean_data_set_corrupted_and_compressed(
    digits: DataSet, corruption: str, tmp_path: Path
) -> None:
    clean = open_data_set("digits", digits_npz(tmp_path)).read("usps/test", None, Reader())
    same = digits.read("usps/test", None, Reader())
    assert torch.equal(clean.pixels, same.pixels)
    made = digits.read(f"usps/test/{corruption}/4", None, Reader())
    assert torch.equal(made.labels, clean.labels)
    assert made.pixels.shape == clean.pixels.shape == (20, 1, 32, 32)
    off = (made.pixels.float() - clean.pixels.float()).abs().mean((1, 2, 3))
    assert bool((off > 1).all())
    if corruption == "jpeg_compression":  # the one of these without random numbers
        grey = clean.pixels.permute(0, 2, 3, 1).numpy()
        expected = jpeg(corrupt(grey, corruption, 4, [0] * 20), 85)
        assert np.array_equal(made.pixels[:, 0].numpy(), expected[..., 0])


def test_images_get_noise_of_their_own(digits: DataSet) -> None:
    whole = digits.read("svhn/test/gaussian_noise/5", None, Reader())
    assert len({image.numpy().tobytes() for image in whole.pixels}) == 20
    clean = digits.read("svhn/test", None, Reader())
    noise = whole.pixels.float() - clean.pixels.float()
    alike = np.corrcoef(noise.flatten(1).numpy())
    assert np.abs(alike - np.eye(20)).max() < 0.5


def test_parts_are_made_once_into_the_cache(tmp_path: Path) -> None:
    data = open_data_set("digits-c", digits_npz(tmp_path / "digits"))
    reads = []

    class Counting(corrupted.DigitsC):
        def read(self, part: str, limit: int | None, reader: Reader) -> Images:
            reads.append(part)
            return super().read(part, limit, reader)

    counting, cache = Counting(tmp_path / "digits"), Cache(tmp_path / "cache")
    parts = ["mnist/test", "mnist/test/fog/1", "mnist/test/fog/2"]
    stored = [cache.store(counting, part, None, Reader()) for part in parts * 2]
    assert reads == parts
    assert stored[:3] == stored[3:]
    assert len({each.digest for each in stored}) == 3
    assert torch.equal(read_stored(stored[1].path).pixels, data.read(parts[1], None, Reader()).pixels)


def test_origin_files_and_parameters_say_what_a_part_is_made_of(digits: DataSet) -> None:
    assert digits.origin("mnist/test") == digits.origin("mnist/train") == "official"
    assert digits.origin("mnist/test/snow/3") == "made"
    assert digits.files("mnist/test/snow/3") == digits.files("mnist/test")
    probes = {
        digits.parameters(f"mnist/test/{name}/{tier}")["probe"] for name in CORRUPTIONS for tier in (1, 5)
    }
    assert len(probes) == 30
    assert "probe" not in digits.parameters("mnist/test")


def test_pacs_in_colour_keeps_its_classes_and_domains(tmp_path: Path) -> None:
    data = open_data_set("pacs-c", domain_folders(tmp_path, PACS_DOMAINS, PACS_CLASSES, each=1))
    assert data.classes == PACS_CLASSES
    assert {shift.target for shift in data.shifts} == set(PACS_DOMAINS)
    made = data.read("sketch/contrast/5", None, Reader())
    clean = data.read("sketch", None, Reader())
    assert made.pixels.shape == (7, 3, 227, 227)
    assert torch.equal(made.labels, clean.labels)
    assert float(made.pixels.float().std((2, 3)).mean()) < 0.1 * float(
        clean.pixels.float().std((2, 3)).mean()
    )


@pytest.mark.parametrize("name", ["digits-c", "pacs-c", "office-home-c"])
def test_a_missing_data_set_is_named_as_the_clean_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"the data set '{name.removesuffix('-c')}' is not in"):
        open_data_set(name, tmp_path)


def test_the_corrupted_version_of_a_data_set_is_found_by_its_name() -> None:
    versions = {"digits": "digits-c", "pacs": "pacs-c", "demo": "demo-c", "office-home": "office-home-c"}
    for name, version in versions.items():
        assert corrupted_version(name) == corrupted_version(version) == version
    assert corrupted_version("tiny-imagenet-c") == "tiny-imagenet-c"
    with pytest.raises(
        DataError, match="the data set 'drift' has no corrupted streams; there are those of demo"
    ):
        corrupted_version("drift")
    with pytest.raises(DataError, match="no data set 'nothing'"):
        corrupted_version("nothing")


def test_any_data_set_can_have_a_corrupted_version() -> None:
    class Plain(DataSet):
        name, about, classes = "plain", "", ("a", "b")

        def __init__(self, root: Path) -> None: ...

        @property
        def shifts(self) -> Sequence[Shift]:
            return [Shift("later", "later", ("before",))]

        def read(self, part: str, limit: int | None, reader: Reader) -> Images:
            return Images(torch.full((2, 3, 24, 40), 100, dtype=torch.uint8), torch.tensor([0, 1]))

    class PlainC(Corrupted):
        name, about, clean, side, channels = "plain-c", "", Plain, 24, 3

    made = PlainC(Path()).read("later/brightness/5", None, Reader())
    assert int(made.pixels.float().mean()) == pytest.approx(100 + 0.3 * 255, abs=2)
