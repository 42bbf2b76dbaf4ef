"""Source training: the paper's optimisers, the same bits from the same seed, also after a kill."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.research.data import Images
from equipoise.research.experiment import trained_model, training
from equipoise.research.experiment.plan import ModelPlan
from equipoise.research.experiment.recipe import Training
from equipoise.research.experiment.repeatable import repeatable, seeded
from equipoise.research.experiment.trained_model import (
    TrainedModelInfo,
    best_fixed_temperature,
    load_source_model,
    model_path,
    new_model,
    read_source_model,
    split,
    write_source_model,
)
from equipoise.research.experiment.training import fit, make_optimizer, train_source_model
from equipoise.research.models import create_backbone

from .toy import byhand, model_plan, toy_images

ONE_EPOCH = Training(optimizer="adam", learning_rate=1e-3, epochs=1, batch_size=4)
ADAM = Training(optimizer="adam", learning_rate=1e-3, epochs=3, batch_size=16)


def weights(path: Path, plan: ModelPlan) -> dict[str, torch.Tensor]:
    read_source_model.cache_clear()
    return read_source_model(path, torch.device("cpu")).model.state_dict()


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_the_papers_optimisers() -> None:
    model = nn.Linear(2, 2)
    adam = make_optimizer(model, ADAM)
    assert isinstance(adam, torch.optim.Adam)
    assert (adam.defaults["lr"], adam.defaults["eps"]) == (1e-3, 1e-7)
    rms = make_optimizer(model, Training(optimizer="rmsprop", learning_rate=2e-4, epochs=1, batch_size=2))
    assert isinstance(rms, torch.optim.RMSprop)
    assert [rms.defaults[k] for k in ("lr", "alpha", "eps", "momentum")] == [2e-4, 0.9, 1e-7, 0]


def test_fit_takes_the_steps_of_plain_training() -> None:
    images = toy_images("plain", 10)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 3))
    byhand = nn.Linear(1024, 3)
    byhand.load_state_dict(model[1].state_dict())
    steps = Training(optimizer="adam", learning_rate=1e-3, epochs=2, batch_size=4)
    fit(model, images, steps, seed=5)
    adam = torch.optim.Adam(byhand.parameters(), lr=1e-3, eps=1e-7)
    for epoch in range(2):
        order = torch.randperm(10, generator=torch.Generator().manual_seed(5 * 100_003 + epoch))
        for rows in (order[:4], order[4:8], order[8:]):
            logits = byhand(images.pixels[rows].float().flatten(1))
            loss = -logits.log_softmax(1)[torch.arange(len(rows)), images.labels[rows]].mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
    torch.testing.assert_close(model[1].weight, byhand.weight)
    assert not model.training


def test_a_last_batch_of_one_is_left_out() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 3), nn.BatchNorm1d(3))
    fit(
        model,
        toy_images("plain", 9),
        Training(optimizer="adam", learning_rate=1e-3, epochs=1, batch_size=4),
        0,
    )
    assert model[2].state_dict()["num_batches_tracked"] == 2


def test_the_same_seed_gives_the_same_model_and_another_another(tmp_path: Path) -> None:
    found = []
    for at, seed in enumerate((0, 0, 1)):
        folder = tmp_path / str(at)
        folder.mkdir()
        plan = model_plan(tmp_path, seed=seed)
        torch.manual_seed(at)  # the caller's random numbers change nothing
        train_source_model(plan, folder)
        found.append(weights(model_path(folder, plan.key), plan))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def test_training_leaves_the_callers_state_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    train_source_model(model_plan(tmp_path), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()
    filling: Any = torch.utils.deterministic
    assert filling.fill_uninitialized_memory


@pytest.mark.parametrize("steps", [ADAM, ADAM.model_copy(update={"optimizer": "rmsprop"})])
def test_a_killed_training_goes_on_to_the_same_bits(
    tmp_path: Path, steps: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    plan = model_plan(
        tmp_path, training=steps, backbone="test_resnet"
    )  # dropout, momentum of statistics and all
    train_source_model(plan, whole)
    with monkeypatch.context() as patch:
        saved: list[int] = []
        real: Any = training._save

        def save_then_die(*args: object) -> None:
            real(*args)
            saved.append(1)
            if len(saved) == 2:
                raise KeyboardInterrupt

        patch.setattr(training, "_save", save_then_die)
        with pytest.raises(KeyboardInterrupt):
            train_source_model(plan, killed)
    assert not model_path(killed, plan.key).exists()
    epochs: list[int] = []

    def noted(seed: int, epoch: int) -> AbstractContextManager[None]:
        epochs.append(epoch)
        return seeded(seed, epoch)

    monkeypatch.setattr(training, "seeded", noted)
    train_source_model(plan, killed)
    assert epochs == [2]  # only the last of three
    assert same(weights(model_path(killed, plan.key), plan), weights(model_path(whole, plan.key), plan))
    assert [p.name for p in killed.iterdir()] == [f"{plan.key}.safetensors"]


def test_a_finished_model_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = model_plan(tmp_path)
    train_source_model(plan, tmp_path)
    monkeypatch.setattr(training, "fit", lambda *_: pytest.fail("trained again"))
    train_source_model(plan, tmp_path)


def test_a_damaged_unfinished_training_starts_anew(tmp_path: Path) -> None:
    plan = model_plan(tmp_path)
    model_path(tmp_path, plan.key).with_suffix(".partial.safetensors").write_bytes(b"cut")
    train_source_model(plan, tmp_path)
    assert model_path(tmp_path, plan.key).exists()


def test_the_file_has_the_model_and_what_was_measured_of_it(tmp_path: Path) -> None:
    plan = model_plan(tmp_path)
    train_source_model(plan, tmp_path)
    trained = read_source_model(model_path(tmp_path, plan.key), torch.device("cpu"))
    images = Images.join([toy_images("plain"), toy_images("dark")])
    images = images.select(split(images.labels, plan.seed).trained)  # not the held-out ones
    logits = trained.model(images.pixels.float())
    expected = SourceStatistics.measure(trained.model, [images.pixels.float()], progress=False)
    assert trained.source.agrees_with(expected)
    assert trained.source.num_samples == 72
    assert trained.source.fisher.keys() == {
        n for n, _ in trained.model.named_parameters() if ".1." in n or ".5." in n
    }
    assert trained.source.entropies.numel() == 257
    assert int(trained.source.features["class_counts"].sum()) == 72
    assert trained.fixed_tau == best_fixed_temperature(logits.detach(), images.labels)
    assert not trained.model.training


def test_a_model_that_an_older_version_measured_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = model_plan(tmp_path)
    path = model_path(tmp_path, plan.key)
    train_source_model(plan, tmp_path)
    whole, source = weights(path, plan), load_source_model(path, "cpu").source

    def of_old(self: SourceStatistics) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in kept(self).items() if "source.fisher" in name}

    kept = SourceStatistics.tensors
    with monkeypatch.context() as patched:
        patched.setattr(SourceStatistics, "tensors", of_old)
        stored = load_source_model(path, "cpu")
        images = Images.join([toy_images("plain"), toy_images("dark")])
        images = images.select(split(images.labels, plan.seed).trained)
        write_source_model(path, stored.model, images, plan)
    assert not load_source_model(path, "cpu").source.features
    said = train_source_model(plan, tmp_path)
    assert said.endswith("measured by an older version; toy is measured again")
    assert same(weights(path, plan), whole)
    again = load_source_model(path, "cpu").source
    assert same(again.tensors(), source.tensors())
    assert train_source_model(plan, tmp_path) == ""


@pytest.mark.parametrize("last", [[nn.Tanh()], []])  # no linear head, or no normalisation
def test_a_model_without_features_or_fisher_is_written(last: list[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 3), *last)
    write_source_model(tmp_path / "m.safetensors", model.eval(), toy_images("plain"), model_plan(tmp_path))
    assert (tmp_path / "m.safetensors").exists()


def test_the_fixed_temperature_has_the_least_ece() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(4000, 4, generator=generator) * 2
    labels = torch.distributions.Categorical(logits=true).sample()
    found = best_fixed_temperature(true * 3, labels)  # three times too certain
    assert found == pytest.approx(3, rel=0.15)

    def ece(logits: torch.Tensor) -> float:
        return byhand(logits, labels)["ece"]

    best = min(ece(true.double() * 3 / t) for t in torch.linspace(0.2, 7, 400).tolist())
    assert ece(true.double() * 3 / found) <= best + 2e-3


def test_new_models_depend_on_the_seed_alone(tmp_path: Path) -> None:
    torch.manual_seed(1)
    one = new_model(model_plan(tmp_path), 1).state_dict()
    torch.manual_seed(2)
    assert same(one, new_model(model_plan(tmp_path), 1).state_dict())
    assert not same(one, new_model(model_plan(tmp_path, seed=1), 1).state_dict())


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2  # in the weights of a dense layer
    return content[:middle] + bytes([content[middle] ^ 64]) + content[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "flipped": flipped,
    "renamed": lambda content: content.replace(b"model.head.bias", b"model.head.bios"),
    "without description": lambda content: content.replace(b'"about"', b'"abort"'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_trained_again(damage: str, tmp_path: Path) -> None:
    plan = model_plan(tmp_path)
    path = model_path(tmp_path, plan.key)
    assert train_source_model(plan, tmp_path) == ""
    whole = {name: tensor.clone() for name, tensor in weights(path, plan).items()}
    content = path.read_bytes()
    path.write_bytes(DAMAGES[damage](content))
    assert path.read_bytes() != content
    said = train_source_model(plan, tmp_path)
    assert said.startswith(f"{path}: ")
    assert said.endswith("; toy is trained again")
    assert same(weights(path, plan), whole)
    assert train_source_model(plan, tmp_path) == ""


def test_fisher_and_the_fixed_temperature_are_measured_on_a_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, images = model_plan(tmp_path, seed=5), toy_images("plain")
    model = new_model(plan, 1).eval()
    monkeypatch.setattr(trained_model, "FISHER_IMAGES", 8)
    monkeypatch.setattr(trained_model, "FIXED_IMAGES", 12)
    fitted: list[torch.Tensor] = []

    def fit_none(logits: torch.Tensor, labels: torch.Tensor) -> float:
        fitted.extend((logits, labels))
        return 1.5

    monkeypatch.setattr(trained_model, "best_fixed_temperature", fit_none)
    write_source_model(tmp_path / "m.safetensors", model, images, plan)
    found = read_source_model(tmp_path / "m.safetensors", torch.device("cpu"))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(5))
    few = images.pixels[order[:8]].float()
    expected = SourceStatistics.measure(model, [few], fisher=True, progress=False).fisher
    for name, values in expected.items():
        torch.testing.assert_close(found.source.fisher[name], values)
    rows = order[:12].sort().values
    with torch.no_grad():
        torch.testing.assert_close(fitted[0], model(images.pixels.float())[rows])
    assert torch.equal(fitted[1], images.labels[rows])
    assert found.fixed_tau == 1.5
    assert found.source.num_samples == 40


@pytest.mark.parametrize("factor", [1 / 7, 7.0])
def test_the_fixed_temperature_is_searched_from_an_eighth_to_eight(factor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(4000, 4, generator=generator) * 2
    labels = torch.multinomial(true.softmax(1), 1, generator=generator).squeeze(1)
    assert best_fixed_temperature(true * factor, labels) == pytest.approx(factor, rel=0.15)


def test_of_equally_good_temperatures_the_one_nearest_to_one_is_taken() -> None:
    assert best_fixed_temperature(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])) == 1


def test_random_numbers_depend_on_every_number_given() -> None:
    drawn = []
    for numbers in ((0,), (0, 1), (0, 2), (1, 0)):
        with seeded(*numbers):
            drawn.append(float(torch.rand(())))
    assert len(set(drawn)) == 4
    with seeded(0, 1):
        assert float(torch.rand(())) == drawn[1]


def test_a_model_is_made_as_its_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def noted(*arguments: Any, **options: Any) -> nn.Module:
        given.extend((arguments, options))
        return nn.Linear(1, 1)

    monkeypatch.setattr(trained_model, "create_backbone", noted)
    file = tmp_path / "w.safetensors"
    plan = model_plan(tmp_path, backbone="mobilenet_v1", input_size=48, weights=file)
    new_model(plan, 1)
    assert given == [("mobilenet_v1", 3), {"weights": file, "in_channels": 1, "input_size": 48}]


@pytest.mark.parametrize("weights", [Path("gone.safetensors"), None])
def test_a_trained_model_is_loaded_from_its_file_alone(weights: Path | None, tmp_path: Path) -> None:
    plan = model_plan(tmp_path, backbone="mobilenet_v1", weights=weights, input_size=40)
    torch.manual_seed(0)
    model = create_backbone("mobilenet_v1", 3, weights=weights, in_channels=1, input_size=40, load=False)
    path, images = tmp_path / "m.safetensors", toy_images("plain", 4)
    write_source_model(path, model.eval(), images, plan)
    before = torch.get_rng_state()
    found = load_source_model(str(path), "cpu")
    assert torch.equal(before, torch.get_rng_state())
    pixels = images.pixels.float()
    torch.testing.assert_close(found.model(pixels), model(pixels))  # padded as the weights before want it
    assert eq.create("tent", found.model, found.source)(pixels).shape == (4, 3)
    assert found.info == TrainedModelInfo(
        backbone="mobilenet_v1",
        weights="random" if weights is None else "file",
        channels=1,
        input_size=40,
        data="toy",
        classes=("top", "middle", "bottom"),
        trained_on=("plain", "dark"),
        targets=("noisy",),
        seed=0,
        epochs=1,
    )


def test_a_single_image_is_trained_on() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 3))
    before = model[1].state_dict()["weight"].clone()
    fit(model, toy_images("plain", 1), ONE_EPOCH, 0)
    assert not torch.equal(before, model[1].state_dict()["weight"])


def test_fit_trains_in_training_mode() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 3), nn.BatchNorm1d(3)).eval()
    fit(model, toy_images("plain", 8), ONE_EPOCH, 0)
    assert model[2].state_dict()["num_batches_tracked"] == 2


def test_training_allows_only_repeatable_algorithms() -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    with repeatable():
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()
