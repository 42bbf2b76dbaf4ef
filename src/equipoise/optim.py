"""The steps an adapter takes down its loss: gradient descent, Adam, and sharpness-aware ones."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from equipoise.functional import at_least_single
from equipoise.options import number, one_of

OptimizerName: TypeAlias = Literal["sgd", "adam"]
Weights: TypeAlias = Mapping[str, nn.Parameter]
State: TypeAlias = dict[str, Tensor]


class Slope(NamedTuple):
    """The gradients of a loss by the parameters' names, or why there are none."""

    gradients: dict[str, Tensor]
    failure: str


def slope(loss: Tensor, parameters: Weights) -> Slope:
    """Differentiate a loss; parameters that it does not depend on are left out."""
    if not bool(loss.isfinite()):
        return Slope({}, "non-finite loss")
    values = list(parameters.values())
    found = torch.autograd.grad(loss, values, allow_unused=True) if loss.requires_grad else ()
    gradients = {
        name: gradient.to_dense() if gradient.is_sparse else gradient
        for name, gradient in zip(parameters, found, strict=False)
        if gradient is not None
    }
    if not gradients:
        return Slope({}, "the loss depends on no parameter that adapts")
    return Slope(gradients, "")


class Optimizer:
    """Plain or accelerated gradient descent as a function of its state, which is a dict of tensors.

    "sgd" is θ ← θ − rate · v with v ← momentum · v + g (never Nesterov); "adam" is torch's with
    β = (momentum, .999). Neither decays the weights. Nothing is written unless the whole step is finite.
    State and steps of half-precision parameters are in single precision.
    """

    def __init__(self, kind: OptimizerName, rate: float, momentum: float) -> None:
        one_of("optimizer", kind, get_args(OptimizerName))
        self.kind = kind
        self.rate = number("learning_rate", rate, low=0)
        self.momentum = number("momentum", momentum, low=0, high=0.9999)

    def start(self, parameters: Weights) -> State:
        """The state before the first step."""
        zeros = {name: at_least_single(torch.zeros_like(p)) for name, p in parameters.items()}
        if self.kind == "sgd":
            return {f"velocity.{name}": zero for name, zero in zeros.items() if self.momentum}
        moments = {f"{m}.{name}": zero.clone() for m in ("mean", "square") for name, zero in zeros.items()}
        return {**moments, "steps": torch.zeros((), dtype=torch.long)}

    def step(self, parameters: Weights, gradients: Mapping[str, Tensor], state: State) -> tuple[State, str]:
        """Move the parameters; returns the state afterwards, or the same state and why there was no step."""
        names = list(gradients)
        chosen: list[Tensor] = [parameters[name] for name in names]
        slopes = [at_least_single(gradient) for gradient in gradients.values()]
        # If the squares of the gradients were not finite, nor would this norm be.
        longest = torch.nn.utils.get_total_norm(slopes) * max(self.rate, 1.0)
        if not bool(longest.isfinite()) or self.rate > torch.finfo(longest.dtype).max:
            return state, "non-finite gradient or step"
        news = {name: at_least_single(tensor).clone() for name, tensor in state.items()}
        with torch.no_grad():
            # In half precision Adam's epsilon and most squares are 0: the step is made in single precision.
            wide = [at_least_single(parameter) for parameter in chosen]
            if self.kind == "sgd":
                self._descend(wide, slopes, [news.get(f"velocity.{name}") for name in names])
            else:
                news["steps"] += 1
                means = [news[f"mean.{name}"] for name in names]
                squares = [news[f"square.{name}"] for name in names]
                self._adam(wide, slopes, means, squares, news["steps"])
            narrow = [(p, w.to(p.dtype)) for p, w in zip(chosen, wide, strict=True) if w is not p]
            if not all(bool(value.isfinite().all()) for _, value in narrow):
                return state, "non-finite gradient or step"
            for parameter, value in narrow:
                parameter.copy_(value)
        return news, ""

    def _descend(self, chosen: list[Tensor], slopes: list[Tensor], velocity: list[Tensor | None]) -> None:
        sgd(
            chosen,
            slopes,
            velocity,
            has_sparse_grad=False,
            foreach=True,
            weight_decay=0.0,
            momentum=self.momentum,
            lr=self.rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _adam(
        self,
        chosen: list[Tensor],
        slopes: list[Tensor],
        means: list[Tensor],
        squares: list[Tensor],
        steps: Tensor,
    ) -> None:
        # torch counts the steps before it uses them, in a tensor of each parameter's own.
        counts = [steps.cpu().float() - 1 for _ in chosen]
        adam(
            chosen,
            slopes,
            means,
            squares,
            [],
            counts,
            foreach=True,
            amsgrad=False,
            beta1=self.momentum,
            beta2=0.999,
            lr=self.rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


def sharpness_aware_slope(
    loss_at: Callable[[], Tensor], parameters: Weights, rho: float
) -> tuple[Tensor, Slope]:
    """The loss at θ, and its gradient at the worst point near θ: SAM (Foret et al., ICLR 2021).

    e = rho · g / (‖g‖₂ + 1e-12) with g the gradient at θ and ‖·‖ over all parameters; the gradient returned
    is that at θ + e. The parameters are as before when it returns, whatever happens on the way.
    """
    loss = loss_at()
    here = slope(loss, parameters)
    if here.failure:
        return loss.detach(), here
    norm = torch.nn.utils.get_total_norm(list(here.gradients.values()))
    if not bool(norm.isfinite()):
        return loss.detach(), Slope({}, "non-finite gradient or step")
    climbed: list[Tensor] = [parameters[name] for name in here.gradients]
    uphill = [gradient * (rho / (norm + 1e-12)) for gradient in here.gradients.values()]
    before = [parameter.detach().clone() for parameter in climbed]
    try:
        with torch.no_grad():
            torch._foreach_add_(climbed, uphill)
        there = slope(loss_at(), parameters)
    finally:
        with torch.no_grad():
            torch._foreach_copy_(climbed, before)
    return loss.detach(), there
