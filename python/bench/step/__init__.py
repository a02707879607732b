"""``python -m sternway bench step``: whole training steps through autograd, compared with torch in the same process.

    python -m sternway bench step --device cuda --limit 515 --csv step_h200.csv
    python -m sternway bench step --device cpu --csv step_cpu.csv
    python -m sternway bench step --rows "cumsum, dim 0" --quick

A row is a step at a shape and dtype. It has a line in the CSV for each contestant: sternway; torch; ``compile``, which is
torch.compile of torch's code in the default mode, warm; and rivals where they are installed, such as Liger. The gradients of
every contestant are compared with float64 before anything is timed (float32 for a Llama).
"""

from .run import bench_step

__all__ = ["bench_step"]
