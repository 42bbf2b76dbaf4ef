"""All methods tried, and the one that is chosen tempered, within one budget."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor
from tqdm import tqdm

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import EquipoiseError, ModelError
from equipoise.recommendation.candidates import NO_ADAPTATION, Candidate
from equipoise.recommendation.choice import Form, chosen_form
from equipoise.recommendation.scoring import shift_sums
from equipoise.recommendation.tempering import rehearsal_seconds, rehearsed_statistics, tempered
from equipoise.recommendation.trial import Budget, Setting, Trial, attempt
from equipoise.rehearsal.shifts import Shifts


class Omission(NamedTuple):
    """A form of a method that has no scores, and the reason."""

    candidate: Candidate
    tempering: Literal["none", "rehearsed"]
    problem: str


@dataclass
class Session:
    """The results so far.

    Attributes:
        setting: the model and the stream.
        shifts: of rehearsals.
        budget: for all of it.
        forms: those with scores.
        omissions: those without.
        rehearsed: source statistics with the rehearsal of a method, by the method with its options.
    """

    setting: Setting
    shifts: Shifts
    budget: Budget
    forms: list[Form] = field(default_factory=list)
    omissions: list[Omission] = field(default_factory=list)
    rehearsed: dict[str, SourceStatistics] = field(default_factory=dict)
    _trials: dict[str, Trial] = field(default_factory=dict, init=False)

    def run(self, listed: Sequence[Candidate], progress: bool) -> None:
        """Try all methods, no adaptation first, and temper the one that is chosen.

        Tempering changes no accuracy, except where the source model may answer: such methods are tempered
        when they are tried. So one rehearsal more is enough.
        """
        bar = tqdm(listed, desc="trying methods", unit="method") if progress else listed
        for candidate in bar:
            if isinstance(bar, tqdm):
                bar.set_postfix_str(candidate.name)
            self._try(candidate)
        self._temper(chosen_form(self.forms).candidate)

    def _try(self, candidate: Candidate) -> None:
        trial = attempt(candidate, self.setting, self.budget)
        if trial.logits is None:
            if candidate.name == NO_ADAPTATION:
                raise ModelError(f"expected a model that answers the shifted samples: {trial.problem}")
            self.omissions.append(Omission(candidate, "none", trial.problem))
            return
        self._trials[str(candidate)] = trial
        self.forms.append(self._form(trial, trial.logits, "none", trial.seconds))
        if trial.compares:  # with a rehearsal its answers are others, not just less confident
            self._temper(candidate)

    def _temper(self, candidate: Candidate) -> None:
        """Rehearse a method and add its tempered form, once, if there is time."""
        name, settled = str(candidate), [omission.candidate for omission in self.omissions]
        trial, plain = self._trials[name], self._trials[NO_ADAPTATION]
        if name in self.rehearsed or candidate in settled:
            return
        problem = self.budget.refusal(rehearsal_seconds(trial, self.setting, self.shifts))
        if not problem:
            try:
                source = rehearsed_statistics(candidate, self.setting, self.shifts)
            except EquipoiseError as error:
                problem = str(error)
        if problem:
            self.omissions.append(Omission(candidate, "rehearsed", problem))
            return
        self.rehearsed[name] = source
        logits = tempered(trial, plain, self.setting, source)
        extra = plain.seconds if trial.compares else 0.0
        self.forms.append(self._form(trial, logits, "rehearsed", trial.seconds + extra))

    def _form(
        self, trial: Trial, logits: Tensor, tempering: Literal["none", "rehearsed"], seconds: float
    ) -> Form:
        stream = self.setting.stream
        sums = shift_sums(logits, stream.labels, stream.domains, len(stream.shifts))
        return Form(trial.candidate, tempering, sums, seconds)
