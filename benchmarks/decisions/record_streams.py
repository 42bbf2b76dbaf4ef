"""Record what the models answer to the streams of the benchmark of decisions, so that all else is replayed.

    python -m benchmarks.decisions.record_streams DATA MODELS RECORDS [CASE …]

DATA has tables/ (.npz files, `benchmarks.estimators.subjects.tables`) and digits, PACS, TinyImageNet and
weights as `equipoise data` says; models are trained once and left in MODELS. RECORDS gets two files for each
model: its source statistics with the rehearsal, and its streams. Without the names of cases, all; a case that
is there is left as it is. Networks run here only: `measure_decisions` needs neither DATA nor a GPU.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import equipoise as eq
from benchmarks.decisions.baselines import spans
from benchmarks.decisions.replay import FORMAT, Recorded, files_of
from benchmarks.decisions.subjects import Case, cases
from equipoise.calibration.novelty import Novelty
from equipoise.files import write_tensors

FEW_CLASSES = 20
"""The classes up to which logits are kept in single precision; those of more are kept in half."""


def answers(model: nn.Module, inputs: Tensor, device: torch.device) -> Tensor:
    """The logits of rows, batch by batch, on the CPU."""
    with torch.no_grad():
        return torch.cat([model(inputs[at].float().to(device)).float().cpu() for at in spans(len(inputs))])


def record(case: Case, folder: Path) -> None:
    """Rehearse `poise` on the model of a case, and write its answers to all streams."""
    started, subject = time.perf_counter(), case.make()
    x, y = subject.held_out
    source = eq.rehearse(subject.model, (x, y), progress=False, **subject.options)
    seconds = time.perf_counter() - started
    untempered = eq.Poise(subject.model, source, tempering="none")
    novelty = Novelty(source.inputs) if source.inputs else None
    if source.rehearsal is None:
        raise RuntimeError("expected a rehearsal, got source statistics without one")
    rows = slice(source.rehearsal.samples)
    held_out = Recorded(
        "held out", "held out", *both(untempered, subject.model, x[rows], novelty), y[rows].cpu()
    )
    made = [held_out]
    for name, stream in subject.streams.items():
        untempered.reset()
        found = both(untempered, subject.model, stream.inputs, novelty)
        made.append(Recorded(name, stream.kind, *found, stream.labels.cpu(), stream.counts))
    statistics, streams = files_of(folder, case.name)
    kept = torch.float32 if source.rehearsal.classes <= FEW_CLASSES else torch.float16
    tensors = {
        f"{at}.{part}": value.to(kept) if value.ndim == 2 else value
        for at, own in enumerate(made)
        for part, value in own.tensors().items()
    }
    facts = {
        "case": case.name,
        "data": case.data,
        "streams": json.dumps([[own.name, own.kind, own.counts] for own in made]),
    }
    source.save(statistics)
    write_tensors(streams, *FORMAT, tensors, facts)
    taken = time.perf_counter() - started
    print(
        f"{case.name}: {len(made)} streams in {taken:.0f} s, {seconds:.0f} of training and rehearsal",
        flush=True,
    )


def both(
    adapter: eq.Adapter, model: nn.Module, inputs: Tensor, novelty: Novelty | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The untempered answers of the adapter and of the plain model, and the novelty of the inputs."""
    own, plain = (answers(each, inputs, adapter.device) for each in (adapter, model))
    parts = (inputs[at].float().to(adapter.device) for at in spans(len(inputs)))
    new = [] if novelty is None else [novelty({"0": part}) for part in parts]
    return own, plain, torch.cat([torch.zeros(0), *(each.cpu() for each in new if each is not None)])


def main() -> None:
    """Record the named cases."""
    data, models, folder, *names = sys.argv[1:]
    for each in (models, folder):
        Path(each).mkdir(parents=True, exist_ok=True)
    for case in cases(Path(data), Path(models), workers=4):
        if (not names or case.name in names) and not files_of(Path(folder), case.name)[1].exists():
            record(case, Path(folder))


if __name__ == "__main__":
    main()
