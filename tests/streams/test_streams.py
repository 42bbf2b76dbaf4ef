import math
from collections import Counter
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.errors import DataError, OptionError, UnknownOptionError
from equipoise.research.data import ImageKindName, Images, ImageStream, make_image_stream
from equipoise.research.data.image_stream import IMAGE_KINDS
from equipoise.streams.kinds import dirichlet_slots

LABELS = [torch.tensor([2, 0, 1, 0, 2] * 20), torch.tensor([1, 1, 0, 2, 3, 3, 0] * 10)]
SIZES = [len(labels) for labels in LABELS]
JOINED = torch.cat(LABELS)
ALONE = ("shuffled", "recorded", "changing")
"""Kinds of one domain."""
KINDS = cast("tuple[ImageKindName, ...]", tuple(IMAGE_KINDS))
EACH_ONCE = ("sorted", "mixed", "continual", "correlated", "abrupt")


def stream_of(kind: ImageKindName, seed: int = 0, **options: Any) -> ImageStream:
    short = {"recurring": {"passes": 3}, "abrupt": {"stretch": 20}}.get(kind, {})
    return make_image_stream(LABELS[:1] if kind in ALONE else LABELS, kind, seed, **{**short, **options})


def images_of(kind: ImageKindName = "continual", side: int = 4) -> list[Images]:
    """Images whose pixels are all the same number, that of their row."""
    images, start = [], 0
    for labels in LABELS[:1] if kind in ALONE else LABELS:
        levels = torch.arange(start, start + len(labels)).view(-1, 1, 1, 1)
        images.append(Images(levels.expand(-1, 3, side, side).to(torch.uint8).contiguous(), labels))
        start += len(labels)
    return images


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_decided_by_its_seed_and_not_by_global_random_numbers(kind: ImageKindName) -> None:
    stream = stream_of(kind)
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    again = stream_of(kind)
    assert torch.equal(before, torch.random.get_rng_state())
    assert stream.rows.dtype == stream.domains.dtype == torch.int64
    assert torch.equal(stream.rows, again.rows)
    assert torch.equal(stream.domains, again.domains)
    assert stream.segments == again.segments
    assert stream.options == again.options
    assert torch.equal(stream.rows, stream_of(kind, seed=1).rows) == (kind == "recorded")
    for large in (2**53 + 1, 2**63 - 1):
        assert stream_of(kind, seed=large).seed == large


@pytest.mark.parametrize("kind", KINDS)
def test_segments_add_up_to_what_one_sentence_describes(kind: ImageKindName) -> None:
    stream = stream_of(kind)
    assert sum(segment.images for segment in stream.segments) == len(stream) == len(stream.domains)
    assert len({segment.name for segment in stream.segments}) == len(stream.segments)
    real = stream.rows >= 0
    assert torch.equal(stream.domains[real], (stream.rows[real] >= SIZES[0]).long())
    sentence = stream.describe()
    assert sentence.startswith(f"{len(stream):,} images: ")
    assert sentence.endswith(" (seed 0).")
    assert sentence.count(". ") == 0


@pytest.mark.parametrize("kind", EACH_ONCE)
def test_every_image_comes_once(kind: ImageKindName) -> None:
    rows = stream_of(kind).rows.tolist()
    assert sorted(rows) == list(range(sum(SIZES)))
    assert rows != sorted(rows)


def test_one_domain_comes_shuffled_or_as_recorded() -> None:
    shuffled, recorded = stream_of("shuffled").rows.tolist(), stream_of("recorded", seed=3).rows.tolist()
    assert sorted(shuffled) == recorded == list(range(SIZES[0]))
    assert shuffled != recorded


def test_sorted_is_class_after_class_and_random_within() -> None:
    rows = stream_of("sorted").rows
    labels = JOINED[rows].tolist()
    assert labels == sorted(labels)
    for label in range(4):
        mine = [row for row in rows.tolist() if JOINED[row] == label]
        assert mine != sorted(mine)
    # Both domains take turns within a class that both have.
    zeros = [row < SIZES[0] for row in rows.tolist() if JOINED[row] == 0]
    assert zeros != sorted(zeros)
    assert zeros != sorted(zeros, reverse=True)


def test_mixed_puts_domains_among_each_other() -> None:
    first_half = stream_of("mixed").rows[: sum(SIZES) // 2]
    share = float((first_half < SIZES[0]).float().mean())
    assert abs(share - SIZES[0] / sum(SIZES)) < 0.15


def test_continual_is_one_domain_after_the_other() -> None:
    stream = make_image_stream(LABELS, "continual", 0, names=("photo", "sketch"))
    first, second = stream.rows[: SIZES[0]].tolist(), stream.rows[SIZES[0] :].tolist()
    assert sorted(first) == list(range(SIZES[0]))
    assert sorted(second) == list(range(SIZES[0], sum(SIZES)))
    assert first != sorted(first)
    assert second != sorted(second)
    assert stream.segments == (("photo", SIZES[0]), ("sketch", SIZES[1]))


def test_gradual_goes_up_and_down_again() -> None:
    tiers = [torch.zeros(size, dtype=torch.int64) for size in (4, 5, 6)]
    stream = make_image_stream(tiers, "gradual", 0, names=("1", "2", "3"))
    assert [segment.name for segment in stream.segments] == ["1, up", "2, up", "3, up", "2, down", "1, down"]
    assert [segment.images for segment in stream.segments] == [4, 5, 6, 5, 4]
    assert stream.domains.tolist() == [0] * 4 + [1] * 5 + [2] * 6 + [1] * 5 + [0] * 4
    up, down = stream.rows[4:9].tolist(), stream.rows[15:20].tolist()
    assert sorted(up) == sorted(down) == [4, 5, 6, 7, 8]
    assert up != down


def test_recurring_passes_have_the_same_images_in_new_orders() -> None:
    stream = make_image_stream(LABELS, "recurring", 0)
    assert stream.options == {"passes": 20}
    passes = stream.rows.view(20, sum(SIZES))
    assert len({tuple(rows.tolist()) for rows in passes}) == 20
    for rows in passes:
        assert sorted(rows[: SIZES[0]].tolist()) == list(range(SIZES[0]))
        assert sorted(rows.tolist()) == list(range(sum(SIZES)))
    assert stream.segments[2] == ("pass 2: domain 1", SIZES[0])


def test_abrupt_stretches_have_the_length_asked_for_and_end_anywhere() -> None:
    labels = [torch.zeros(5000, dtype=torch.int64)] * 20
    stream = make_image_stream(labels, "abrupt", 0, stretch=250)
    lengths = torch.tensor([segment.images for segment in stream.segments]).double()
    # One in twenty pieces is followed by one of its own domain, which makes one stretch of both.
    assert float(lengths.mean()) == pytest.approx(250 / (1 - 1 / 20), rel=0.05)
    assert float(lengths.std()) > 150
    switches = (stream.domains[1:] != stream.domains[:-1]).nonzero().flatten() + 1
    assert switches.tolist() == lengths.cumsum(0)[:-1].long().tolist()


@pytest.mark.parametrize(("concentration", "slots"), [(0.1, 10), (1.0, 10), (10.0, 5)])
def test_images_of_a_class_share_slots_as_the_dirichlet_distribution_says(
    concentration: float, slots: int
) -> None:
    # For shares q ~ Dir(a, …, a) over S slots two images meet with probability E[Σ q²] = (a + 1) / (S a + 1).
    labels = torch.arange(200).repeat_interleave(200)
    parts = dirichlet_slots(labels, slots, concentration, torch.Generator().manual_seed(0))
    counts = torch.stack([labels[part].bincount(minlength=200) for part in parts]).double()
    assert counts.sum(0).tolist() == [200] * 200
    together = float(((counts / 200) ** 2).sum(0).mean())
    assert together == pytest.approx((concentration + 1) / (slots * concentration + 1), rel=0.06)


def test_a_correlated_stream_has_few_classes_at_a_time() -> None:
    labels = torch.arange(10).repeat(200)

    def classes_at_a_time(kind: ImageKindName, **options: Any) -> float:
        stream = make_image_stream([labels], kind, 0, **options)
        windows = stream.labels([labels]).view(-1, 50)
        return sum(len(window.unique()) for window in windows) / len(windows)

    assert classes_at_a_time("shuffled") > 9.5
    assert classes_at_a_time("correlated") < 3
    assert classes_at_a_time("correlated", concentration=100, slots=40) > 9


def test_a_correlated_stream_says_how_many_classes_come_in_a_row() -> None:
    labels = torch.arange(10).repeat(64)
    stream = make_image_stream([labels], "correlated", 0, concentration=1e-4, slots=1)  # class after class
    assert "64 images in a row are of 1.0 of 10 classes on average" in stream.describe()
    short = make_image_stream([labels[:250]], "correlated", 0, slots=10)  # 25 images a slot, fewer than 64
    few = make_image_stream([labels[:250]], "correlated", 0, slots=3)
    met = [float(made.describe().split(" are of ")[1].split()[0]) for made in (short, few)]
    assert met[0] > met[1] + 1


def test_a_slot_has_a_usual_batch_of_images_unless_it_is_set() -> None:
    labels = torch.arange(10).repeat(25)
    plain, three = (make_image_stream([labels], "correlated", 0, slots=slots) for slots in (None, 3))
    assert torch.equal(plain.rows, three.rows)
    many = torch.arange(10).repeat(100)
    plain, ten = (make_image_stream([many], "correlated", 0, slots=slots) for slots in (None, 10))
    assert torch.equal(plain.rows, ten.rows)


def test_a_slot_has_its_classes_one_after_the_other() -> None:
    labels = torch.arange(5).repeat(40)
    for part in dirichlet_slots(labels, 4, 1.0, torch.Generator().manual_seed(0)):
        runs = sum(one != other for one, other in pairwise(labels[part].tolist())) + 1
        assert runs == len(labels[part].unique())


def test_imbalanced_classes_are_as_frequent_as_their_rank_says() -> None:
    labels = torch.arange(10).repeat(500)
    stream = make_image_stream([labels, labels], "imbalanced", 0)
    assert stream.options == {"ratio": 100.0}
    assert len(stream.rows.unique()) == len(stream)
    for domain in (0, 1):
        of_domain = stream.rows[stream.domains == domain] - 5000 * domain
        counts = labels[of_domain].bincount().sort(descending=True).values.tolist()
        assert counts == [round(500 * math.exp(-math.log(100) * rank / 9)) for rank in range(10)]
    order = [labels[stream.rows[stream.domains == 0]].bincount().argsort().tolist() for _ in range(2)]
    assert order[0] == order[1]
    assert order[0] not in ([*range(10)], [*range(10)][::-1])


def test_imbalanced_classes_of_unequal_size_are_cut_to_the_tail() -> None:
    labels = torch.tensor([0] * 10 + [1] * 1000)
    for seed in range(4):
        counts = labels[make_image_stream([labels], "imbalanced", seed, ratio=20).rows].bincount().tolist()
        assert counts in ([10, 200], [10, 1])  # ten are one twentieth of 200, or the most


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_noisy_streams_have_their_share_of_images_of_no_class(share: float) -> None:
    labels = [torch.arange(10).repeat(100)] * 2
    stream = make_image_stream(labels, "noisy", 0, share=share)
    none = stream.rows == -1
    assert float(none.float().mean()) == pytest.approx(share, abs=1e-3)
    assert sorted(stream.rows[~none].tolist()) == list(range(2000))
    halves = none.view(2, -1).float().mean(1)
    assert halves.tolist() == pytest.approx([share, share], abs=0.04)
    assert torch.equal(stream.domains, stream.domains.sort().values)
    assert [segment.images for segment in stream.segments] == stream.domains.bincount().tolist()
    assert torch.equal(stream.labels(labels) == -1, none)


def test_a_shuffle_is_fair() -> None:
    zeros = torch.zeros(4, dtype=torch.int64)
    firsts = Counter(int(make_image_stream([zeros], "shuffled", seed).rows[0]) for seed in range(400))
    assert set(firsts) == {0, 1, 2, 3}
    assert min(firsts.values()) > 60


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("correlated", {"concentration": 0}, "concentration >= 0.0001, got 0"),
        ("correlated", {"slots": 0}, "slots >= 1"),
        ("recurring", {"passes": 1.5}, "passes as a whole number"),
        ("abrupt", {"stretch": 0}, "stretch >= 1"),
        ("noisy", {"share": 1.0}, "share >= 0 and <= 0.9"),
        ("noisy", {"share": 1e-6}, "at least one in 170"),
        ("imbalanced", {"ratio": 0.5}, "ratio >= 1"),
        ("continual", {"names": ["one"]}, "2 different names of domains, got one"),
        ("continual", {"names": ["a", "a"]}, "2 different names of domains, got a, a"),
        ("shuffled", {"seed": -1}, "seed >= 0"),
    ],
)
def test_an_option_out_of_range_is_refused(
    kind: ImageKindName, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        stream_of(kind, **options)


def test_the_sentence_has_the_numbers_of_the_stream_that_was_drawn() -> None:
    """Three of a class leave no room for a ratio of 100, and stretches that meet are one."""
    labels = torch.tensor([0] * 3 + [1] * 60 + [2] * 60)
    stream = make_image_stream([labels], "imbalanced", 1, ratio=100)
    counts = labels[stream.rows].bincount().tolist()
    assert max(counts) / min(counts) < 70
    assert (
        f"{max(counts)} images of the most frequent class, {min(counts)} of the rarest" in stream.describe()
    )
    stream = make_image_stream(LABELS, "abrupt", 0, stretch=20)
    lengths = [segment.images for segment in stream.segments]
    told = f"{len(lengths)} stretches of one domain, of {min(lengths)} to {max(lengths)} images"
    assert told in stream.describe()


FLOATS, EMPTY, SQUARE = torch.zeros(3), torch.zeros(0).long(), torch.zeros(2, 2).long()
NO_LABELS = r"int64 tensors \(N,\) of at least one image.* domain 2"


@pytest.mark.parametrize(
    ("labels", "kind", "options", "message"),
    [
        (LABELS, "shuffled", {}, "expected one domain for the kind 'shuffled', got 2"),
        (LABELS[:1], "gradual", {}, r"expected at least 2 domains for the kind 'gradual', got 1$"),
        ([], "mixed", {}, "expected at least 1 domain for"),
        (LABELS, "backwards", {}, "expected kind as one of shuffled, sorted, mixed, recorded, cont"),
        (LABELS, "noisy", {"passes": 2}, "no option 'passes' of 'noisy' streams; there are share"),
        (LABELS, "mixed", {"passes": 2}, "there are none"),
        *(([LABELS[0], wrong], "mixed", {}, NO_LABELS) for wrong in (FLOATS, EMPTY, SQUARE)),
    ],
)
def test_what_is_not_there_is_refused(
    labels: list[Tensor], kind: ImageKindName, options: dict[str, Any], message: str
) -> None:
    expected = UnknownOptionError if options else OptionError
    with pytest.raises(expected, match=message):
        make_image_stream(labels, kind, 0, **options)


@pytest.mark.parametrize(
    ("labels", "came"),
    [
        ([[0, 1, 0], [1, 1, 0]], r"list of length 3 for domain 1"),
        ([LABELS[0], np.array([0, 1, 0, 1, 0])], r"ndarray of int64 \(5,\) for domain 2"),
        ([LABELS[0], None], r"NoneType for domain 2"),
        ([0, 1, 0], r"int for domain 1"),
        (LABELS[0], rf"Tensor of torch\.int64 \({len(LABELS[0])},\)$"),
        (np.zeros(5, np.int64), r"ndarray of int64 \(5,\)$"),
        ({"one": LABELS[0]}, r"dict of length 1$"),
        (None, r"NoneType$"),
    ],
)
def test_labels_of_another_type_are_refused_with_their_type_and_shape(labels: Any, came: str) -> None:
    expected = r"expected labels as a list of int64 tensors \(N,\) of at least one image, one for each domain"
    kinds: tuple[ImageKindName, ...] = ("mixed", "shuffled")  # of one domain: 100 labels are not 100 domains
    for kind in kinds:
        with pytest.raises(OptionError, match=rf"{expected}, got {came}"):
            make_image_stream(labels, kind, 0)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("noisy", "changing")])
def test_batches_have_the_images_and_labels_of_the_rows(kind: ImageKindName) -> None:
    stream, images = stream_of(kind), images_of(kind)
    x, y = (torch.cat(parts) for parts in zip(*stream.batches(images, 16), strict=True))
    assert x.dtype == torch.float32
    assert torch.equal(x, stream.rows.float().view(-1, 1, 1, 1).expand_as(x))
    assert torch.equal(y, JOINED[stream.rows])
    assert torch.equal(y, stream.labels([domain.labels for domain in images]))
    assert {len(batch) for batch, _ in stream.batches(images, 16)} == {16, len(stream) % 16 or 16}


class LargestTensor(TorchDispatchMode):
    """The most bytes of a tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, (list, tuple)) else (found,):
            if isinstance(each, Tensor):
                self.bytes = max(self.bytes, each.nbytes)
        return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_tensor_is_larger_than_a_batch(kind: ImageKindName) -> None:
    images, batch = images_of(kind, side=24), 4 * 10 * 3 * 24 * 24
    stream = stream_of(kind, **({"length": 300} if kind == "changing" else {}))
    with LargestTensor() as largest:
        for x, _ in stream.batches(images, 10):
            assert x.nbytes <= batch
    assert batch == largest.bytes
    assert batch < min(domain.pixels.nbytes for domain in images)


def test_one_domain_needs_no_list() -> None:
    x, _ = next(stream_of("recorded").batches(images_of()[0], 3))
    assert x[:, 0, 0, 0].tolist() == [0, 1, 2]


def test_images_of_another_data_set_are_refused_before_the_first_batch() -> None:
    stream, images = stream_of("continual"), images_of()
    longer = Images(images[1].pixels.repeat(2, 1, 1, 1), images[1].labels.repeat(2))
    unfit = [images[:1], images[::-1], [images[0], images[1].select(torch.arange(20))]]
    for wrong in (*unfit, [images[0], longer], [*images, longer], []):
        with pytest.raises(DataError, match="100 and 70 images of the domains"):
            stream.labels([each.labels for each in wrong])
        with pytest.raises(DataError, match="whose labels the stream was made from, got"):
            stream.batches(wrong, 5)
    with pytest.raises(DataError, match="images of one shape"):
        stream.batches([images[0], Images(images[1].pixels[:, :1], images[1].labels)], 5)
    with pytest.raises(OptionError, match="size >= 1"):
        stream.batches(images, 0)
