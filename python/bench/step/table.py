"""The steps of the benchmark, in the order in which they run."""

from . import cox, dlrm, embedding, learning, llama, mamba, operators, quantize

CASES = (
    *quantize.CASES, operators.LERP, cox.CASE, llama.CASE, mamba.CASE, *dlrm.CASES, *learning.CASES, embedding.CASE,
    *operators.SCANS,
)  # fmt: skip
