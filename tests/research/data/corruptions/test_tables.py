"""The constants, as the published scripts have them, and what becomes of them at other sizes."""

import pytest

from equipoise.research.data.corruptions import CORRUPTIONS, TIERS
from equipoise.research.data.corruptions.tables import constants

AT_64 = """
gaussian_noise .04 | .08 | .12 | .15 | .18
shot_noise 250 | 100 | 50 | 30 | 15
impulse_noise .01 | .02 | .05 | .08 | .14
defocus_blur .5 .6 1 | 1 .1 1 | 1.5 .1 1 | 2.5 .01 1 | 3 .1 1
glass_blur .1 1 1 | .5 1 1 | .6 1 2 | .7 2 1 | .9 2 2
motion_blur 10 1 | 10 1.5 | 10 2 | 10 2.5 | 12 3
zoom_blur 1.05 | 1.10 | 1.15 | 1.20 | 1.25
snow .1 .2 1 .6 8 3 .8 | .1 .2 1 .5 10 4 .8 | .15 .3 1.75 .55 10 4 .7\
 | .25 .3 2.25 .6 12 6 .65 | .3 .3 1.25 .65 14 12 .6
frost 1 .3 1 | .9 .4 1 | .8 .45 1 | .75 .5 1 | .7 .55 1
fog .4 3 | .7 3 | 1 2.5 | 1.5 2 | 2 1.75
brightness .1 | .2 | .3 | .4 | .5
contrast .4 | .3 | .2 | .1 | .05
elastic_transform 0 0 .08 | .05 .3 .06 | .1 .08 .06 | .1 .03 .03 | .16 .03 .02
pixelate .9 | .8 | .7 | .6 | .5
jpeg_compression 65 | 58 | 50 | 40 | 25
"""

AT_32 = """
gaussian_noise .04 | .06 | .08 | .09 | .10
shot_noise 500 | 250 | 100 | 75 | 50
impulse_noise .01 | .02 | .03 | .05 | .07
defocus_blur .3 .4 1 | .4 .5 1 | .5 .6 1 | 1 .2 1 | 1.5 .1 1
glass_blur .05 1 1 | .25 1 1 | .4 1 1 | .25 1 2 | .4 1 2
motion_blur 6 1 | 6 1.5 | 6 2 | 8 2 | 9 2.5
zoom_blur 1.05 | 1.10 | 1.15 | 1.20 | 1.25
snow .1 .2 1 .6 8 3 .95 | .1 .2 1 .5 10 4 .9 | .15 .3 1.75 .55 10 4 .9\
 | .25 .3 2.25 .6 12 6 .85 | .3 .3 1.25 .65 14 12 .8
frost 1 .2 1 | 1 .3 1 | .9 .4 1 | .85 .4 1 | .75 .45 1
fog .2 3 | .5 3 | .75 2.5 | 1 2 | 1.5 1.75
brightness .05 | .1 | .15 | .2 | .3
contrast .75 | .5 | .4 | .3 | .15
elastic_transform 0 0 .08 | .05 .2 .07 | .08 .06 .06 | .1 .04 .05 | .1 .03 .03
pixelate .95 | .9 | .85 | .75 | .65
jpeg_compression 80 | 65 | 58 | 50 | 40
"""


def read(table: str) -> dict[str, list[tuple[float, ...]]]:
    rows = {}
    for line in table.strip().splitlines():
        name, tiers = line.split(maxsplit=1)
        rows[name] = [tuple(map(float, tier.split())) for tier in tiers.split("|")]
    return rows


@pytest.mark.parametrize(("size", "table"), [(64, AT_64), (32, AT_32)])
def test_constants_are_those_of_the_published_scripts(size: int, table: str) -> None:
    rows = read(table)
    assert tuple(rows) == CORRUPTIONS
    for name, expected in rows.items():
        assert [constants(name, tier, size) for tier in TIERS] == expected


# Where lengths are, written out again: of a kernel, a sigma and a distance, a radius and a sigma, …
LENGTHS = {"defocus_blur": "--k", "glass_blur": "sd-", "motion_blur": "rs", "snow": "--f-rs-", "frost": "--c"}


@pytest.mark.parametrize(
    ("side", "size"), [(8, 32), (16, 32), (40, 32), (45, 32), (46, 64), (48, 64), (96, 64), (224, 64)]
)
def test_other_sizes_have_the_nearer_table_with_lengths_in_proportion(side: int, size: int) -> None:
    for name, rows in read(AT_64 if size == 64 else AT_32).items():
        for tier, row in zip(TIERS, rows, strict=True):
            kinds = LENGTHS.get(name, "-" * len(row))
            expected = [
                value if kind == "-" else value * side / size for value, kind in zip(row, kinds, strict=True)
            ]
            assert constants(name, tier, side) == pytest.approx(expected)
