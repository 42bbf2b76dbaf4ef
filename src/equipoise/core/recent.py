"""The recent answers of an adapter, for labels that come late; on the device, and not part of its state."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.calibration.expected import LabelScores, Taught
from equipoise.calibration.labels import SUMS, kept, label_sums
from equipoise.calibration.sets import SCORES, class_scores
from equipoise.calibration.temper import STREAM_CHANGED, TrustedModel
from equipoise.core.record import Record
from equipoise.errors import ForgottenRequestError

_MOST, _NUMBERS = 4096, 2**22
_AROUND = 128  # the answers before and after one, with which its confidence is compared
_WEIGHT, _LABEL, _BY_SOURCE, _MODELS = range(4)  # the columns; three for each model are the last
_UNLABELLED = -1.0
_TINY = 1e-12


def recent_samples(classes: int) -> int:
    """The number of answers that are remembered: 4096, fewer where there are more than 1024 classes."""
    return max(1, min(_MOST, _NUMBERS // classes))


class TakenLabels(NamedTuple):
    """What labels of remembered answers add to the state.

    Attributes:
        sums: of labels (`calibration.labels`), for each model; less those of labels that they replace.
        new: how many of them are for samples without one.
        counted: how many of them count: answers of NaN are neither right nor wrong.
        given: the answers (N, C) that teach sets and decisions: of samples without a label before, or with
            another one.
        target: their labels.
        ids: the numbers of these samples; none for answers that the caller has kept.
        back: what the labels taught that these replace; None for none.
    """

    sums: Tensor
    new: Tensor
    counted: Tensor
    given: Tensor
    target: Tensor
    ids: tuple[int, ...] = ()
    back: Taught | None = None


class _Held(NamedTuple):
    """The tensors of remembered answers, a row for each.

    Attributes:
        logits: of the models, the adapted one first, before tempering: (samples, C) each.
        columns: what a label weighs, the label or −1, whether the source model answered; and for each model
            the temperature, the logit of its accuracy without labels, and the mean confidence of the answers
            around a labelled one, as it was when the first label came.
    """

    logits: tuple[Tensor, ...]
    columns: Tensor


class _TaughtByOne(NamedTuple):
    """What the label of a sample has taught.

    Attributes:
        taught: at the time.
        weight: of the label then.
    """

    taught: Taught
    weight: float


class RecentAnswers:
    """The last answers of an adapter with the estimates of their time.

    They are forgotten at a reset, a restore, a load and a move. The numbers of samples go on over all of
    these, so that none comes again.

    Attributes:
        last: the numbers of the samples of the last batch.
    """

    def __init__(self) -> None:
        self.last = range(0)
        self._first = 0
        self._asked = 0
        self._held: _Held | None = None
        self._taught: dict[int, _TaughtByOne] = {}

    def begin_at(self, number: int) -> None:
        """Give the next sample this number: those before it were answered by an adapter that was saved."""
        self._first = number
        self.last = range(number, number)

    def forget(self) -> None:
        """Forget all answers; the tensors stay, for those that follow."""
        self._first = self.last.stop
        self.last = range(self._first, self._first)
        self._taught = {}

    def release(self) -> None:
        """Forget all answers, and free the tensors: the next batch may be on another device."""
        self.forget()
        self._held = None

    def tensors(self) -> list[Tensor]:
        """The tensors that are held."""
        return [] if self._held is None else [*self._held.logits, self._held.columns]

    def take(self, record: Record) -> Record:
        """Number the samples of a batch, and remember its answers where a rehearsal judged them."""
        start = self.last.stop
        self.last = range(start, start + len(record.answer))
        if record.judged is not None and len(self.last):
            self._write(record, record.judged)
        return replace(record, ids=self.last)

    def _write(self, record: Record, judged: TrustedModel) -> None:
        models = len(judged.temperatures)
        answers = [record.adapted, record.source_logits][:models]
        like = next((each for each in answers if each is not None), None)
        if like is None:
            return
        if self._held is None:
            self._held = _empty(like, models)
        logits, columns = self._held
        samples, changed = record.verdict.rows.good.sum(), record.observed[STREAM_CHANGED]
        columns[:, _WEIGHT] *= kept(samples.to(columns), changed.to(columns.device))
        one = columns.new_ones(1)  # an assignment to a place would wait for the device
        numbers = (judged.temperatures, judged.estimates, torch.zeros_like(judged.estimates))
        row = torch.cat([one, _UNLABELLED * one, judged.trusts.to(one).view(1), *numbers])
        size, stop = len(columns), self.last.stop
        at = max(self.last.start, stop - size)
        while at < stop:  # twice where the last place is passed
            place = at % size
            rows = min(stop - at, size - place)
            columns[place : place + rows] = row
            for home, came in zip(logits, answers, strict=True):
                first = at - self.last.start
                home[place : place + rows] = torch.nan if came is None else came[first : first + rows]
            at += rows

    def latest(self) -> range:
        """The numbers of the samples of the last batch; ForgottenRequestError where there is none."""
        self._remembered()
        return self.last

    @property
    def first(self) -> int:
        """The number of the first sample since answers were last forgotten."""
        return self._first

    @property
    def ids(self) -> range:
        """The numbers of the samples that are remembered."""
        size = 0 if self._held is None else len(self._held.columns)
        return range(max(self._first, self.last.stop - size), self.last.stop)

    def told(self, ids: Sequence[int], target: Tensor) -> TakenLabels:
        """Note the labels of samples, and return what they add.

        The last label of a sample counts. Its estimate and the confidence of the answers around it are those
        of its time, so that what the estimate then missed is told from how it has moved since.
        ForgottenRequestError, before anything changes, for samples that are not remembered.
        """
        known = self.ids
        if forgotten := [each for each in ids if each not in known]:
            words = f"{known.start} to {known.stop - 1}" if known else "none"
            raise ForgottenRequestError(
                f"expected ids of samples that are remembered, {words}, got {forgotten[0]}: only the latest "
                "are, and a reset, a restore, a load or a move forgets all. Keep the logits of answers whose "
                "labels come later, and pass them: adapter.label(targets, logits=logits)"
            )
        latest = dict(zip(ids, target.tolist(), strict=True))
        logits, columns = self._remembered()
        numbers, labels = (
            torch.tensor(list(each), dtype=torch.long, device=columns.device)
            for each in (latest, latest.values())
        )
        places = numbers % len(columns)
        rows, before = columns[places], columns[places, _LABEL].long()
        own = [each[places] for each in logits]
        good = torch.stack([each.isfinite().all(1) for each in own]).all(0)
        classes = torch.stack([each.argmax(1) for each in own])
        confidence = self._confidences()
        again = good & (before >= 0)
        _, estimates, around = rows[:, _MODELS:].T.split(len(logits))
        now = _mean_around(confidence, numbers, known)
        around = torch.where(again, around, now)
        expected = estimates.sigmoid()

        def sums_of(label: Tensor, counted: Tensor) -> Tensor:
            weights = (rows[:, _WEIGHT] * counted).expand(len(logits), -1)
            hits = (classes == label).to(expected)
            return label_sums(hits, expected, confidence[:, places].nan_to_num(), around, weights)

        sums = sums_of(labels, good) - sums_of(before, again)
        columns[places, _LABEL] = torch.where(good, labels.to(columns), _UNLABELLED)
        columns[places, -len(logits) :] = around.T
        temperatures = rows[:, _MODELS : _MODELS + len(logits)]
        theirs = (rows[:, _BY_SOURCE] > 0).unsqueeze(1)
        given = torch.where(theirs, own[-1] / temperatures[:, -1:], own[0] / temperatures[:, :1])
        teaches = good & (before != labels)
        own_ids = tuple(number for number, own in zip(latest, teaches.tolist(), strict=True) if own)
        back = self._taught_before(dict(zip(latest, rows[:, _WEIGHT].tolist(), strict=True)), own_ids)
        new, counted = (good & ~again).sum(), good.sum()
        return TakenLabels(sums, new, counted, given[teaches], labels[teaches], own_ids, back)

    def _taught_before(self, weights: dict[int, float], ids: Sequence[int]) -> Taught | None:
        """What the labels of samples have taught, as far as it is not forgotten."""
        found = [(self._taught[number], weights[number]) for number in ids if number in self._taught]
        if not found:
            return None
        kept = torch.tensor([weight / max(own.weight, _TINY) for own, weight in found], dtype=torch.float64)
        parts = zip(*(own.taught for own, _ in found), strict=True)
        return Taught(*(torch.tensordot(kept, torch.stack(part), 1) for part in parts))

    def remember(self, ids: Sequence[int], taught: Taught) -> None:
        """Remember what the labels of samples have taught, (N, …), for those that replace them."""
        columns, known = self._remembered().columns, self.ids
        places = torch.tensor([each % len(columns) for each in ids], dtype=torch.long, device=columns.device)
        for at, (number, weight) in enumerate(zip(ids, columns[places, _WEIGHT].tolist(), strict=True)):
            self._taught[number] = _TaughtByOne(Taught(*(each[at] for each in taught)), weight)
        self._taught = {number: own for number, own in self._taught.items() if number in known}

    def chosen(self, count: int) -> Tensor:
        """The numbers of some samples without a label, fewer if there are not as many; waits for the device.

        A systematic sample over the order of confidence: of n answers in that order, those at
        (u + i) · n / count with one random u for all. Every sample has the same chance, so that estimates by
        the labels have no bias, and every confidence is there, so that they vary less.
        """
        if self._held is None or not self.ids:
            return torch.zeros(0, dtype=torch.long)
        columns, confidences = self._held.columns, self._confidences()
        given = confidences[0]
        if len(confidences) > 1:
            given = torch.where(columns[:, _BY_SOURCE] > 0, confidences[1], given)
        ids = torch.arange(self.ids.start, self.ids.stop)
        places = ids % len(columns)
        given, labels = given.cpu()[places], columns[:, _LABEL].cpu()[places]
        free = ((labels < 0) & given.isfinite()).nonzero().flatten()
        ordered = free[given[free].argsort(stable=True)]
        self._asked += 1
        start = torch.rand((), generator=torch.Generator().manual_seed(self._asked), dtype=torch.float64)
        count = min(count, len(ordered))
        at = ((start + torch.arange(count)) * len(ordered) / max(count, 1)).long()
        return ids[ordered[at]].sort().values

    def _remembered(self) -> _Held:
        if self._held is None or not self.ids:
            raise ForgottenRequestError(
                "expected labels of a batch that was answered since the adapter was made, reset, restored or "
                "moved, got them before it"
            )
        return self._held

    def _confidences(self) -> Tensor:
        """The confidence of the answers of each model, (models, samples); NaN without an answer."""
        logits, columns = self._remembered()
        temperatures = columns[:, _MODELS : _MODELS + len(logits)].T.unsqueeze(-1)
        return torch.stack([(z / t).softmax(1).amax(1) for z, t in zip(logits, temperatures, strict=True)])


def _empty(like: Tensor, models: int) -> _Held:
    size, classes = recent_samples(like.shape[1]), like.shape[1]
    rows = torch.full((models, size, classes), torch.nan, device=like.device)
    columns = torch.zeros(size, _MODELS + 3 * models, device=like.device)
    columns[:, _LABEL] = _UNLABELLED
    return _Held(tuple(rows), columns)


def _mean_around(confidence: Tensor, ids: Tensor, known: range) -> Tensor:
    """The mean confidence of the answers near those of some numbers, (models, ids)."""
    size = confidence.shape[1]
    ordered = confidence[:, torch.arange(known.start, known.stop, device=ids.device) % size]
    there = ordered.isfinite()
    both = torch.stack([ordered.nan_to_num(), there.to(ordered)]).cumsum(-1)
    both = torch.cat([torch.zeros_like(both[..., :1]), both], -1)
    at = ids - known.start
    low, high = (at - _AROUND).clamp(min=0), (at + _AROUND + 1).clamp(max=len(known))
    total, count = (both[..., high] - both[..., low]).unbind()
    return total / count.clamp(min=1)


def given_sums(target: Tensor, answers: Sequence[Tensor | None], judged: TrustedModel) -> TakenLabels:
    """What labels (N) add whose answers the caller has kept: logits as given, and the source model's, (N, C).

    The time of the answers is not known. Their own confidence stands for the estimate of that time, as it was
    made equal to it, and the lead of the source model's is that of now. Where the source model answers now,
    the logits are taken for its own. How far the estimate has moved since then is not known either: as many
    count as right as make the estimate of that time the one of now.
    """
    known = [(model, own) for model, own in enumerate(answers[: len(judged.estimates)]) if own is not None]
    good = torch.stack([own.isfinite().all(1) for _, own in known]).all(0)
    accuracies, given = judged.estimates.sigmoid(), known[0][1]
    confidence = given.nan_to_num().softmax(1).amax(1)
    rows = [torch.zeros(SUMS, device=given.device)] * len(accuracies)
    for model, own in known:
        lead = accuracies[model] - torch.where(judged.trusts, accuracies[-1], accuracies[0])
        hits = (own.argmax(1) == target).to(confidence)
        counted = good & ~judged.trusts if model == 0 else good
        none = torch.zeros_like(hits)
        rows[model] = label_sums(hits, confidence + lead, none, none, counted.to(hits))
    if len(known) == 1 and len(rows) > 1:
        hits, none = (given.argmax(1) == target).to(confidence), torch.zeros_like(confidence)
        rows[-1] = label_sums(hits, confidence, none, none, (good & judged.trusts).to(hits))
    count, sums = good.sum(), torch.stack(rows)
    sums = torch.cat([sums[:, :-1], sums[:, 1:2] + accuracies.to(sums).unsqueeze(1) * sums[:, :1]], 1)
    return TakenLabels(sums, count, count, given[good], target[good])


def label_scores(given: Tensor, target: Tensor) -> LabelScores:
    """The scores of labelled answers (N, C), by which sets and decisions learn."""
    p, at = given.softmax(1), target[:, None]
    confidence, classes = p.max(1)
    own = torch.stack([class_scores(p, score).gather(1, at)[:, 0] for score in SCORES], 1)
    return LabelScores(own, 1 - confidence, (classes == target).to(p))
