import pytest

from equipoise.data.demo import DOMAIN_NAMES, Domain, load_domains
from equipoise.demo.domains import leave_one_out

COUNT = 200


@pytest.fixture(scope="module")
def domains() -> list[Domain]:
    return load_domains(COUNT, seed=0)


@pytest.mark.parametrize("held_out", DOMAIN_NAMES)
def test_no_held_out_image_is_trained_on(domains: list[Domain], held_out: str) -> None:
    split = leave_one_out(domains, held_out)
    trained = {image.numpy().tobytes() for image in split.images}
    assert split.held_out.name == held_out
    assert held_out not in split.sources
    assert len(split.images) == len(split.labels) == 2 * COUNT
    assert not any(image.numpy().tobytes() in trained for image in split.held_out.images)
