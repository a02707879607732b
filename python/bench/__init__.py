"""The benchmark: every case, in the same process as torch, checked against float64 before it is timed.

    python -m sternway bench lerp --device cuda --csv lerp.csv --plot lerp.png
    python -m sternway bench --device cpu --csv cpu.csv
    python -m sternway bench scan --rows "dim -1" --shapes 8191x8193,64x50257
    python -m sternway bench host --device cuda
    python -m sternway bench exactness --device cpu --csv exactness.csv
    python -m sternway bench carries --device cuda --csv carries.csv
    python -m sternway bench recurrence --device cuda --csv recurrence.csv
    python -m sternway bench packed --device cuda --csv packed.csv
    python -m sternway bench jax --device cpu --csv jax_cpu.csv
    python -m sternway bench growth --device cuda --csv growth.csv
    torchrun --nproc-per-node 2 -m sternway bench ranks --csv ranks.csv
    python -m sternway bench step --device cuda --limit 515 --csv step.csv

A row is an operation, the gradients that are asked for, a shape and a dtype. Its time is the median of at least 20 repetitions
that take turns with torch's backward and with a copy of as many bytes. On a GPU the buffers rotate, so that they exceed its L2
cache; the share of a copy's speed is measured by events around each call, and again by replays of CUDA graphs of some calls.
``results/`` in the source tree holds the CSV files that documents quote. The first line of each names the command, the card or
processor with its driver, and the commit. The column ``kernel`` is ``plan.sku.kernel`` of the plan that ran; files from before
this column lack it.
"""

from .run import bench

__all__ = ["bench"]
