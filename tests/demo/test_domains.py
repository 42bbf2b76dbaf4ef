import pytest
import torch

from equipoise.data.demo import DOMAIN_NAMES, Domain, load_domains
from equipoise.demo.domains import ASIDE_LEAST, aside_count, hold_out, rows_aside

COUNT = 200


@pytest.fixture(scope="module")
def domains() -> list[Domain]:
    return load_domains(COUNT, seed=0)


@pytest.mark.parametrize("held_out", DOMAIN_NAMES)
def test_no_held_out_image_is_trained_on(domains: list[Domain], held_out: str) -> None:
    split = hold_out(domains, held_out, seed=0)
    trained = {image.numpy().tobytes() for image in split.training.images}
    assert split.held_out.name == held_out
    assert held_out not in split.sources
    assert len(split.training) == len(split.training.images) == 2 * COUNT - ASIDE_LEAST
    assert not any(image.numpy().tobytes() in trained for image in split.held_out.images)


@pytest.mark.parametrize("held_out", DOMAIN_NAMES)
def test_images_kept_aside_are_source_images_and_not_trained_on(domains: list[Domain], held_out: str) -> None:
    split = hold_out(domains, held_out, seed=0)
    images = torch.cat([split.training.images, split.aside.images])
    joined = torch.cat([domain.images for domain in domains if domain.name != held_out])
    assert len(split.aside) == len(split.aside.images) == ASIDE_LEAST
    assert sorted(image.numpy().tobytes() for image in images) == sorted(
        image.numpy().tobytes() for image in joined
    )


def test_a_tenth_is_kept_aside_but_at_least_150() -> None:
    assert [aside_count(images) for images in (500, 1500, 1600)] == [150, 150, 160]


def test_rows_aside_have_the_shares_of_the_classes_and_depend_on_the_seed() -> None:
    labels = torch.tensor([0] * 40 + [1] * 120 + [2] * 40)
    rows = rows_aside(labels, 50, seed=0)
    assert len(rows.unique()) == 50
    assert labels[rows].bincount().tolist() == [10, 30, 10]
    assert torch.equal(rows, rows_aside(labels, 50, seed=0))
    assert not torch.equal(rows, rows_aside(labels, 50, seed=1))
