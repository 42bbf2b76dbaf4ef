"""GPU memory of DEC with teacher="resident" and "swapped".

    python benchmarks/teacher_memory.py

For each model: bytes held between batches beyond the user's own model, the peak during a step, and the time
of a step, in one process. Needs a GPU and timm; the weights are random.
"""

import time

import timm
import torch
from torch import Tensor, nn

import equipoise as eq

MODELS = {"mobilenetv1_100": (128, 50), "efficientnet_b0": (227, 50), "vit_base_patch16_224": (224, 8)}
MIB = 2**20


def measure(model: nn.Module, x: Tensor, teacher: str) -> tuple[float, float, float]:
    """MiB held, MiB at the peak of a step, milliseconds a step (median of 20)."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    adapter = eq.create("dec", model, eq.SourceStatistics(0.5, 10.0, 1000), teacher=teacher)
    adapter(x)
    held = torch.cuda.memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        adapter(x)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() - before
    return held / MIB, peak / MIB, 1000 * sorted(times)[len(times) // 2]


def main() -> None:
    """Print a table."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; MiB beyond the user's own model")
    small = timm.create_model("mobilenetv1_100", num_classes=1000).cuda().eval()
    measure(small, torch.rand(2, 3, 128, 128, device="cuda"), "resident")  # allocates torch's workspaces
    print(f"{'model':24}{'weights':>9}{'teacher':>10}{'held':>9}{'peak':>9}{'ms/step':>9}")
    for name, (size, rows) in MODELS.items():
        model = timm.create_model(name, num_classes=1000).cuda().eval()
        weights = sum(p.numel() * p.element_size() for p in model.parameters()) / MIB
        x = torch.rand(rows, 3, size, size, device="cuda")
        for teacher in ("resident", "swapped"):
            held, peak, milliseconds = measure(model, x, teacher)
            print(
                f"{name:24}{weights:9.1f}{teacher:>10}{held:9.1f}{peak:9.1f}{milliseconds:9.1f}", flush=True
            )


if __name__ == "__main__":
    main()
