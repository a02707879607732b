"""Can one sequence that is cut over ranks be scanned, and a model be trained through the scan, at the cost of a few bytes?

    torchrun --nproc-per-node 2 examples/long_scan.py

A Cox model ranks patients by risk. Its loss compares the score of each patient who dies with those of all patients who are
still alive, which is one logcumsumexp over the whole cohort by decreasing survival time. Here the cohort is cut over the ranks,
each of which has consecutive patients, as many as it likes. ``std.logcumsumexp`` scans across the ranks: each sends two numbers
forward and two backward, whatever the number of patients. Gradients of the weights are then summed over the ranks.

Every rank also trains the same model alone, on the whole cohort, and compares losses and gradients. The program runs on the
CPU, or by NCCL where each rank has a GPU. It prints the loss every 10 steps, the largest difference, and as its last line

    ok: losses and gradients of the ranks are those of one process, to 1e-09
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor

import sternway.torch as st
import sternway.torch.distributed as std

PATIENTS, FEATURES, STEPS = 20_000, 8, 40
TOLERANCE = 1e-9  # relative to the largest element, in float64, as ranks add in another order than one process


def cohort() -> tuple[Tensor, Tensor]:
    """Features [patients, features] and whether each patient died [patients], by decreasing survival time."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(PATIENTS, FEATURES, dtype=torch.float64, generator=generator)
    hazard = torch.exp(features @ torch.linspace(-1, 1, FEATURES, dtype=torch.float64))
    time = torch.empty(PATIENTS, dtype=torch.float64).exponential_(generator=generator) / hazard
    died = torch.rand(PATIENTS, generator=generator) < 0.7
    order = time.argsort(descending=True)
    return features[order], died[order]


def loss_of(scores: Tensor, risk: Tensor, died: Tensor, deaths: int) -> Tensor:
    """The negative partial log-likelihood of these patients, divided by the deaths in the whole cohort."""
    return ((risk - scores) * died).sum() / deaths


def train(rank: int, ranks: int, device: torch.device) -> float:
    """Train both models and return the largest difference of their losses and gradients, relative to the largest element."""
    features, died = (x.to(device) for x in cohort())
    deaths = int(died.sum())
    lengths = [PATIENTS * (k + 1) // (ranks * (ranks + 1) // 2) for k in range(ranks - 1)]  # ranks differ
    lengths.append(PATIENTS - sum(lengths))
    own_features, own_died = features.split(lengths)[rank], died.split(lengths)[rank]
    weights = [torch.zeros(FEATURES, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2)]
    shared, single = weights
    optimizers = [torch.optim.SGD([w], lr=0.5) for w in weights]
    difference = 0.0
    for step in range(STEPS + 1):
        scores = own_features @ shared
        loss = loss_of(scores, std.logcumsumexp(scores, 0), own_died, deaths)
        (gradient,) = torch.autograd.grad(loss, shared)
        total = torch.cat([loss.detach().reshape(1), gradient])
        dist.all_reduce(total)
        shared.grad = total[1:]

        scores = features @ single
        whole = loss_of(scores, st.logcumsumexp(scores, 0), died, deaths)
        (single.grad,) = torch.autograd.grad(whole, single)
        for ours, theirs in ((total[0], whole.detach()), (total[1:], single.grad)):
            difference = max(difference, float((ours - theirs).abs().max() / theirs.abs().max()))
        if rank == 0 and step % 10 == 0:
            print(f"step {step:2}: loss {float(total[0]):.4f}")
        for optimizer in optimizers:
            optimizer.step()
    return difference


def main() -> None:
    """Train, and print as the last line whether the models agree."""
    rank, ranks, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    difference = train(rank, ranks, device)
    dist.destroy_process_group()
    if rank == 0:
        print(f"largest difference: {difference:.1e}")
        if difference <= TOLERANCE:
            print(f"ok: losses and gradients of the ranks are those of one process, to {TOLERANCE:.0e}")
    sys.exit(difference > TOLERANCE)


if __name__ == "__main__":
    main()
