"""Rope types: the keys that each reads, and its formula for the frequencies.

Arithmetic is in float32, in the order of transformers' ``modeling_rope_utils``, so that the results agree to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import make

_MADE: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
"""Frequencies are made on the CPU: the same numbers for every device."""


@dataclass(frozen=True)
class Rope:
    """One rotary embedding: checked settings, as the formulas need them."""

    rope_type: str
    """A row of :data:`ROPE_TYPES`."""
    head_dim: int
    dim: int
    """Elements of a head that are rotated. Odd ones have a last pair with the element behind them."""
    base: float
    """Positions per radian of pair k: base^(2k / dim)."""
    values: Mapping[str, Any]
    """Settings by name, those of the rope type and the two lengths; absent: not given."""
    layout: str
    """A row of :data:`columns.LAYOUTS`."""
    sections: tuple[int, ...] = ()
    """Pairs of each axis, in multimodal layouts."""

    def periods(self, dim: int | None = None, *, base: float | Tensor | None = None, pairs: int | None = None) -> Tensor:
        """base^(2k / dim) for the first pairs, or for all dim / 2: positions per radian."""
        dim = self.dim if dim is None else dim
        exponents = torch.arange(0, dim if pairs is None else 2 * pairs, 2, **_MADE) / dim
        periods: Tensor = (self.base if base is None else base) ** exponents
        return periods

    def original_length(self) -> Any:
        """The sequence length of training."""
        return self.values.get("original_max_position_embeddings", self.values.get("max_position_embeddings"))

    def factor(self) -> float:
        """The factor; if it is not set, the ratio of the two sequence lengths."""
        given = self.values.get("factor")
        return float(self.values["max_position_embeddings"] / self.original_length() if given is None else given)


Frequencies = tuple[Tensor, float]
"""Radians per position, by pair, and the factor of both tables."""


def _default(rope: Rope, length: Tensor) -> Frequencies:
    """RoFormer (Su et al., arXiv 2104.09864)."""
    return 1.0 / rope.periods(), 1.0


def _linear(rope: Rope, length: Tensor) -> Frequencies:
    """Position interpolation (Chen et al., arXiv 2306.15595): positions are divided by the factor."""
    return 1.0 / rope.periods() / rope.values["factor"], 1.0


def _dynamic(rope: Rope, length: Tensor) -> Frequencies:
    """ "NTK-aware" scaling: the base grows with the sequence, so that the slowest pair rotates as far as it did in training."""
    trained, factor, power = rope.values["max_position_embeddings"], rope.values["factor"], rope.dim / (rope.dim - 2)
    base: float | Tensor = rope.base * (factor - (factor - 1)) ** power
    if float(length) > trained:  # in float32, as a model forms it from a tensor of positions
        base = rope.base * (factor * length / trained - (factor - 1)) ** power
    return 1.0 / rope.periods(base=base), 1.0


def _dynamic_or_alpha(rope: Rope, length: Tensor) -> Frequencies:
    """HunYuan: a fixed growth of the base where alpha is given."""
    alpha = rope.values.get("alpha")
    if alpha is None:
        return _dynamic(rope, length)
    return 1.0 / rope.periods(rope.head_dim, base=rope.base * alpha ** (rope.head_dim / (rope.head_dim - 2))), 1.0


def _yarn(rope: Rope, length: Tensor) -> Frequencies:
    """YaRN (Peng et al., arXiv 2309.00071): slow pairs are interpolated, fast pairs are kept, pairs in between are blended."""
    trained, factor, get = rope.original_length(), rope.factor(), rope.values.get

    def pair(rotations: float) -> float:
        """The pair that makes this number of rotations over the trained length."""
        return rope.dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = pair(get("beta_fast", 32)), pair(get("beta_slow", 1))
    if get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    high = high + 0.001 if low == high else high
    ramp = (torch.arange(rope.dim // 2, **_MADE) - low) / (high - low)
    kept = 1 - ramp.clamp(0, 1)
    periods = rope.periods()
    frequencies = 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    scale, weight, weight_all = get("attention_factor"), get("mscale"), get("mscale_all_dim")
    if scale is None:
        scale = temperature(weight) / temperature(weight_all) if weight and weight_all else temperature(1)
    return frequencies, float(scale)


def _longrope(rope: Rope, length: Tensor) -> Frequencies:
    """LongRoPE (Ding et al., arXiv 2402.13753): a divisor for each pair, with other divisors beyond the trained length."""
    trained, factor, scale = rope.original_length(), rope.factor(), rope.values.get("attention_factor")
    name = "long_factor" if float(length) > trained else "short_factor"
    divisors = torch.tensor(rope.values[name], **_MADE)
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    return 1.0 / (divisors * rope.periods()), float(scale)


def _longrope_phimoe(rope: Rope, length: Tensor) -> Frequencies:
    """Phi-3.5-MoE: LongRoPE with the factor of the tables given as a setting.

    Beyond the trained length the class of transformers keeps the short divisors, unlike the model that Microsoft released.
    """
    if float(length) > rope.original_length():
        wanted = f"at most the trained length {rope.original_length()} for phimoe"
        raise make("unsupported", "sternway.torch.rope_tables", "seq_len", wanted, f"{float(length):g}")
    return _longrope(rope, length)[0], rope.values["short_mscale"]


def _llama3(rope: Rope, length: Tensor) -> Frequencies:
    """Llama 3.1: wavelengths beyond the trained length are divided by the factor, short ones kept, those in between blended."""
    trained, factor = rope.original_length(), rope.values["factor"]
    low, high = rope.values["low_freq_factor"], rope.values["high_freq_factor"]
    frequencies = 1.0 / rope.periods()
    waves = 2 * math.pi / frequencies
    blend = (trained / waves - low) / (high - low)
    between = (1 - blend) * frequencies / factor + blend * frequencies
    slow, fast = waves > trained / low, waves < trained / high
    return torch.where(slow, frequencies / factor, torch.where(fast, frequencies, between)), 1.0


def _proportional(rope: Rope, length: Tensor) -> Frequencies:
    """Gemma 4: the whole head has columns, but only the fastest pairs rotate; the others have frequency 0."""
    turning = int(rope.values.get("partial_rotary_factor", 1.0) * rope.head_dim // 2)
    frequencies = 1.0 / rope.periods(rope.head_dim, pairs=turning)
    still = torch.zeros(rope.head_dim // 2 - turning, **_MADE)
    return torch.cat((frequencies, still)) / rope.values.get("factor", 1.0), 1.0


def _axial(rope: Rope, length: Tensor) -> Frequencies:
    """Vision encoders: each of two axes has half of the head, and the frequencies of a head of that width."""
    return 1.0 / rope.periods(rope.dim // 2), 1.0


def _axial_whole(rope: Rope, length: Tensor) -> Frequencies:
    """Pixtral: the frequencies of the whole head, shared out between the axes."""
    return 1.0 / rope.periods(), 1.0


def _axial_three(rope: Rope, length: Tensor) -> Frequencies:
    """MiniMax M3: each of three axes has a third of the head, rounded down to an even width; the rest is not rotated."""
    return 1.0 / rope.periods(2 * (rope.dim // 3 // 2)), 1.0


@dataclass(frozen=True)
class RopeType:
    """One rope type: its formula, and the keys that may be given beside it."""

    frequencies: Callable[[Rope, Tensor], Frequencies]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    """Keys that models ship beside this type and that change no table."""
    trained: bool = False
    """Needs the length of training: original_max_position_embeddings, or else max_position_embeddings."""
    follows_length: bool = False
    """Frequencies follow the length of the sequence."""
    multiple: int = 2
    """The rotated width is a multiple of this."""


_YARN = ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_LONGROPE = ("short_factor", "long_factor")

ROPE_TYPES: dict[str, RopeType] = {
    "default": RopeType(_default),
    "linear": RopeType(_linear, ("factor",)),
    "dynamic": RopeType(_dynamic, ("factor", "max_position_embeddings"), follows_length=True),
    # finetuned: a note on the weights; llama_4_scaling_beta: scales queries by their position, in the attention
    "yarn": RopeType(_yarn, (), _YARN, ("finetuned", "llama_4_scaling_beta"), trained=True),
    "longrope": RopeType(_longrope, _LONGROPE, ("factor", "attention_factor"), trained=True, follows_length=True),
    "llama3": RopeType(_llama3, ("factor", "low_freq_factor", "high_freq_factor"), trained=True),
    "proportional": RopeType(_proportional, (), ("factor",)),
    "axial": RopeType(_axial, multiple=4),
}
"""The rope types that a setting may name."""

_YARN_ON_HUNYUAN = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")

VARIANTS: dict[str, RopeType] = {
    "dynamic, HunYuan": RopeType(
        _dynamic_or_alpha, (), ("alpha", "factor", "max_position_embeddings"), _YARN_ON_HUNYUAN, follows_length=True
    ),
    "longrope, Phi-3.5-MoE": RopeType(
        _longrope_phimoe, (*_LONGROPE, "short_mscale", "long_mscale"), ("factor",), ("attention_factor",), True, True
    ),
    "axial, Pixtral": RopeType(_axial_whole, multiple=4),
    "axial, MiniMax M3": RopeType(_axial_three),
}
"""Rope types of single models, under a name of another rope type."""
