"""``rope_tables``: tables of cosines and sines for rotary embeddings."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from .._autograd.calls import require_tensors
from .columns import LAYOUTS, Layout
from .frequencies import ROPE_TYPES, VARIANTS, Frequencies, Rope
from .settings import read
from .values import refused, shown


def _positions_by_axis(positions: Tensor, rope: Rope, layout: Layout, batched: bool) -> Tensor:
    """Positions in float32 as [..., axes], where [...] is the shape of the tables without their columns.

    `batched`: positions are as rotary classes take them; of multimodal models, rank 2 is [B, S] and not [axes, S].
    """
    axes, shape = layout.axes or len(rope.sections), list(positions.shape)
    if axes == 1:
        return positions[..., None].float()
    if not layout.axes_first:
        if not shape or shape[-1] != axes or (batched and len(shape) != layout.rank):
            leading = "batch, sequence" if layout.rank == 3 else "sequence"
            wanted = f"[{leading if batched else '...'}, {axes}], a coordinate for each axis"
            raise refused("positions", wanted, str(shape))
        return positions.float()
    by_axis = len(shape) >= 3 or (len(shape) == 2 and not batched and shape[0] != 1)
    if by_axis and shape[0] not in (1, axes):
        hint = "positions.expand(3, -1, -1) gives a text's positions to all axes" if axes == 3 else ""
        wanted = f"[{axes}, batch, sequence]" + ("" if batched else f", [{axes}, S] or [S]")
        raise refused("positions", wanted, str(shape), hint)
    if not by_axis:
        positions = positions[None]
    return positions.expand(axes, *positions.shape[1:]).movedim(0, -1).contiguous().float()


def _length(rope: Rope, positions: Tensor, seq_len: int | None) -> Tensor:
    """The sequence length that frequencies adapt to: a scalar on the CPU, in the dtype in which a model computes it."""
    if seq_len is not None:
        return torch.tensor(float(seq_len), dtype=torch.float32, device="cpu")
    if not {**ROPE_TYPES, **VARIANTS}[rope.rope_type].follows_length or positions.numel() == 0:
        return torch.zeros((), dtype=torch.float32, device="cpu")
    length = (positions.max() + 1).cpu()
    return length if length.is_floating_point() else length.float()


def _frequencies(rope: Rope, length: Tensor) -> Frequencies:
    """The frequencies and the attention factor, checked to be finite."""
    try:
        frequencies, scale = {**ROPE_TYPES, **VARIANTS}[rope.rope_type].frequencies(rope, length)
    except (ArithmeticError, TypeError) as error:  # logarithms and powers of settings at the ends of their ranges
        raise refused("config", "settings with finite frequencies", f"rope_type {shown(rope.rope_type)} without") from error
    if not torch.compiler.is_compiling() and not frequencies.isfinite().all():  # traced, a tensor cannot decide
        raise refused("config", "settings with finite frequencies", f"rope_type {shown(rope.rope_type)} without")
    return frequencies, scale


def _columns(layout: str, pairs: int, sections: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The axis of each column, and its frequency."""
    columns = LAYOUTS[layout].columns(pairs, sections)
    return [axis for axis, _ in columns], [frequency for _, frequency in columns]


def _checked_length(seq_len: Any) -> int | None:
    if seq_len is None:
        return None
    try:
        length = -1 if isinstance(seq_len, bool) else operator.index(seq_len)
    except TypeError:
        length = -1
    if not 0 <= length < 2**63:
        raise refused("seq_len", "None or a number of positions", shown(seq_len))
    return length


def _check_call(positions: Any, dtype: Any) -> None:
    require_tensors("rope_tables", positions=positions)
    if positions.dtype == torch.bool or positions.is_complex():
        raise refused("positions", "integers or floating", str(positions.dtype).removeprefix("torch."))
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise refused("dtype", "a floating dtype of torch", str(dtype).removeprefix("torch.")[:40])


@torch.no_grad()
def rope_tables(
    config: Any,
    positions: Tensor,
    *,
    layer_type: str | None = None,
    seq_len: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions for a model's rotary embedding, as :func:`apply_rotary_pos_emb` takes them.

    For a configuration of transformers, the tables equal those of the rotary class of its model to the bit. A configuration is
    refused if its class is not known or makes no tables of positions. Angles are formed in float32, as models form them in
    training.

    A mapping holds rope settings and nothing else, at the top or in ``rope_parameters`` or ``rope_scaling``:

    - the size of a head: ``head_dim``, or ``hidden_size`` and ``num_attention_heads``;
    - the base: ``rope_theta`` (10000; also ``base``, ``rotary_emb_base``);
    - the rotated part of a head: ``partial_rotary_factor`` (1; also ``rotary_pct``), or ``rotary_dim`` (also
      ``qk_rope_head_dim``);
    - ``rope_type`` and its keys:

    ============  ==========================================================================================
    default       none
    linear        factor
    dynamic       factor, max_position_embeddings
    yarn          factor, original_max_position_embeddings; attention_factor, mscale, mscale_all_dim, beta_fast,
                  beta_slow, truncate
    longrope      short_factor, long_factor, factor, original_max_position_embeddings; attention_factor
    llama3        factor, low_freq_factor, high_freq_factor, original_max_position_embeddings
    proportional  factor (1)
    axial         none: positions are [..., 2], row and column
    ============  ==========================================================================================

    ``max_position_embeddings`` may replace the original one, and its ratio to the original one the factor of "yarn" and
    "longrope". ``mrope_section`` makes a table multimodal; ``mrope_interleaved`` orders it as Qwen3-VL does. Settings may
    differ by layer type: then each layer type has a mapping under its name. A key that is unknown, or that the rope type does
    not read, is an error.

    Sources: Su et al., arXiv:2104.09864; YaRN, Peng et al., arXiv:2309.00071; LongRoPE, Ding et al., arXiv:2402.13753; for the
    other rope types, the code of transformers.

    Args:
        config: a configuration of transformers, or a mapping of rope settings.
        positions: integers or floating numbers, of any shape, such as [S] or [B, S]. For a multimodal model: [3, B, S], time,
            height and width, or [S] and [1, S] for a text; for a configuration also [B, S], texts, and for a mapping [3, S],
            one sequence.
            For vision encoders: [S, 2], row and column, or [B, S, 2] for gemma4; for a mapping [..., 2].
        layer_type: the layer type whose settings are used, if they differ, such as "sliding_attention".
        seq_len: the sequence length that "dynamic" and "longrope" adapt to; None: the largest position plus 1, which is read
            from the device.
        dtype: the dtype of the tables.

    Returns:
        cos and sin, [..., r], with the columns of the model's rotary class; of a mapping, with the two halves of r equal. They
        are multiplied by the attention factor of "yarn" and "longrope".

    Raises:
        InvalidProblemError: a setting is missing, unknown, out of range or contradicts another; layer types differ and none is
            given; positions have the wrong shape or dtype.
        UnsupportedError: another rope type; a model whose rotary class is not known or makes no such tables.
        TypeError: config is neither, or positions are no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> settings = {"head_dim": 4, "rope_type": "linear", "factor": 2.0}
        >>> cos, sin = st.rope_tables(settings, torch.arange(3))
        >>> cos.shape, round(sin[2, 0].item(), 3)
        (torch.Size([3, 4]), 0.841)

        Settings by layer type, and a multimodal model:

        >>> layers = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
        >>> cos, sin = st.rope_tables({"head_dim": 64, **layers}, torch.arange(3), layer_type="full_attention")
        >>> video = {"head_dim": 32, "mrope_section": [4, 6, 6]}
        >>> st.rope_tables(video, torch.zeros(3, 2, 10))[0].shape
        torch.Size([2, 10, 32])
    """
    _check_call(positions, dtype)
    seq_len = _checked_length(seq_len)
    rope = read(config, layer_type)
    layout = LAYOUTS[rope.layout]
    by_axis = _positions_by_axis(positions, rope, layout, batched=hasattr(config, "model_type"))
    frequencies, scale = _frequencies(rope, _length(rope, positions, seq_len))
    axes, pairs = _columns(rope.layout, len(frequencies), rope.sections)
    if by_axis.shape[-1] > 1:
        by_axis = by_axis[..., torch.tensor(axes, device=by_axis.device)]
    angles = by_axis * frequencies[torch.tensor(pairs, device="cpu")].to(by_axis.device)
    angles = angles[None] if layout.batched else angles
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
