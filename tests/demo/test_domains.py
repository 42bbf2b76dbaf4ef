import numpy as np
import pytest
import torch

from equipoise.demo.domains import CLASSES, DOMAIN_NAMES, Domain, leave_one_out, load_domains
from equipoise.demo.rendered import GLYPH_NAMES, background, digit_fonts, glyph, write_digit

COUNT = 200


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


@pytest.mark.parametrize("held_out", DOMAIN_NAMES)
def test_no_held_out_image_is_trained_on(domains: list[Domain], held_out: str) -> None:
    split = leave_one_out(domains, held_out)
    trained = {image.numpy().tobytes() for image in split.images}
    assert split.held_out.name == held_out
    assert held_out not in split.sources
    assert len(split.images) == len(split.labels) == 2 * COUNT
    assert not any(image.numpy().tobytes() in trained for image in split.held_out.images)


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
        written = write_digit(ground, digit, rng)
        middle = np.abs(written - ground)[16:48, 16:48]
        assert (middle > 20).mean() > 0.04


def test_the_label_decides_what_is_written() -> None:
    scenes = [
        write_digit(np.zeros((64, 64), np.float32), digit, np.random.default_rng(3)) for digit in range(10)
    ]
    assert len({scene.tobytes() for scene in scenes}) == CLASSES
