"""Models that take or return more than one tensor: dicts, tuples, several inputs by position."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import drifted, images, make


class Answers(nn.Module):
    """A small model whose logits are in something else."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.net, self.form = make()[0], form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.net(x))


class Pair(NamedTuple):
    loss: Tensor | None
    scores: Tensor


def in_a_dict(z: Tensor) -> dict[str, Any]:
    return {"features": z.exp(), "logits": z, "loss": None}


def in_a_tuple(z: Tensor) -> tuple[Tensor, Tensor]:
    return z, z.exp()


def in_a_pair(z: Tensor) -> Pair:
    return Pair(None, z)


def the_logits(out: Any) -> Tensor:
    logits: Tensor = out["logits"]
    return logits


FORMS: dict[str, tuple[Any, Any]] = {
    "dict": (in_a_dict, the_logits),
    "tuple": (in_a_tuple, lambda out: out[0]),
    "named tuple": (in_a_pair, lambda out: out.scores),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["source", "tent", "eata", "t3a", "dec", "poise"])
def test_outputs_finds_the_logits(name: str, form: str, tmp_path: Path) -> None:
    returns, outputs = FORMS[form]
    model, plain = Answers(returns), Answers(lambda z: z)
    loader = images(32).split(8)
    source = eq.SourceStatistics.measure(model, loader, fisher=True, outputs=outputs, progress=False)
    theirs = eq.SourceStatistics.measure(plain, loader, fisher=True, progress=False)
    assert source == theirs
    adapter, like = eq.create(name, model, source, outputs=outputs), eq.create(name, plain, theirs)
    for seed in range(3):
        assert torch.equal(adapter(drifted(8, seed)), like(drifted(8, seed)))
    assert torch.equal(adapter.predict(drifted(8)), like.predict(drifted(8)))
    assert torch.equal(adapter.source_logits(drifted(8)), like.source_logits(drifted(8)))
    assert torch.allclose(adapter.detach()(drifted(8)), adapter.predict(drifted(8)), atol=1e-6)
    assert "outputs" not in adapter.options
    adapter.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", model, outputs=outputs)
    assert torch.equal(loaded.predict(drifted(8, 5)), like.predict(drifted(8, 5)))


@pytest.mark.parametrize("form", ["dict", "tuple", "named tuple"])
def test_an_output_without_logits_shows_the_cure(form: str) -> None:
    model = Answers(FORMS[form][0])
    cures = {
        "dict": r"dict with features, logits, loss: .*outputs=lambda out: out\['logits'\]",
        "tuple": r"tuple of 2: .*outputs=lambda out: out\[0\]",
        "named tuple": r"Pair of 2: .*outputs=lambda out: out\[1\]",
    }
    for call in (
        lambda: eq.create("tent", model)(images(8)),
        lambda: eq.create("tent", model).predict(images(8)),
        lambda: eq.SourceStatistics.measure(model, [images(8)], progress=False),
        lambda: eq.rehearse(model, [(images(60), torch.arange(60) % 5)] * 2, shifts=8, progress=False),
    ):
        with pytest.raises(eq.errors.ModelError, match=cures[form]):
            call()


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        (3, eq.errors.OptionError, "expected outputs as a function"),
        (lambda out: None, eq.errors.ModelError, "expected outputs= to return the logits as a tensor"),
        (
            lambda out: out["logit"],
            eq.errors.ModelError,
            "outputs= failed on dict with features, logits, loss: KeyError",
        ),
        (lambda out: out["logits"][0], eq.errors.ModelError, r"shape \(N, C\)"),
    ],
)
def test_wrong_outputs(outputs: Any, error: type[Exception], message: str) -> None:
    for call in (
        lambda: eq.create("tent", Answers(in_a_dict), outputs=outputs)(images(8)),
        lambda: eq.SourceStatistics.measure(Answers(in_a_dict), [images(8)], outputs=outputs, progress=False),
    ):
        with pytest.raises(error, match=message):
            call()


def test_tempered_and_deepcopied_adapters_read_the_same_logits() -> None:
    from copy import deepcopy

    model = Answers(in_a_dict)
    source = eq.SourceStatistics.measure(model, [images(16)], outputs=the_logits, progress=False)
    adapter = eq.Tempered(eq.create("tent", model, outputs=the_logits), source)
    twin = deepcopy(adapter)
    assert torch.equal(adapter(drifted(8)), twin(drifted(8)))


# ---------------------------------------------------------------------- inputs


class Two(nn.Module):
    """Takes an image and numbers beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make()[0]
        self.beside = nn.Linear(2, 5)

    def forward(self, image: Tensor, beside: Tensor, scale: float = 1.0) -> Tensor:
        logits: Tensor = scale * self.net(image) + self.beside(beside)
        return logits


class OfADict(nn.Module):
    """Takes a dict as its one argument."""

    def __init__(self, two: Two) -> None:
        super().__init__()
        self.two = two

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.two(batch["image"], batch["beside"])
        return logits


def two(seed: int = 0) -> tuple[Two, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Two()
    return model, drifted(8, seed), torch.randn(8, 2, generator=torch.Generator().manual_seed(seed))


METHODS = ["tent", "poise", "dec", "sotta"]


def created(name: str, model: nn.Module, **more: Any) -> eq.Adapter:
    source = eq.SourceStatistics(h0=0.5, kappa=2.0, num_classes=5)
    options: dict[str, Any] = {"every": 8, "confidence": 0.0} if name == "sotta" else {}
    return eq.create(name, model, source, **options, **more)


@pytest.mark.parametrize("name", METHODS)
def test_all_ways_to_pass_the_same_inputs_give_the_same_answers(name: str) -> None:
    by_keyword = created(name, two()[0])
    by_position, of_a_dict, by_function, of_its_own = (
        created(name, two()[0]),
        created(name, two()[0]),
        created(name, two()[0], inputs=lambda batch: (batch["image"], batch["beside"])),
        created(name, OfADict(two()[0]), inputs=lambda batch: (batch,)),
    )
    for seed in range(3):
        _, image, beside = two(seed)
        expected = by_keyword(image=image, beside=beside)
        batch = {"image": image, "beside": beside}
        assert torch.equal(by_position(image, beside), expected)
        assert torch.equal(of_a_dict({**batch, "labels": torch.zeros(8)}), expected)
        assert torch.equal(by_function(batch), expected)
        assert torch.equal(of_its_own(batch), expected)
        expected = by_keyword.predict(image=image, beside=beside)
        assert torch.equal(by_position.predict(image, beside), expected)
        assert torch.equal(of_a_dict.predict(batch), expected)
        assert torch.equal(by_function.predict(batch), expected)
        assert torch.equal(of_its_own.predict(batch), expected)
    assert torch.equal(of_its_own.source_logits(batch), by_keyword.source_logits(**batch))


@pytest.mark.parametrize("entry", ["labels", "label"])
def test_inputs_gets_a_dict_without_its_labels(entry: str) -> None:
    model, image, beside = two()
    seen: list[list[str]] = []

    def inputs(batch: Any) -> Any:
        seen.append(list(batch))
        return batch

    adapter, batch = created("tent", model, inputs=inputs), {"image": image, "beside": beside}
    labelled = {**batch, entry: torch.zeros(8)}
    for call in (adapter, adapter.predict, adapter.source_logits):
        call(labelled)
    adapter.adapt([labelled], progress=False)
    assert seen == [["image", "beside"]] * 4
    assert entry in labelled  # the caller's own dict stays as it is


def test_inputs_gets_a_tuple_of_a_call_whole() -> None:
    model, image, beside = two()
    by_function = created("tent", model, inputs=lambda pair: (pair[0], pair[1]))
    assert torch.equal(by_function((image, beside)), created("tent", model)(image, beside))


def test_a_bad_sample_in_a_second_input_is_set_aside() -> None:
    model, image, beside = two()
    beside[3] = torch.nan
    for answer in (
        created("tent", model)(image, beside),
        created("tent", OfADict(model), inputs=lambda batch: (batch,))({"image": image, "beside": beside}),
    ):
        assert answer.isnan().any(1).tolist() == [row == 3 for row in range(8)]


def test_loaders_of_all_kinds() -> None:
    model, image, beside = two()
    batch, labels = {"image": image, "beside": beside}, torch.arange(8) % 5
    loaders: list[list[Any]] = [
        [batch],
        [(batch, labels)],
        [{**batch, "labels": labels}],
        [{**batch, "label": labels}],
        [((image, beside), labels)],
        [[[image, beside], labels]],
    ]
    found = [eq.SourceStatistics.measure(model, loader, progress=False) for loader in loaders]
    found += [
        eq.SourceStatistics.measure(OfADict(model), loader, inputs=lambda batch: (batch,), progress=False)
        for loader in loaders[:3]
    ]
    assert len({(source.h0, source.kappa) for source in found}) == 1
    expected = created("tent", model).adapt([batch], progress=False).predict(image, beside)
    for loader in loaders:
        adapter = created("tent", model).adapt(loader, progress=False)
        assert torch.equal(adapter.predict(image, beside), expected)


def test_calls_that_the_model_does_not_take_show_the_cure() -> None:
    model, image, beside = two()
    plain = make()[0]
    errors = eq.errors
    with pytest.raises(errors.BatchTypeError, match=r"\(input\), got 2 positional.*without labels"):
        eq.create("tent", plain)(image, beside)
    with pytest.raises(errors.BatchTypeError, match=r"inputs=lambda batch: batch\['pixels'\]"):
        eq.create("tent", plain)({"pixels": image})
    with pytest.raises(errors.BatchTypeError, match=r"inputs=lambda batch: \(batch,\)"):
        eq.create("tent", OfADict(model))({"image": image, "beside": beside})
    with pytest.raises(errors.BatchTypeError, match=r"adapter\(\*batch\)"):
        eq.create("tent", model)((image, beside))
    with pytest.raises(errors.BatchTypeError, match=r"\(\(first, second\), labels\)"):
        eq.SourceStatistics.measure(model, [(image, beside)], progress=False)
    with pytest.raises(errors.OptionError, match="expected inputs as a function"):
        wrong: Any = "image"
        eq.create("tent", model, inputs=wrong)
    with pytest.raises(errors.BatchTypeError, match="inputs= takes one batch"):
        eq.create("tent", model, inputs=lambda batch: batch)(image, beside)
    with pytest.raises(errors.BatchTypeError, match=r"inputs= failed.*KeyError"):
        eq.create("tent", model, inputs=lambda batch: batch["x"])({"image": image})
    with pytest.raises(errors.BatchTypeError, match=r"expected a batch as a torch.Tensor.*got str"):
        eq.create("tent", plain, inputs=lambda batch: "x")(image)
