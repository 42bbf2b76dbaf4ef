from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.demo.contestants import OPTIONS, Contestant, contestants
from equipoise.demo.domains import Pictures
from equipoise.demo.experiment import add_rehearsal, answer_online, measure, noted, tempered
from equipoise.demo.training import new_classifier


def steps_to(list_: list[int]) -> Callable[[], None]:
    return lambda: list_.append(1)


@pytest.fixture(scope="module")
def stream() -> list[Tensor]:
    images = torch.rand(150, 1, 32, 32, generator=torch.Generator().manual_seed(0)) * 255
    return list(images.split(50))


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    """Untrained, but certain enough of its answers that the methods' options matter."""
    model = new_classifier(0).eval()
    with torch.no_grad():
        model.get_parameter("head.weight").mul_(30)
    return model


@pytest.fixture(scope="module")
def source(model: torch.nn.Module, stream: list[Tensor]) -> eq.SourceStatistics:
    steps: list[int] = []
    found = measure(model, torch.cat(stream), 0, steps_to(steps))
    assert len(steps) == 3
    assert found.num_samples == 150
    # Random labels make the answers over-certain, so that the rehearsal has something to temper.
    labels = torch.randint(10, (150,), generator=torch.Generator().manual_seed(0))
    return add_rehearsal(model, Pictures(torch.cat(stream), labels), found, 8, 0)


@pytest.mark.parametrize("row", contestants(), ids=lambda row: str(row.name))
def test_one_run_gives_what_adapters_of_every_tempering_give(
    row: Contestant, model: torch.nn.Module, source: eq.SourceStatistics, stream: list[Tensor]
) -> None:
    steps: list[int] = []
    medians = answer_online(model, source, Contestant("source"), "median", stream, 0, steps_to(steps))
    answers = answer_online(model, source, row, row.own, stream, 0, steps_to(steps))
    assert len(steps) == 2 * len(stream)
    temperatures = {
        row.own: answers.temperatures,
        "none": [1.0] * len(stream),
        "median": medians.temperatures,
    }
    raw = torch.cat(answers.logits)
    for tempering in row.temperings:
        adapter = eq.create(row.method, model, source, tempering=tempering, **row.options)
        expected = torch.cat([adapter(images) for images in stream])
        torch.testing.assert_close(tempered(answers.logits, temperatures[tempering]), expected)
        assert torch.equal(expected.argmax(1), raw.argmax(1))
        assert (tempering == "none") == torch.allclose(expected, raw)


@pytest.mark.parametrize("method", OPTIONS)
def test_the_options_reach_the_method(
    method: str, model: torch.nn.Module, source: eq.SourceStatistics, stream: list[Tensor]
) -> None:
    found = answer_online(model, source, Contestant(method), "none", stream, 0, lambda: None).logits
    adapter = eq.create(method, model, source)
    assert not torch.equal(torch.cat(found), torch.cat([adapter(images) for images in stream]))


def test_the_contestants_are_all_methods_raw_and_tempered() -> None:
    rows = contestants()
    assert rows[0].method == "source"
    assert sorted(row.method for row in rows) == eq.list_methods()
    for row in rows:
        assert {"none", "median"} <= set(row.temperings)
        assert ("mean" in row.temperings) == (row.method == "dec")
        assert ("rehearsed" in row.temperings) == (row.method == "poise")


def test_only_the_rehearsed_method_estimates_its_accuracy(
    model: torch.nn.Module, source: eq.SourceStatistics, stream: list[Tensor]
) -> None:
    assert list(source.rehearsals) == ["poise"]
    adapter = eq.Poise(model, source)
    for images in stream:
        adapter(images)
    for row in contestants():
        found = answer_online(model, source, row, row.own, stream, 0, lambda: None).estimate
        assert found == (adapter.accuracy if row.method == "poise" else None)
    assert adapter.accuracy is not None
    assert noted(adapter.accuracy)["value"] == adapter.accuracy.value
    with pytest.raises(RuntimeError, match="did not estimate"):
        noted(None)
