"""Can ranks share the tokens of a sequence, each rotating its own by their true positions, and train a Llama layer?

    torchrun --nproc-per-node 2 examples/context_parallel_llama.py [--order zigzag]

Under context parallelism, each rank has a part of every sequence: consecutive tokens, or with ``--order zigzag`` two chunks,
one from either end, which gives all ranks the same work under a causal mask. ``std.positions`` says which tokens a rank has,
and ``st.rope`` rotates its queries and keys by these positions. Keys and values are then gathered from all ranks, and the mask
compares positions, so that it is right for either order. The task is to name the token of half a sequence ago, which is often
on another rank.

Every rank also trains the same model alone, on whole sequences, and compares losses and gradients. The program runs on the
CPU, or by NCCL where each rank has a GPU. It prints the loss every 10 steps, the largest difference, and as its last line

    ok: losses and gradients of the ranks are those of one process, to 1e-09
"""

import argparse
import os
import sys

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard

import sternway.torch as st
import sternway.torch.distributed as std

BATCH, TOKENS, WIDTH, HEADS, VOCABULARY, STEPS = 8, 32, 32, 2, 8, 60
DISTANCE = TOKENS // 2  # from a token back to the one that is to be named
TOLERANCE = 1e-9  # relative to the largest element, in float64, as ranks add in another order than one process


class Decoder(nn.Module):
    """A Llama-like decoder of one layer, whose ranks have parts of the sequence. Without a mesh it runs in one process."""

    def __init__(self, mesh: DeviceMesh | None) -> None:
        super().__init__()
        self.mesh = mesh
        self.embedding = st.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(3))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the logits of this rank's tokens. The shape of ids is [batch, tokens], that of positions is [tokens]."""
        x = self.embedding(ids)
        x = x + self.attention(self.norms[0](x), positions)
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        x = x + self.down(nn.functional.silu(gate) * up)
        return self.head(self.norms[2](x))

    def attention(self, x: Tensor, positions: Tensor) -> Tensor:
        """Attend from this rank's tokens to all tokens that are not after them, on any rank."""
        q, k, v = (
            self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        )  # each [batch, heads, tokens, head dimension]
        q, k = st.rope(q, positions, pairing="half"), st.rope(k, positions, pairing="half")
        k, v, key_positions = self.gather(k, 2), self.gather(v, 2), self.gather(positions, 0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=positions[:, None] >= key_positions)
        return self.out(y.transpose(1, 2).flatten(2))

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """Concatenate the parts of all ranks. In the backward, their gradients are summed, and each rank takes its part."""
        if self.mesh is None:
            return x
        return DTensor.from_local(x, self.mesh, [Shard(dim)]).full_tensor(grad_placements=[Partial()])


def train(data: Tensor, positions: Tensor, mesh: DeviceMesh | None, verbose: bool = False) -> list[Tensor]:
    """Train on this rank's positions of whole sequences, and return all losses and the gradients of the last step."""
    torch.manual_seed(1)  # every rank makes the same weights
    model = Decoder(mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    has_target = positions >= DISTANCE
    losses = []
    for step, ids in enumerate(data):
        optimizer.zero_grad()
        logits = model(ids[:, positions], positions)[:, has_target].flatten(0, 1)
        target = ids[:, positions[has_target] - DISTANCE].flatten()
        loss = nn.functional.cross_entropy(logits, target, reduction="sum") / (BATCH * (TOKENS - DISTANCE))
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        losses.append(loss.detach())
        if mesh is not None:  # each rank has the loss of its tokens
            for part in (losses[-1], *gradients):
                torch.distributed.all_reduce(part)
        optimizer.step()
        if verbose and (step % 10 == 0 or step == STEPS - 1):
            print(f"step {step:2}: loss {losses[-1].item():.6f}")
    return [torch.stack(losses), *gradients]


def main() -> None:
    """Train on all ranks together and on this one alone, and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", choices=("contiguous", "zigzag"), default="contiguous")
    order = parser.parse_args().order
    rank, ranks, local_rank, local_ranks = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    if TOKENS % (2 * ranks):
        sys.exit(f"the number of ranks must divide {TOKENS // 2}")
    device = "cuda" if torch.cuda.device_count() >= local_ranks else "cpu"
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    torch.set_num_threads(1)
    torch.set_default_device(device)
    torch.set_default_dtype(torch.float64)
    mesh = init_device_mesh(device, (ranks,))  # starts NCCL or gloo

    torch.manual_seed(0)  # every rank makes the same data
    data = torch.randint(VOCABULARY, (STEPS, BATCH, TOKENS))
    positions = std.positions(TOKENS // ranks, order=order)
    shared = train(data, positions, mesh, verbose=rank == 0)
    alone = train(data, torch.arange(TOKENS), None)
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
