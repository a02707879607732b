"""Tables of cosines and sines for the ways in which models stretch rotary embeddings beyond the context of their training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import make


class _Settings:
    """What a model's configuration, or a mapping of the same names, says of its rotary embedding."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.rope: Mapping[str, Any] = self._own("rope_parameters") or self._own("rope_scaling") or {}
        self.kind = self.get("rope_type") or self.get("type") or "default"
        head_dim = self.get("head_dim") or self.need("hidden_size") // self.need("num_attention_heads")
        self.dim = int(head_dim * (self.get("partial_rotary_factor") or 1.0))
        self.base = float(self.get("rope_theta") or self.get("base") or 10000.0)

    def _own(self, name: str) -> Any:
        return self.config.get(name) if isinstance(self.config, Mapping) else getattr(self.config, name, None)

    def get(self, name: str) -> Any:
        """A setting, from the rope's own before those of the model; None where there is none."""
        value = self.rope.get(name)
        return self._own(name) if value is None else value

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            what = f"given for rope_type {self.kind!r}" if hasattr(self, "kind") else "given"
            raise make("invalid_problem", "sternway.torch.rope_tables", name, what, "nothing")
        return value

    def original_length(self) -> int:
        return int(self.get("original_max_position_embeddings") or self.need("max_position_embeddings"))

    def factor(self) -> float:
        factor = self.get("factor")
        return float(factor if factor is not None else self.need("max_position_embeddings") / self.original_length())

    def periods(self, base: float | None = None) -> Tensor:
        """base^(2k / dim) for each pair: positions per radian, in float32 as models form them."""
        exponents = torch.arange(0, self.dim, 2, dtype=torch.int64).float() / self.dim
        return (self.base if base is None else base) ** exponents


Frequencies = tuple[Tensor, float]
"""Radians for each position, by pair, and the factor of both tables."""


def _default(s: _Settings, length: int) -> Frequencies:
    return 1.0 / s.periods(), 1.0


def _linear(s: _Settings, length: int) -> Frequencies:
    """Position interpolation (Chen et al., arXiv 2306.15595): positions are divided by the factor."""
    return 1.0 / s.periods() / s.need("factor"), 1.0


def _dynamic(s: _Settings, length: int) -> Frequencies:
    """A base that grows with the sequence: the slowest pair turns as far as it did in training ("NTK-aware" scaling)."""
    trained, factor = s.need("max_position_embeddings"), s.need("factor")
    growth = factor * max(length, trained) / trained - (factor - 1)
    return 1.0 / s.periods(s.base * growth ** (s.dim / (s.dim - 2))), 1.0


def _yarn(s: _Settings, length: int) -> Frequencies:
    """YaRN (Peng et al., arXiv 2309.00071): slow pairs are interpolated, fast ones are not, those between in parts."""
    trained, factor = s.original_length(), s.factor()

    def pair(rotations: float) -> float:
        """The pair that makes so many rotations over the trained length."""
        return s.dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(s.base))

    low, high = pair(s.get("beta_fast") or 32), pair(s.get("beta_slow") or 1)
    if s.get("truncate") in (None, True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, s.dim - 1)
    ramp = (torch.arange(s.dim // 2, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    kept = 1 - ramp.clamp(0, 1)
    periods = s.periods()
    frequencies = 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    scale, weight, weight_all = s.get("attention_factor"), s.get("mscale"), s.get("mscale_all_dim")
    if scale is None:
        scale = temperature(weight) / temperature(weight_all) if weight and weight_all else temperature(1)
    return frequencies, float(scale)


def _longrope(s: _Settings, length: int) -> Frequencies:
    """LongRoPE (Ding et al., arXiv 2402.13753): a divisor for each pair, another one beyond the trained length."""
    trained, factor = s.original_length(), s.factor()
    divisors = torch.tensor(s.need("long_factor" if length > trained else "short_factor"), dtype=torch.float32)
    scale = s.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    return 1.0 / (divisors * s.periods()), float(scale)


def _llama3(s: _Settings, length: int) -> Frequencies:
    """Llama 3.1: wavelengths beyond the trained length are divided by the factor, short ones kept, those between blended."""
    trained, factor = s.original_length(), s.need("factor")
    low, high = s.need("low_freq_factor"), s.need("high_freq_factor")
    frequencies = 1.0 / s.periods()
    waves = 2 * math.pi / frequencies
    blend = (trained / waves - low) / (high - low)
    between = (1 - blend) * frequencies / factor + blend * frequencies
    slow, fast = waves > trained / low, waves < trained / high
    return torch.where(slow, frequencies / factor, torch.where(fast, frequencies, between)), 1.0


_KINDS: dict[str, Callable[[_Settings, int], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}


@torch.no_grad()
def rope_tables(
    config: Any, positions: Tensor, *, seq_len: int | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions for a model's rotary embedding, as :func:`apply_rotary_pos_emb` takes them.

    Angles are formed in float32, as models do, so that weights that were trained so meet the same numbers.

    Args:
        config: a configuration of transformers, or a mapping of the same names: ``rope_type`` ("default", "linear", "dynamic",
            "yarn", "longrope" or "llama3") and what it needs, at the top or in ``rope_parameters`` or ``rope_scaling``;
            ``head_dim``, or ``hidden_size`` and ``num_attention_heads``; ``rope_theta`` (10000), ``partial_rotary_factor`` (1).
        positions: integers of any shape, such as [S] or [B, S].
        seq_len: the length that "dynamic" and "longrope" adapt to; None: the largest position and 1, read from the device.
        dtype: of the tables.

    Returns:
        cos and sin, [..., r], the halves of r alike; multiplied by the attention factor of "yarn" and "longrope".

    Raises:
        InvalidProblemError: a setting that the rope_type needs is missing.
        UnsupportedError: another rope_type.

    Example:
        >>> import torch, sternway.torch as st
        >>> settings = {"head_dim": 4, "rope_type": "linear", "factor": 2.0}
        >>> cos, sin = st.rope_tables(settings, torch.arange(3))
        >>> cos.shape, round(sin[2, 0].item(), 3)
        (torch.Size([3, 4]), 0.841)
    """
    settings = _Settings(config)
    if settings.kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise make("unsupported", "sternway.torch.rope_tables", "rope_type", f"one of {known}", repr(settings.kind))
    if seq_len is None:
        adapts = settings.kind in ("dynamic", "longrope") and positions.numel() > 0
        seq_len = int(positions.max()) + 1 if adapts else 0
    frequencies, scale = _KINDS[settings.kind](settings, seq_len)  # the same numbers on every device
    angles = positions[..., None].float() * frequencies.to(positions.device)
    angles = torch.cat((angles, angles), -1)
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
