"""Adapters from the name of a method and its options, or from a state file."""

import inspect
import json
import os
from dataclasses import fields
from typing import Any

from torch import nn

from equipoise.adapter import STATE_KIND, STATE_VERSION, Adapter
from equipoise.calibration.source_statistics import GivenSource, SourceStatistics, checked_source
from equipoise.core.assembly import MACHINE_OPTIONS, EngineName
from equipoise.core.method import Method
from equipoise.errors import EquipoiseError, OptionError, SourceError, StateError, UnknownOptionError
from equipoise.files import read_tensors
from equipoise.network.batch import InputsFunction
from equipoise.network.forward import OutputsFunction
from equipoise.network.modules import fingerprint
from equipoise.registry import list_methods, method_class

FUNCTIONS = ("inputs", "outputs")
"""The arguments of every adapter that are functions, and so neither options nor part of a state file."""


def options_of(name: str) -> dict[str, Any]:
    """The options of a method with their defaults, its own before those of every adapter."""
    method = method_class(name)
    shared = {
        name: parameter.default
        for name, parameter in inspect.signature(Adapter.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in FUNCTIONS
    }
    shared |= {"tempering": method.default_tempering, "source_copy": method.default_source_copy}
    return {**{field.name: field.default for field in fields(method)}, **shared}


def make_method(name: str, options: dict[str, Any]) -> tuple[Method, dict[str, Any]]:
    """A method of a name with its options, and the options of every adapter."""
    method, known = method_class(name), options_of(name)
    if unknown := sorted(set(options) - set(known) - set(FUNCTIONS)):
        raise UnknownOptionError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    own = {field.name for field in fields(method)}
    if taken := sorted(own & set(inspect.signature(Adapter.__init__).parameters)):
        raise OptionError(f"{name}: expected fields of other names than every adapter's options, got {taken}")
    shared = {name: value for name, value in options.items() if name not in own}
    return method(**{name: value for name, value in options.items() if name in own}), shared


def create(name: str, model: nn.Module, source: GivenSource | None = None, **options: Any) -> Adapter:
    """Make the adapter of a name; unknown names and options raise errors that list the known ones.

    Args:
        name: one of `list_methods()`.
        model: a classifier that returns (N, C) logits, or an object with `.logits`; from any other output
            `outputs=lambda out: out["logits"]` picks them. It is copied.
        source: its statistics on the source domain (`SourceStatistics.measure`), or the path of a file of
            them: for "dec", "eata", "foa_shift", "petta", "poem", "poise", "rmt" and any `tempering`; others
            do without.
        options: those of the method (`help(equipoise.methods.tent.Tent)` and the like) and of every adapter
            (`help(equipoise.Adapter)`), `inputs` and `outputs` among them.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    >>> adapter = create("tent", model, optimizer="sgd", learning_rate=1e-3)
    >>> adapter(torch.randn(8, 3, 4)).shape
    torch.Size([8, 3])
    """
    if method_class(name).name in _NAMED:
        adapter: Adapter = _NAMED[name](model, source, **options)
        return adapter
    method, shared = make_method(name, options)
    return Adapter(method, model, source, **shared)


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    source: GivenSource | None = None,
    *,
    engine: EngineName = "auto",
    distributed: bool = True,
    inputs: InputsFunction | None = None,
    outputs: OutputsFunction | None = None,
) -> Adapter:
    """Make the adapter that `Adapter.save` wrote, with its method, options and state.

    `model` is the source model; its weights must be those the adapter started from. The file holds the source
    statistics: passing them again is a check that they are the same. `engine` and `distributed` belong to the
    machine and not to the state, `inputs` and `outputs` are functions: given again, as in `create`.
    """
    tensors, text = read_tensors(path, STATE_KIND, STATE_VERSION)
    try:
        method, options = text["method"], dict(json.loads(text["options"]))
        if "teacher" in options:  # the name of the option in files of before
            options["source_copy"] = options.pop("teacher")
        saved = SourceStatistics.from_parts(text["source"], tensors) if text["source"] else None
        expected, answered = text["model_fingerprint"], int(text.get("samples", 0))
        if surplus := sorted(set(options) & {*MACHINE_OPTIONS, *FUNCTIONS, "name", "model", "source"}):
            raise ValueError(f"options {', '.join(surplus)}")
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: damaged header: {error}") from error
    if method not in list_methods():
        raise StateError(f"{path}: the state is of method {method!r}; there are {', '.join(list_methods())}")
    if (came := fingerprint(model)) != expected:
        raise StateError(
            f"{path}: the adapter started from another model (other weights or layers): expected fingerprint "
            f"{expected[:12]}, got {came[:12]}; load it with the source model, not an adapted one"
        )
    other = None if source is None else checked_source(source)
    if other is not None and not (saved and saved.agrees_with(other)):
        raise SourceError(f"{path}: expected the source statistics it was saved with, {saved}, got {other}")
    if other is not None and saved is not None and options.get("tempering") == "rehearsed":
        held = [statistics.rehearsal_of(method).to_json() for statistics in (saved, other)]
        if held[0] != held[1]:
            raise SourceError(
                f"{path}: expected the rehearsal of {method!r} that it was saved with, got another one; make "
                "a new adapter with it, or load without the source statistics to go on with the old one"
            )
    try:
        given: dict[str, Any] = {"engine": engine, "distributed": distributed}
        adapter = create(method, model, saved, **options, **given, inputs=inputs, outputs=outputs)
    except EquipoiseError as error:
        raise StateError(f"{path}: its header does not make a {method!r}: {error}") from error
    of_source = saved.tensors() if saved else {}
    adapter.load_state_dict({name: tensor for name, tensor in tensors.items() if name not in of_source})
    adapter.number_from(answered)
    return adapter


class DEC(Adapter):
    """The adapter of the paper's method, Dynamic Entropy Control (`methods.dec.DecMethod`).

    Args:
        model: a classifier that returns (N, C) logits, or an object with `.logits`.
        source: its statistics on the source domain.
        options: those of the method: `reading` ("paper", or "released", the authors' notebook),
            `learning_rate`, `optimizer`, `momentum`, `steps`, `parameters`, `norm_momentum`; and those of
            every adapter: `tempering` ("mean" by default), `t_min`, `t_max`, `source_copy`, `engine`,
            `precision`, `memory_format`, `distributed`, `inputs`, `outputs`.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    >>> source = SourceStatistics.measure(model, [torch.randn(16, 3, 4)], progress=False)
    >>> adapter = DEC(model, source)
    >>> adapter(torch.randn(8, 3, 4)).shape
    torch.Size([8, 3])
    >>> adapter.last.used
    8
    """

    def __init__(self, model: nn.Module, source: GivenSource | None = None, **options: Any) -> None:
        method, shared = make_method("dec", options)
        super().__init__(method, model, source, **shared)


class Poise(Adapter):
    """The recommended adapter: follows the stream and says how sure it is (`methods.poise.PoiseMethod`).

    Args:
        model: a classifier that returns (N, C) logits, or an object with `.logits`.
        source: its statistics on the source domain, with a rehearsal of "poise" (`equipoise.rehearse`).
        options: those of the method: `norm_momentum`, `falls_back`; and those of every adapter: `tempering`
            ("rehearsed" where `source` holds a rehearsal, else "none": every temperature without labels that
            was tried harms some model that is already honest), `t_min`, `t_max`, `source_copy`, `engine`,
            `precision`, `memory_format`, `distributed`, `inputs`, `outputs`.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    >>> source = SourceStatistics.measure(model, [torch.randn(16, 3, 4)], progress=False)
    >>> adapter = Poise(model, source, tempering="none")
    >>> adapter(torch.randn(8, 3, 4)).shape
    torch.Size([8, 3])
    >>> adapter.last.used
    8
    """

    def __init__(self, model: nn.Module, source: GivenSource | None = None, **options: Any) -> None:
        method, shared = make_method("poise", options)
        super().__init__(method, model, source, **shared)


_NAMED: dict[str, Any] = {"dec": DEC, "poise": Poise}
