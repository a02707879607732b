"""The names that fields of descriptors take: as types, and by family and field.

core/internal/generate writes this file from the tables of the Go core: run ``make generate``.
"""

from __future__ import annotations

from typing import Literal, get_args

from ._kinds import ScanKind

QuantizedName = Literal["int8", "uint8"]
FloatName = Literal["float32", "float64", "float16", "bfloat16"]
IndexName = Literal["int32", "int64"]
BagMode = Literal["sum", "mean", "max"]
Pairing = Literal["interleaved", "half"]
Angle = Literal["float64", "float32"]
Layout = Literal["bhsd", "bshd", "thd"]
Tie = Literal["last", "first"]

CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "dequantize_per_token": {
        "qdtype": get_args(QuantizedName),
        "dtype": get_args(FloatName),
        "scale_dtype": get_args(FloatName),
    },
    "dequantize_per_token_backward": {
        "qdtype": get_args(QuantizedName),
        "dtype": get_args(FloatName),
        "scale_dtype": get_args(FloatName),
    },
    "embedding_backward": {
        "dtype": get_args(FloatName),
        "index_dtype": get_args(IndexName),
    },
    "embedding_bag_backward": {
        "dtype": get_args(FloatName),
        "mode": get_args(BagMode),
        "index_dtype": get_args(IndexName),
        "offset_dtype": get_args(IndexName),
    },
    "fake_quantize_per_token": {
        "dtype": get_args(FloatName),
        "scale_dtype": get_args(FloatName),
    },
    "fake_quantize_per_token_backward": {
        "dtype": get_args(FloatName),
        "scale_dtype": get_args(FloatName),
    },
    "lerp_backward": {
        "dtype": get_args(FloatName),
    },
    "rope": {
        "dtype": get_args(FloatName),
        "pairing": get_args(Pairing),
        "angle": get_args(Angle),
        "layout": get_args(Layout),
    },
    "rope_backward": {
        "dtype": get_args(FloatName),
        "pairing": get_args(Pairing),
        "angle": get_args(Angle),
        "layout": get_args(Layout),
    },
    "scan": {
        "kind": get_args(ScanKind),
        "dtype": get_args(FloatName),
        "tie": get_args(Tie),
    },
    "scan_backward": {
        "kind": get_args(ScanKind),
        "dtype": get_args(FloatName),
        "tie": get_args(Tie),
    },
    "unique_rows": {
        "index_dtype": get_args(IndexName),
    },
}
