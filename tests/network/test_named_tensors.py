"""Copies of tensors by name, whatever their memory format."""

import pytest
import torch
from torch import Tensor

from equipoise.network.named_tensors import copies, copy_into, copy_unless


def formats() -> dict[str, Tensor]:
    image = torch.randn(2, 3, 4, 5)
    return {
        "plain": torch.randn(3, 2),
        "last": image.clone(memory_format=torch.channels_last),
        "double": torch.randn(4, dtype=torch.float64),
        "count": torch.tensor(3),
        "sparse rows": torch.randn(4, 6)[:, ::2],
        "transposed": torch.randn(3, 5).T,
        "none": torch.zeros(0, 3),
    }


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("contiguous", [True, False])
def test_a_flag_decides_for_tensors_of_every_memory_format(flag: bool, contiguous: bool) -> None:
    tensors, values = formats(), {name: tensor + 1 for name, tensor in formats().items()}
    if contiguous:
        values = {name: tensor.contiguous() for name, tensor in values.items()}
    before, addresses = copies(tensors), {name: tensor.data_ptr() for name, tensor in tensors.items()}
    copy_unless(torch.tensor(flag), tensors, values)
    expected = before if flag else values
    assert all(torch.equal(tensors[name], expected[name]) for name in tensors)
    assert addresses == {name: tensor.data_ptr() for name, tensor in tensors.items()}
    copy_into(tensors, before)
    assert all(torch.equal(tensors[name], before[name]) for name in tensors)


def test_large_tensors_go_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.network.named_tensors._AT_ONCE", 10)
    tensors = {str(n): torch.zeros(6) for n in range(5)}
    copy_unless(torch.tensor(False), tensors, {name: tensor + int(name) for name, tensor in tensors.items()})
    assert [float(tensor[0]) for tensor in tensors.values()] == [0, 1, 2, 3, 4]
