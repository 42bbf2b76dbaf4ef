import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equipoise.errors import DataError
from equipoise.research.data import Reader, open_data_set
from tests.research.data.miniatures import (
    OFFICE_DOMAINS,
    PACS_CLASSES,
    PACS_DOMAINS,
    domain_folders,
    picture,
    write_picture,
)

OFFICE_CLASSES = tuple(f"Class_{number:02}" for number in range(65))


@pytest.mark.parametrize("wrapper", ["", "kfold", "pacs", "PACS", "pacs/kfold", "PACS/kfold"])
def test_pacs_is_found_and_each_domain_is_left_out_once(tmp_path: Path, wrapper: str) -> None:
    domain_folders(tmp_path / wrapper, PACS_DOMAINS, PACS_CLASSES, each=1)
    data = open_data_set("pacs", tmp_path)
    assert data.classes == PACS_CLASSES
    assert [(shift.target, shift.stream) for shift in data.shifts] == [(name, name) for name in PACS_DOMAINS]
    for shift in data.shifts:
        assert {shift.stream, *shift.sources} == set(PACS_DOMAINS)
        assert len(shift.sources) == 3
        assert shift.stream not in shift.sources
        assert shift.tier is None


def test_pacs_images_come_class_after_class_at_227_pixels(tmp_path: Path) -> None:
    domain_folders(tmp_path, PACS_DOMAINS, PACS_CLASSES, each=2, suffix=".webp")
    data = open_data_set("pacs", tmp_path)
    for place, domain in enumerate(PACS_DOMAINS):
        part = data.read(domain, None, Reader(workers=2))
        assert part.pixels.shape == (14, 3, 227, 227)
        assert part.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
        files = data.files(domain)
        assert [file.parent.name for file in files] == [name for name in PACS_CLASSES for _ in range(2)]
        for number, (file, pixels) in enumerate(zip(files, part.pixels, strict=True)):
            decoded = Image.open(file).convert("RGB")
            assert (
                np.abs(np.asarray(decoded).astype(int) - np.asarray(picture(14 * place + number))).mean() < 12
            )
            expected = np.asarray(decoded.resize((227, 227), Image.Resampling.BILINEAR))
            assert np.array_equal(pixels.permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("real_world", ["Real World", "RealWorld", "Real_World"])
@pytest.mark.parametrize("wrapper", ["", "office-home", "OfficeHome", "OfficeHomeDataset_10072016"])
def test_office_home_has_65_classes_at_128_pixels(tmp_path: Path, wrapper: str, real_world: str) -> None:
    domains = (*OFFICE_DOMAINS[:3], real_world)
    domain_folders(tmp_path / wrapper, domains, OFFICE_CLASSES[:3], each=1, suffix=".jpg")
    data = open_data_set("office-home", tmp_path)
    assert [shift.target for shift in data.shifts] == ["Art", "Clipart", "Product", "Real World"]
    assert data.shifts[0].sources == ("Clipart", "Product", "Real World")
    part = data.read("Real World", None, Reader())
    assert part.pixels.shape == (3, 3, 128, 128)
    assert part.labels.tolist() == [0, 1, 2]
    assert data.files("Real World")[0].parts[-3] == real_world


def test_all_classes_of_office_home_have_their_labels(tmp_path: Path) -> None:
    domain_folders(tmp_path, OFFICE_DOMAINS, OFFICE_CLASSES, each=1)
    data = open_data_set("office-home", tmp_path)
    assert data.classes == OFFICE_CLASSES
    assert data.read("Art", None, Reader()).labels.tolist() == list(range(65))


def test_what_is_no_image_or_hidden_is_not_looked_at(tmp_path: Path) -> None:
    domain_folders(tmp_path, PACS_DOMAINS, PACS_CLASSES, each=1)
    (tmp_path / "photo" / "dog" / "._pic_0.png").write_text("of a Mac")
    (tmp_path / "photo" / "dog" / "Thumbs.db").write_text("of Windows")
    (tmp_path / "photo" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "photo" / "readme.txt").touch()
    data = open_data_set("pacs", tmp_path)
    assert data.classes == PACS_CLASSES
    assert len(data.read("photo", None, Reader())) == 7


def test_a_class_that_a_domain_lacks_is_named(tmp_path: Path) -> None:
    domain_folders(tmp_path, PACS_DOMAINS, PACS_CLASSES, each=1)
    shutil.rmtree(tmp_path / "sketch" / "elephant")
    (tmp_path / "sketch" / "horse" / "pic_0.png").unlink()
    data = open_data_set("pacs", tmp_path)
    assert data.classes == PACS_CLASSES
    assert len(data.read("photo", None, Reader())) == 7
    with pytest.raises(DataError) as refused:
        data.read("sketch", None, Reader())
    assert "2 of 7 files cannot be read" in str(refused.value)
    for name in ("elephant", "horse"):
        assert f"{tmp_path / 'sketch' / name}: no images of this class" in str(refused.value)
    reader = Reader(bad_files="skip")
    part = data.read("sketch", None, reader)
    assert part.labels.tolist() == [0, 2, 3, 5, 6]  # the others keep their labels
    assert [problem.path.name for problem in reader.problems] == ["elephant", "horse"]


def test_a_class_of_one_domain_is_a_class_of_all(tmp_path: Path) -> None:
    domain_folders(tmp_path, PACS_DOMAINS, PACS_CLASSES, each=1)
    write_picture(tmp_path / "photo" / "cat" / "pic_0.png", 0)
    data = open_data_set("pacs", tmp_path)
    assert data.classes == ("cat", *PACS_CLASSES)
    with pytest.raises(DataError, match="cat: no images of this class"):
        data.read("sketch", None, Reader())


def test_bad_files_are_named_and_left_out_if_asked(tmp_path: Path) -> None:
    domain_folders(tmp_path, PACS_DOMAINS, PACS_CLASSES, each=2)
    path = tmp_path / "cartoon" / "guitar" / "pic_1.png"
    path.write_bytes(path.read_bytes()[:60])
    data = open_data_set("pacs", tmp_path)
    with pytest.raises(DataError, match=r"1 of 14 files cannot be read:\n  .*guitar/pic_1.png: "):
        data.read("cartoon", None, Reader())
    part = data.read("cartoon", None, Reader(bad_files="skip"))
    assert part.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 4, 4, 5, 5, 6, 6]


def test_a_domain_that_is_not_there_is_named(tmp_path: Path) -> None:
    domain_folders(tmp_path / "pacs", PACS_DOMAINS[:3], PACS_CLASSES[:1], each=1)
    with pytest.raises(DataError) as refused:
        open_data_set("pacs", tmp_path)
    text = str(refused.value)
    assert f"{tmp_path / 'pacs'} lacks sketch\n" in text
    assert "Deeper, Broader and Artier" in text
