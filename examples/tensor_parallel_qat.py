"""Can a tensor-parallel MLP be trained with quantized weights, scales included, as one process would train it?

    torchrun --nproc-per-node 2 examples/tensor_parallel_qat.py

The MLP is divided as in Megatron-LM: the rows of the first weight and the columns of the second one are sharded. Both weights
are fake-quantized to 4 bits by ``st.fake_quantize_per_token``: a row, which makes one output channel, is a token with a learned
scale (LSQ, arXiv:1902.08153). ``parallelize_module`` turns weights and scales into DTensors; the layer has no code for it. In
the first layer, scales are sharded like the rows. In the second one, each rank has a part of every row, so that the gradient of
a scale is a sum over the ranks.

Every rank also trains the same model alone, on plain tensors, and compares losses and gradients. The program runs on the CPU,
or by NCCL where each rank has a GPU. It prints the loss every 10 steps, the largest difference, and as its last line

    ok: losses and gradients of the ranks are those of one process, to 1e-09
"""

import copy
import os
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import sternway.torch as st

WIDTH, HIDDEN, TOKENS, STEPS = 32, 96, 256, 60
# Relative to the largest element. Ranks add in another order than one process. In float32, that could move a weight across a
# threshold of the rounding; in float64, which this program uses, it practically cannot.
TOLERANCE = 1e-9


class QuantizedLinear(nn.Linear):
    """A linear layer whose weight takes 16 values per output channel, with one learned scale for each channel."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.scale = nn.Parameter(self.weight.detach().abs().amax(1) / 7)

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the transposed fake-quantized weight."""
        weight = st.fake_quantize_per_token(self.weight, self.scale, quant_min=-8, quant_max=7)
        return nn.functional.linear(x, weight)


def make_mlp(linear: Callable[[int, int], nn.Module]) -> nn.Sequential:
    """Return an MLP of two linear layers."""
    return nn.Sequential(linear(WIDTH, HIDDEN), nn.SiLU(), linear(HIDDEN, WIDTH))


def train(model: nn.Module, x: Tensor, y: Tensor, verbose: bool = False) -> list[Tensor]:
    """Fit the model to y, and return the losses of all steps and the gradients of the last one, as whole tensors."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if verbose and (step % 10 == 0 or step == STEPS - 1):
            print(f"step {step:2}: loss {loss.item():.6f}")
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [torch.stack(losses), *(g.full_tensor() if isinstance(g, DTensor) else g for g in gradients)]


def main() -> None:
    """Train on all ranks together and on this one alone, and compare."""
    rank, ranks, local_rank, local_ranks = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    if HIDDEN % ranks:
        sys.exit(f"the number of ranks must divide {HIDDEN}")
    device = "cuda" if torch.cuda.device_count() >= local_ranks else "cpu"
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    torch.set_num_threads(1)
    torch.set_default_device(device)
    torch.set_default_dtype(torch.float64)
    mesh = init_device_mesh(device, (ranks,))  # starts NCCL or gloo

    torch.manual_seed(0)  # every rank makes the same data and weights
    teacher = make_mlp(partial(nn.Linear, bias=False)).requires_grad_(False)
    x = torch.randn(TOKENS, WIDTH)
    y = teacher(x)
    single = make_mlp(QuantizedLinear)
    model = copy.deepcopy(single)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())

    shared = train(model, x, y, verbose=rank == 0)
    alone = train(single, x, y)
    torch.distributed.destroy_process_group()
    difference = torch.stack([(a - b).abs().max() / b.abs().max() for a, b in zip(shared, alone, strict=True)]).max().item()
    if not difference <= TOLERANCE:  # also if it is NaN
        sys.exit(f"failed: the largest relative difference on rank {rank} is {difference:.1e}")
    if not shared[0][-1] < shared[0][0] / 2:
        sys.exit("failed: the loss did not fall to less than half")
    if rank == 0:
        print(f"largest relative difference: {difference:.1e}")
        print(f"ok: losses and gradients of the ranks are those of one process, to {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
