import numpy as np
import pytest

from equipoise.research.data.demo import CLASSES
from equipoise.research.data.rendered import GLYPH_NAMES, background, digit_fonts, glyph, write_digit


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
