"""Further answers to the same samples, under dropout and in another style, and estimates from them."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules.conv import _ConvNd

from equipoise.errors import ModelError, OptionError
from equipoise.estimators.inputs import further_answers, result, stream
from equipoise.metrics.inputs import by_name
from equipoise.network.forward import checked_logits
from equipoise.network.head import watch_head
from equipoise.network.modules import checked_module, device_of
from equipoise.network.normalisation import evaluation_mode
from equipoise.options import integer, number

NEWEST_SHARE = 0.4
"""The weight of a batch in the average over batches of `aetta`."""


@by_name
def aetta(*, logits: Tensor, dropout_logits: Tensor, previous: Tensor | float | None = None) -> Tensor:
    """The agreement with answers under dropout, less where answers collapse onto few classes.

    With K answers under dropout for each of N samples, of `equipoise.estimators.dropout_logits`:

        d = mean over samples and draws of 1[ŷ ≠ ŷ under dropout],
        p̄ = mean over samples and draws of the probabilities under dropout,  H = -Σ_c p̄_c ln p̄_c,
        e = d · (H / ln C)^-3, held in [0, 1 - 1/C],
        estimate = 1 - (0.6 · e_before + 0.4 · e),

    where e_before is 1 - `previous`, the estimate at the batch before, or d at the first batch. Lee et al.,
    "AETTA: Label-Free Accuracy Estimation for Test-Time Adaptation", CVPR 2024.

    Deviations: H is exact, where the authors' code adds 1e-6 in the logarithm; e is 0 where d is. Rows of
    NaN, which metrics leave out, are left out of both.

    >>> logits = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
    >>> first = aetta(logits=logits, dropout_logits=torch.stack([logits, logits.flip(1)]))  # d = 1/2
    >>> first, aetta(logits=logits, dropout_logits=logits[None], previous=first)  # d = 0
    (tensor(0.5000), tensor(0.7000))
    """
    scores = stream(logits)
    draws = further_answers("dropout_logits", dropout_logits, scores)
    if not len(scores.values):
        return result(torch.nan, scores)
    disagreement = 1 - float(_agreement(scores.values, draws))
    error = 0.0
    if disagreement > 0:
        mean = draws.softmax(2).mean((0, 1))
        spread = float(torch.special.entr(mean).sum()) / math.log(len(mean))
        worst = 1 - 1 / len(mean)
        error = min(disagreement / spread**3, worst) if spread > 0 else worst
    before = disagreement if previous is None else 1 - number("previous", previous, low=0, high=1)
    return result(1 - ((1 - NEWEST_SHARE) * before + NEWEST_SHARE * error), scores)


@by_name
def sicl(*, logits: Tensor, style_logits: Tensor) -> Tensor:
    """The agreement with answers to the same samples in another style: mean of 1[ŷ = ŷ in another style].

    The K answers in other styles are those of `equipoise.estimators.style_logits`; the share of a sample's K
    answers that agree is its likelihood to be right, and the estimate is the mean over samples. After Nam et
    al., "Towards Reliable Test-Time Adaptation: Style Invariance as a Correctness Likelihood", WACV 2026
    (arXiv 2512.07390).

    Deviations: this is a reading of the paper's abstract and of summaries; neither its formulas nor code
    of the authors were at hand. The paper relaxes the likelihood by the content of a sample, to keep it from
    collapsing, which is left out. Numbers of it are not those of the paper.

    >>> logits = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
    >>> sicl(logits=logits, style_logits=torch.stack([logits, logits[[0, 0]]]))  # 3 of 4 agree
    tensor(0.7500)
    """
    scores = stream(logits)
    return result(_agreement(scores.values, further_answers("style_logits", style_logits, scores)), scores)


def _agreement(logits: Tensor, draws: Tensor) -> Tensor:
    """The share of (K, N, C) answers whose class is that of the (N, C) answers."""
    agree = draws.argmax(2) == logits.argmax(1).to(draws.device)
    return agree.to(draws.dtype).mean()


def dropout_logits(
    model: nn.Module,
    inputs: Tensor,
    *,
    generator: torch.Generator,
    draws: int = 10,
    rate: float = 0.4,
    layers: Sequence[str] = (),
) -> Tensor:
    """The logits of a batch under K draws of dropout, shape (K, N, C), for `aetta`.

    Each number is set to 0 with a probability of `rate` and the others are divided by 1 - rate, in the
    outputs of the named layers, or, without names, in the features that the linear head takes: one forward
    then and K products with the head. The model answers in eval mode and is as before afterwards; no
    random numbers are drawn but from `generator`.

    Lee et al., "AETTA", CVPR 2024, put dropout behind each of the four stages of a ResNet,
    layers=("layer1", "layer2", "layer3", "layer4"), with a rate of 0.4 for 10 classes, 0.3 for 100 and 0.2
    for the 1,000 of ImageNet, and K = 10.

    Deviations: by default dropout is in the features of the head alone, which any model with a head has.

    Args:
        model: the classifier.
        inputs: a batch of its inputs.
        generator: of the random numbers, on any device.
        draws: K.
        rate: the probability of a number to be dropped.
        layers: the names of modules whose outputs are dropped; none: the features of the linear head.

    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> inputs = torch.zeros(5, 3)
    >>> dropped = dropout_logits(model, inputs, generator=torch.Generator().manual_seed(0))
    >>> dropped.shape
    torch.Size([10, 5, 2])
    """
    plain = checked_module(model)
    draws, rate = integer("draws", draws, low=1), number("rate", rate, low=0, high=1)
    if rate == 1:
        raise OptionError("expected rate < 1, got 1: it would drop everything")

    def drop(values: Tensor) -> Tensor:
        drawn = torch.rand(values.shape, generator=generator, device=generator.device)
        return values * (drawn >= rate).to(values.device) / (1 - rate)

    if layers:
        with evaluation_mode(plain), _changed(plain, layers, drop) as ran:
            answers = torch.stack([_logits(plain, inputs) for _ in range(draws)])
            _check_ran(ran, layers)
        return answers
    with evaluation_mode(plain), watch_head(plain, None, required=False) as seen:
        head = seen.note(_logits(plain, inputs))
    if head.layer is None or head.features is None:
        raise ModelError(
            "expected a model whose output is that of a linear layer, for dropout in front of it, got "
            f"{head.refusal or 'another'}; name the layers whose outputs are to be dropped, layers=[...]"
        )
    with torch.no_grad():
        features = [drop(head.features) for _ in range(draws)]
        return torch.stack([linear(each, head.layer.weight, head.layer.bias) for each in features])


def style_logits(
    model: nn.Module,
    inputs: Tensor,
    *,
    generator: torch.Generator,
    draws: int = 10,
    strength: float = 0.5,
    layer: str | None = None,
) -> Tensor:
    """The logits of a batch in K other styles, shape (K, N, C), for `sicl`.

    The style of a sample is the mean μ and the standard deviation σ of each channel of a feature map, its
    content what is left: f = μ + σ · content. In each draw the map is μ' + σ' · content, with

        μ' = μ + strength · σ · ε,  σ' = σ · exp(strength · ε'),

    ε and ε' standard normal, for each sample and channel. The model answers in eval mode and is as before
    afterwards; no random numbers are drawn but from `generator`.

    Huang and Belongie, "Arbitrary Style Transfer in Real-time with Adaptive Instance Normalization", ICCV
    2017, for style and content; Nam et al., WACV 2026 (arXiv 2512.07390), for answers in other styles.

    Deviations: the size and kind of the noise, its place and K are choices of equipoise, not fitted to
    anything; the formulas of Nam et al. were not at hand.

    Args:
        model: the classifier.
        inputs: a batch of its inputs.
        generator: of the random numbers, on any device.
        draws: K.
        strength: of the noise, in standard deviations of the channel.
        layer: the name of the module whose (N, channels, ...) output is the feature map; None: the first
            convolution of the model.

    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    >>> inputs = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> style_logits(model, inputs, generator=torch.Generator().manual_seed(0), draws=3).shape
    torch.Size([3, 5, 2])
    """
    plain = checked_module(model)
    draws, strength = integer("draws", draws, low=1), number("strength", strength, low=0)
    name = _first_convolution(plain) if layer is None else layer

    def restyle(values: Tensor) -> Tensor:
        if values.ndim < 3:
            raise ModelError(
                f"expected the output of {name!r} as a feature map (N, channels, ...), got shape "
                f"{tuple(values.shape)}"
            )
        places = tuple(range(2, values.ndim))
        mean = values.mean(places, keepdim=True)
        scale = values.std(places, correction=0, keepdim=True)
        drawn = torch.randn((2, *mean.shape), generator=generator, device=generator.device)
        noise = drawn.to(values)
        restyled: Tensor = mean + strength * scale * noise[0] + (values - mean) * (strength * noise[1]).exp()
        return restyled

    with evaluation_mode(plain), _changed(plain, [name], restyle) as ran:
        answers = torch.stack([_logits(plain, inputs) for _ in range(draws)])
        _check_ran(ran, [name])
    return answers


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    return checked_logits(model(inputs.to(device_of(model))), len(inputs))


def _first_convolution(model: nn.Module) -> str:
    named: list[tuple[str, nn.Module]] = list(model.named_modules())
    for name, module in named:
        if isinstance(module, _ConvNd):
            return name
    raise ModelError(
        "expected a model with a convolution, whose output has a style, got none; name the layer with a "
        "feature map, layer=..."
    )


@contextmanager
def _changed(
    model: nn.Module, names: Sequence[str], change: Callable[[Tensor], Tensor]
) -> Iterator[set[str]]:
    """Change the outputs of the named modules in the block, which notes those that ran."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if isinstance(names, str) or (unknown := [name for name in names if name not in modules]):
        shown = names if isinstance(names, str) else ", ".join(map(repr, unknown))
        known = ", ".join(name for name, _ in model.named_children())
        raise OptionError(f"expected names of modules in the model ({known}, ...), got {shown}")
    ran: set[str] = set()

    def changing(name: str) -> Callable[..., Tensor]:
        def changed(_module: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if not isinstance(output, Tensor):
                raise ModelError(f"expected {name!r} to return a tensor, got {type(output).__name__}")
            ran.add(name)
            return change(output)

        return changed

    handles = [modules[name].register_forward_hook(changing(name)) for name in names]
    try:
        yield ran
    finally:
        for handle in handles:
            handle.remove()


def _check_ran(ran: set[str], names: Sequence[str]) -> None:
    if unused := [name for name in names if name not in ran]:
        raise ModelError(
            f"expected the model's forward to run {', '.join(map(repr, unused))}, and it did not"
        )
