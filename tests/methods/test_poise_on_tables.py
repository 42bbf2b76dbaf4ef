"""Poise on tables: it follows a stream as far as rows are unlike source rows, and keeps a window of that."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.methods.poise import blend, learn
from equipoise.network.head import FoundHead
from equipoise.network.running_statistics import Return, following_statistics
from equipoise.testing.subject import unread_step
from tests.support.models import same, snapshot, step_of
from tests.support.rehearsals import plain_novelty


def rows(count: int, seed: int, by: float = 0.0) -> Tensor:
    """Rows (N, 6) that have moved by so much in every column."""
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)) + by


def model() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        made(rows(200, 0))  # its statistics
    return made.eval()


def measured() -> eq.SourceStatistics:
    return eq.SourceStatistics.measure(model(), list(rows(400, 1).split(50)), progress=False)


def poise(**options: Any) -> eq.Adapter:
    return eq.create("poise", model(), measured(), tempering="none", **options)


STREAM = [rows(50, seed, by) for seed, by in enumerate((0.0, 1.8, 1.8, 1.4, 1.2, 1.3, 0.0, 2.4), 10)]
"""Batches that are new in part."""


def shares(source: eq.SourceStatistics, stream: list[Tensor]) -> list[float]:
    """The share of what is new after each batch, sample by sample."""
    limit, total, count, found = float(source.inputs["limit"]), 0.0, 50.0, []
    for x in stream:
        kept = 2 ** (-len(x) / 300)
        total, count = total * kept + sum(plain_novelty(source, x).tolist()) / limit, count * kept + len(x)
        found.append(min(max(total / count - 1, 0.0), 1.0))
    return found


def test_statistics_and_prototypes_follow_what_is_new() -> None:
    source = replace(measured(), norm_limits=torch.zeros(0))
    adapter, mirror, memory = eq.Poise(model(), source, tempering="none"), model(), dict[str, Tensor]()
    home = {f"1.{name}": tensor.clone() for name, tensor in mirror[1].named_buffers()}
    head, news = nn.Linear(16, 3), shares(source, STREAM)
    head.load_state_dict(mirror[3].state_dict())
    assert news[0] == 0.0
    assert any(0 < new < 1 for new in news)
    for x, share in zip(STREAM, news, strict=True):
        answer, new = adapter(x), torch.tensor(share)
        with torch.no_grad(), following_statistics(mirror, 0.1, back=Return(home, new)):
            features = mirror[:3](x)
            logits = head(features)
        seen = FoundHead("3", head, features, is_output=True)
        memory = learn(memory, seen, logits)
        torch.testing.assert_close(answer, blend(memory, seen, logits, new), rtol=1e-3, atol=1e-4)
        for name, tensor in mirror[1].named_buffers():
            torch.testing.assert_close(
                adapter.student.get_submodule("1").get_buffer(name), tensor, rtol=1e-3, atol=1e-4
            )


@pytest.mark.parametrize("kind", ["the source's own rows", "new in part"])
def test_it_predicts_and_detaches_with_the_share_of_what_is_new(kind: str) -> None:
    adapter, stream = poise(), STREAM[:5] if kind == "new in part" else [rows(50, 30 + n) for n in range(5)]
    for x in stream:
        answer = adapter(x)
    share = shares(measured(), stream)[-1]
    assert 0 < share < 1 if kind == "new in part" else share == 0
    torch.testing.assert_close(adapter.predict(x), answer, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(adapter.detach()(x), adapter.predict(x), rtol=1e-4, atol=1e-5)
    if share == 0:  # the prototypes have no weight, and the statistics are those of the source model
        torch.testing.assert_close(adapter.predict(x), model()(x), rtol=1e-3, atol=1e-3)


def test_its_window_of_novelty_is_saved_loaded_and_reset(tmp_path: Path) -> None:
    adapter, twin = poise(), poise()
    fresh = snapshot(adapter)
    assert adapter.memory["novelty"].tolist() == [0.0, 50.0]
    for x in STREAM[:4]:
        adapter(x)
    assert 0 < shares(measured(), STREAM[:4])[-1] < 1
    adapter.save(tmp_path / "state.safetensors")
    again = eq.load(tmp_path / "state.safetensors", model())
    twin.load_state_dict(adapter.state_dict())
    for other in (again, twin):
        assert torch.equal(other.memory["novelty"], adapter.memory["novelty"])
        assert torch.equal(other.predict(x), adapter.predict(x))
    for x in STREAM[4:]:
        answer = adapter(x)
        assert torch.equal(again(x), answer)
        assert torch.equal(twin(x), answer)
    adapter.reset()
    assert same(snapshot(adapter), fresh)
    assert adapter.memory["novelty"].tolist() == [0.0, 50.0]


def test_a_guard_rolls_the_window_of_novelty_back() -> None:
    guarded = eq.Guarded(poise(), every=2)
    for x in STREAM[:4]:
        guarded(x)
    before, window = snapshot(guarded.adapter), guarded.adapter.memory["novelty"].clone()
    guarded(STREAM[4])
    assert not torch.equal(guarded.adapter.memory["novelty"], window)
    guarded.rollback()
    assert torch.equal(guarded.adapter.memory["novelty"], window)
    assert same(snapshot(guarded.adapter), before)


def test_a_batch_that_is_not_permitted_leaves_the_window_alone() -> None:
    adapter = poise()
    for x in STREAM[:3]:
        adapter(x)
    before = adapter.memory["novelty"].clone()
    adapter(torch.full((20, 6), torch.nan))
    adapter(torch.full((20, 6), 3e38))
    assert torch.equal(adapter.memory["novelty"], before)
    spoilt = STREAM[3].clone()
    spoilt[[1, 7]] = torch.nan
    adapter(spoilt)
    good = STREAM[3][[at for at in range(50) if at not in (1, 7)]]
    kept, new = 2 ** (-48 / 300), plain_novelty(measured(), good).sum() / measured().inputs["limit"]
    expected = [float(before[0]) * kept + float(new), float(before[1]) * kept + 48]
    assert adapter.memory["novelty"].tolist() == pytest.approx(expected, rel=1e-4)


def test_a_step_as_it_is_captured_is_the_eager_one_and_reads_no_number() -> None:
    plain, captured = poise(), poise()
    plain(STREAM[0])
    captured(STREAM[0])
    answers = [plain(x) for x in STREAM[1:5]]
    for x, expected in zip(STREAM[1:5], answers, strict=True):
        answer, _ = unread_step(captured, x, refusing=True)
        torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(captured.memory["novelty"], plain.memory["novelty"])


# ---------------------------------------------------------------------- inputs of several kinds


class WithCodes(nn.Module):
    """Numbers, and codes that choose what is added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.codes = model(), nn.Embedding(4, 6)

    def forward(self, values: Tensor, codes: Tensor) -> Tensor:
        logits: Tensor = self.net(values + self.codes(codes[:, 0]))
        return logits


@pytest.mark.parametrize("form", ["keywords", "tuple"])
def test_numbers_beside_codes_have_no_limit_and_are_followed_as_ever(form: str) -> None:
    torch.manual_seed(1)
    net = WithCodes().eval()
    codes = torch.randint(4, (400, 1), generator=torch.Generator().manual_seed(3))

    def batch(x: Tensor, at: int = 0) -> Any:
        here = codes[at : at + len(x)]
        return {"values": x, "codes": here} if form == "keywords" else (x, here)

    def answer(adapter: eq.Adapter, x: Tensor) -> Tensor:
        given = batch(x)
        found: Tensor = adapter(**given) if form == "keywords" else adapter(*given)
        return found

    if form == "keywords":
        loader = [batch(x, 50 * at) for at, x in enumerate(rows(400, 1).split(50))]
        source = eq.SourceStatistics.measure(net, loader, progress=False)
    else:
        pairs = [{"both": batch(x, 50 * at)} for at, x in enumerate(rows(400, 1).split(50))]
        source = eq.SourceStatistics.measure(net, pairs, inputs=lambda item: item["both"], progress=False)
    assert set(source.inputs) == {"mean", "scale", "kept", "usual"}
    adapter = eq.create("poise", net, source, tempering="none")
    blind = eq.create("poise", net, replace(source, inputs={}), tempering="none")
    assert "novelty" not in adapter.memory
    for x in STREAM:
        assert torch.equal(answer(adapter, x), answer(blind, x))
    assert "novelty" not in adapter.memory


class TwoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        logits: Tensor = self.net(torch.cat([first, 0.01 * second], 1))
        return logits


def test_the_order_of_keywords_does_not_make_rows_new() -> None:
    def batch(x: Tensor) -> dict[str, Tensor]:
        return {"first": x[:, :2], "second": 100 * x[:, 2:]}

    net, loader = TwoTables().eval(), [batch(x) for x in rows(400, 1).split(50)]
    source = eq.SourceStatistics.measure(net, loader, progress=False)
    adapter, other = (eq.create("poise", net, source, tempering="none") for _ in range(2))
    for x in STREAM:
        given = batch(x)
        turned = dict(reversed(given.items()))
        assert torch.equal(adapter(**given), other(**turned))
    assert torch.equal(adapter.memory["novelty"], other.memory["novelty"])


def test_a_second_temper_leaves_it_the_novelty_that_it_knows() -> None:
    bare, inner = poise(), poise()
    blind = replace(measured(), inputs={})
    tempered = eq.Tempered(inner, blind, "mean")
    for x in STREAM:
        raw = bare(x)
        answer = tempered(x)
        torch.testing.assert_close(answer * step_of(tempered).temperature, raw, rtol=1e-4, atol=1e-5)
    assert torch.equal(inner.memory["novelty"], bare.memory["novelty"])
