"""The names that fields of descriptors take, by family and field.

core/internal/generate writes this file from the tables of the Go core: run ``make generate``.
"""

CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "dequantize_per_token": {
        "qdtype": ("int8", "uint8"),
        "dtype": ("float32", "float64", "float16", "bfloat16"),
        "scale_dtype": ("float32", "float64", "float16", "bfloat16"),
    },
    "dequantize_per_token_backward": {
        "qdtype": ("int8", "uint8"),
        "dtype": ("float32", "float64", "float16", "bfloat16"),
        "scale_dtype": ("float32", "float64", "float16", "bfloat16"),
    },
    "embedding_backward": {
        "dtype": ("float32", "float64", "float16", "bfloat16"),
        "index_dtype": ("int32", "int64"),
    },
    "embedding_bag_backward": {
        "dtype": ("float32", "float64", "float16", "bfloat16"),
        "mode": ("sum", "mean", "max"),
        "index_dtype": ("int32", "int64"),
        "offset_dtype": ("int32", "int64"),
    },
    "fake_quantize_per_token": {
        "dtype": ("float32", "float64", "float16", "bfloat16"),
        "scale_dtype": ("float32", "float64", "float16", "bfloat16"),
    },
    "fake_quantize_per_token_backward": {
        "dtype": ("float32", "float64", "float16", "bfloat16"),
        "scale_dtype": ("float32", "float64", "float16", "bfloat16"),
    },
    "lerp_backward": {
        "dtype": ("float32", "float64", "float16", "bfloat16"),
    },
    "rope": {
        "dtype": ("float32", "float64", "float16", "bfloat16"),
        "pairing": ("interleaved", "half"),
        "angle": ("float64", "float32"),
        "layout": ("bhsd", "bshd", "thd"),
    },
    "rope_backward": {
        "dtype": ("float32", "float64", "float16", "bfloat16"),
        "pairing": ("interleaved", "half"),
        "angle": ("float64", "float32"),
        "layout": ("bhsd", "bshd", "thd"),
    },
    "scan": {
        "kind": ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
        "dtype": ("float32", "float64", "float16", "bfloat16"),
        "tie": ("last", "first"),
    },
    "scan_backward": {
        "kind": ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
        "dtype": ("float32", "float64", "float16", "bfloat16"),
        "tie": ("last", "first"),
    },
    "unique_rows": {
        "index_dtype": ("int32", "int64"),
    },
}
