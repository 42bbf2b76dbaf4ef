"""Gradient descent, Adam and sharpness-aware gradients as pure functions of their state."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from equipoise.core.verdict import Check, all_hold
from equipoise.functional import all_at_least_single, at_least_single
from equipoise.network.parameters import gradients_of
from equipoise.options import number, one_of

OptimizerName: TypeAlias = Literal["sgd", "adam"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
LearnedParameters: TypeAlias = Mapping[str, nn.Parameter]
OptimizerState: TypeAlias = dict[str, Tensor]
_NOT_FINITE = "non-finite gradient or step"


class Slope(NamedTuple):
    """Gradients of a loss.

    Attributes:
        gradients: by the parameters' names.
        failure: the reason why there are none; empty otherwise.
        checks: conditions for using them.
    """

    gradients: dict[str, Tensor]
    failure: str = ""
    checks: tuple[Check, ...] = ()


def slope(loss: Tensor, parameters: LearnedParameters) -> Slope:
    """Differentiate a loss; parameters that it does not depend on are left out."""
    finite = Check(loss.detach().isfinite(), "non-finite loss")
    gradients = gradients_of(loss, parameters)
    if not gradients:
        return Slope({}, "the loss depends on no parameter that adapts")
    return Slope(gradients, checks=(finite,))


class Optimizer:
    """Plain or accelerated gradient descent as a function of its state, which is a dict of tensors.

    "sgd" is θ ← θ − rate · v with v ← momentum · v + g (never Nesterov); "adam" is torch's with
    β = (momentum, .999). Neither decays the weights. Nothing is written unless the whole step is finite.
    State and steps of half-precision parameters are in single precision. torch's fused kernels take the step:
    a flag on the device makes them leave everything as it was.
    """

    def __init__(self, kind: OptimizerName, rate: float, momentum: float) -> None:
        one_of("optimizer", kind, OPTIMIZERS)
        self.kind = kind
        self.rate = number("learning_rate", rate, low=0)
        self.momentum = number("momentum", momentum, low=0, high=0.9999)

    def start(self, parameters: Mapping[str, Tensor]) -> OptimizerState:
        """The state before the first step."""
        zeros = {name: at_least_single(torch.zeros_like(p)) for name, p in parameters.items()}
        if self.kind == "sgd":
            return {f"velocity.{name}": zero for name, zero in zeros.items() if self.momentum}
        moments = {f"{m}.{name}": zero.clone() for m in ("mean", "square") for name, zero in zeros.items()}
        device = next(iter(zeros.values())).device if zeros else None
        return {**moments, "steps": torch.zeros((), dtype=torch.long, device=device)}

    def step(
        self,
        parameters: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        checks: tuple[Check, ...],
        allowed: Tensor | None = None,
    ) -> tuple[OptimizerState, tuple[Check, ...]]:
        """Move the parameters if that is allowed, all checks hold and the step is finite.

        Returns the state afterwards, and the checks with those of the step: where one does not hold, weights
        and state are as before. The tensors of `state` are not written.
        """
        names = list(gradients)
        chosen: list[Tensor] = [parameters[name] for name in names]
        with torch.no_grad():
            # In half precision Adam's epsilon and most squares are 0: the step is made in single precision.
            wide = [_dense(parameter) for parameter in all_at_least_single(chosen)]
            singles = all_at_least_single([gradients[name] for name in names])
            slopes = [_laid_out(one, like=w) for one, w in zip(singles, wide, strict=True)]
            # If the squares of the gradients were not finite, nor would this norm be.
            longest = torch.nn.utils.get_total_norm(slopes, foreach=True) * max(self.rate, 1.0)
            finite = longest.isfinite() & (self.rate <= torch.finfo(longest.dtype).max)
            checks = (*checks, Check(finite, _NOT_FINITE))
            news = {name: tensor.clone() for name, tensor in state.items()}
            moments = {
                f"{moment}.{name}": parameter
                for moment in ("velocity", "mean", "square")
                for name, parameter in zip(names, wide, strict=True)
                if f"{moment}.{name}" in news
            }
            singles = all_at_least_single([news[key] for key in moments])
            for (key, parameter), one in zip(moments.items(), singles, strict=True):
                news[key] = _laid_out(one, like=parameter)
            fine = all_hold(checks, allowed)
            self._fused(names, wide, slopes, news, (~fine).float())
            detour = [(p, w.to(p.dtype)) for p, w in zip(chosen, wide, strict=True) if w is not p]
            if detour:
                settled = torch.stack([value.isfinite().all() for _, value in detour]).all()
                checks = (*checks, Check(settled, _NOT_FINITE))
                for parameter, value in detour:
                    parameter.copy_(torch.where(fine & settled, value, parameter))
                news = {name: torch.where(settled, new, state[name]) for name, new in news.items()}
        return news, checks

    def _fused(
        self,
        names: list[str],
        chosen: list[Tensor],
        slopes: list[Tensor],
        state: OptimizerState,
        refused: Tensor,
    ) -> None:
        """Take torch's own step, in place; it does nothing where `refused` is 1."""
        if self.kind == "sgd":
            sgd(
                chosen,
                slopes,
                [state.get(f"velocity.{name}") for name in names],
                fused=True,
                found_inf=refused,
                weight_decay=0.0,
                momentum=self.momentum,
                lr=self.rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            return
        # torch counts the steps before it uses them, in a tensor of each parameter's own.
        each = state["steps"].float().repeat(len(names)).unbind()
        counts = [count.to(parameter.device) for count, parameter in zip(each, chosen, strict=True)]
        state["steps"].add_((1 - refused).long().reshape(()))
        adam(
            chosen,
            slopes,
            [state[f"mean.{name}"] for name in names],
            [state[f"square.{name}"] for name in names],
            [],
            counts,
            fused=True,
            found_inf=refused,
            amsgrad=False,
            beta1=self.momentum,
            beta2=0.999,
            lr=self.rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


def _dense(tensor: Tensor) -> Tensor:
    """The tensor itself if its numbers lie in memory without gaps, as fused kernels want; else a copy."""
    dense = tensor.is_contiguous() or (
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )
    return tensor if dense else tensor.contiguous()


def _laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor with its numbers in the order of another of its shape: fused kernels ignore strides."""
    if tensor.stride() == like.stride():
        return tensor
    if _order(tensor) == _order(like):  # dimensions of size 1 may have any stride
        return tensor.as_strided(like.shape, like.stride())
    return torch.empty_like(like).copy_(tensor)


def _order(tensor: Tensor) -> list[tuple[int, int]]:
    return [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


@contextmanager
def climbed(
    parameters: LearnedParameters, gradients: Mapping[str, Tensor], rho: float
) -> Iterator[tuple[Check, ...]]:
    """Move parameters uphill for the block, to the worst point near: SAM (Foret et al., ICLR 2021).

    θ + rho · g / (‖g‖₂ + 1e-12) with ‖·‖ over all gradients; in half precision, where most of such a step is
    lost to rounding, a multiple of it (`_uphill`). The parameters are as before at the end of the block,
    whatever happens in it. Yields the condition for using what is computed there.
    """
    if not gradients:
        yield ()
        return
    wide = [at_least_single(gradient) for gradient in gradients.values()]
    norm = torch.nn.utils.get_total_norm(wide)
    moved: list[Tensor] = [parameters[name] for name in gradients]
    step = [gradient * (rho / (norm + 1e-12)) for gradient in wide]
    before = [parameter.detach().clone() for parameter in moved]
    try:
        with torch.no_grad():
            torch._foreach_copy_(moved, _uphill(before, step, rho))
        yield (Check(norm.isfinite(), _NOT_FINITE),)
    finally:
        with torch.no_grad():
            torch._foreach_copy_(moved, before)


def _uphill(parameters: list[Tensor], step: list[Tensor], rho: float) -> list[Tensor]:
    """Parameters after a step of length `rho`.

    Half-precision weights have 8 or 11 bits: of a step that is short for each of many weights nothing would
    be left. They take the first of its multiples by 1, √2, 2, …, 1024 of which, after rounding, at least half
    of `rho` is left in the direction of the step.
    """
    pairs = list(zip(parameters, step, strict=True))
    reached = [(parameter + one).to(parameter.dtype) for parameter, one in pairs]
    if all(at_least_single(parameter) is parameter for parameter in parameters):
        return reached
    for power in range(1, 21):
        short = _product(reached, parameters, step) < rho**2 / 2
        further = [(parameter + 2 ** (power / 2) * one).to(parameter.dtype) for parameter, one in pairs]
        reached = [torch.where(short.to(n.device), f, n) for f, n in zip(further, reached, strict=True)]
    return reached


def _product(news: list[Tensor], olds: list[Tensor], others: list[Tensor]) -> Tensor:
    """The scalar product of the change from old to new tensors with others, as one vector each."""
    each = [
        ((at_least_single(new) - old) * other).sum()
        for new, old, other in zip(news, olds, others, strict=True)
    ]
    return torch.stack([one.to(each[0].device) for one in each]).sum()


def sharpness_aware_slope(
    loss_at: Callable[[], Tensor], parameters: LearnedParameters, rho: float
) -> tuple[Tensor, Slope]:
    """The loss at θ, and its gradient at the worst point near θ (`climbed`)."""
    loss = loss_at()
    here = slope(loss, parameters)
    if here.failure:
        return loss.detach(), here
    with climbed(parameters, here.gradients, rho) as finite:
        there = slope(loss_at(), parameters)
    return loss.detach(), there._replace(checks=(*here.checks, *finite, *there.checks))
