"""An adapter in a few lines of text: what learns, what follows the stream, and what does not and why."""

from torch import nn

from equipoise.core.footprint import measure_footprint
from equipoise.core.method import option_values
from equipoise.core.step import Responder
from equipoise.network.head import linear_layer, linear_layers
from equipoise.network.student import Student

_SHOWN = 4  # names of layers
_ITSELF = "the model itself"


def describe(respond: Responder, execution: str) -> str:
    """The parts of an adapter, a line each."""
    student, method = respond.student, respond.method
    weights = sum(parameter.numel() for parameter in student.model.parameters())
    classes = "" if student.classes is None else f", {student.classes} classes"
    lines = {
        method.name: f"on {type(student.model).__name__} with {weights:,} parameters{classes}",
        "learns": _learning(student),
        "statistics": _statistics(respond),
        "prototypes": _prototypes(respond),
        "tempering": _tempering(respond),
        "runs": f"{execution}, fp32" if student.layout.precision == "fp32" else execution,
        "holds": _holding(respond),
    }
    width = max(len(name) for name in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())


def _learning(student: Student) -> str:
    if not student.learned:
        return "no parameters: no gradient steps"
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in student.learned))
    count = sum(parameter.numel() for parameter in student.learned.values())
    return f"{count:,} parameters of {_counted(layers)}"


def _statistics(respond: Responder) -> str:
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in respond.student.statistics))
    if layers:
        heeds = respond.method.heeds_novelty and respond.source and "limit" in respond.source.inputs
        far = ", as far as rows are unlike source rows" if heeds else ""
        return f"running statistics of {_counted(layers)} follow the stream{far}"
    if not respond.method.moves_statistics:
        return f"none: {respond.method.name} leaves running statistics as they are"
    return "none: the model has no normalisation layer with running statistics"


def _prototypes(respond: Responder) -> str:
    student, method = respond.student, respond.method
    if not method.uses_prototypes:
        return f"none: {method.name} uses none"
    head = student.head or option_values(method).get("head")
    if head is not None:
        weight = linear_layer(student.model, head).weight
        return f"on the linear head {head!r}, {weight.shape[1]} features to {weight.shape[0]} classes"
    if student.head_is_output is None and linear_layers(student.model):
        return "on the linear head, which the first batch finds"
    if student.head_refusal:
        return f"none: {student.head_refusal}"
    last = _last_layer(student.model)
    return f"none: the logits are not the output of an nn.Linear; the last layer is {last}"


def _last_layer(model: nn.Module) -> str:
    """The name and the class of the last layer with weights; quantised ones have a method of that name."""
    found = [(name, module) for name, module in model.named_modules() if hasattr(module, "weight")]
    name, layer = found[-1] if found else ("", model)
    kind, module = type(layer).__name__, type(layer).__module__
    quantised = "quantised " if "quantized" in module else ""
    return f"{repr(name) if name else _ITSELF}, a {quantised}{kind}"


def _tempering(respond: Responder) -> str:
    temper, source = respond.temper, respond.source
    rehearsals = ", ".join(source.rehearsals) if source else ""
    if temper.rehearsed is None:
        cure = f'; tempering="rehearsed" would use the rehearsal of {rehearsals}' if rehearsals else ""
        return f"{temper.kind}; accuracy is not estimated{cure}"
    rehearsal = temper.rehearsed.rehearsal
    fallback = "may answer" if temper.compares else "never answers"
    return (
        f"rehearsed on {rehearsal.samples} samples and {len(rehearsal.runs)} streams; accuracy is estimated; "
        f"the source model {fallback}"
    )


def _holding(respond: Responder) -> str:
    held = measure_footprint(respond)
    stored = "stores samples as they came" if held.stores_observations else "stores no samples"
    return f"{_size(held.total.bytes)} on {respond.student.device}; {stored}"


def _counted(layers: list[str]) -> str:
    names = [name or _ITSELF for name in layers]
    shown = ", ".join(names if len(names) <= _SHOWN else [*names[: _SHOWN - 1], "…", names[-1]])
    return f"{len(layers)} layer{'s' if len(layers) > 1 else ''} ({shown})"


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"
