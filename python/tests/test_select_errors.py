"""Descriptors, JSON and devices that no plan can come from: the class, one sentence, the words that name the mistake."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from families import Family, make
from families.dequantize import DEQUANTIZE
from families.fake_quantize import FAKE_QUANTIZE, FAKE_QUANTIZE_BLOCKS
from families.lerp import LERP
from support import F32, one_sentence

import sternway as sw
from sternway._choices import CHOICES

UNSUPPORTED, INVALID = sw.UnsupportedError, sw.InvalidProblemError
EITHER = (UNSUPPORTED, INVALID)  # the documents put the case into neither class
SHAPE = (4, 6)


def base_fields(family: Family) -> dict[str, Any]:
    descriptor = make(family, SHAPE, F32, "cpu").descriptor
    return {field.name: getattr(descriptor, field.name) for field in dataclasses.fields(descriptor)}


class Wrong(NamedTuple):
    """Fields of a descriptor, some replaced; the error comes from the constructor or from select."""

    name: str
    family: Family
    fields: dict[str, Any]
    error: Any
    words: tuple[str, ...]


DESCRIPTORS = (
    Wrong("rank 9", LERP, {"shape": (1,) * 9}, UNSUPPORTED, ("9", "8")),
    Wrong("negative extent", LERP, {"shape": (4, -1)}, INVALID, ("shape", "-1")),
    Wrong("elements beyond 2^63", DEQUANTIZE, {"shape": (2**32, 2**31, 4)}, EITHER, ("shape",)),
    Wrong("bytes beyond 2^63", LERP, {"shape": (2**31, 2**31)}, EITHER, ("shape",)),
    Wrong("extent beyond int64", LERP, {"shape": (2**63,)}, EITHER, ("shape",)),
    Wrong("extent is no integer", LERP, {"shape": (4, 1.5)}, (INVALID, TypeError), ("1.5",)),
    Wrong("dtype int32", LERP, {"dtype": "int32"}, UNSUPPORTED, ("int32", "float32", "bfloat16")),
    Wrong("dtype bool", DEQUANTIZE, {"dtype": torch.bool}, UNSUPPORTED, ("bool", "float32")),
    Wrong("dtype complex64", LERP, {"dtype": np.dtype("complex64")}, UNSUPPORTED, ("complex64",)),
    Wrong("dtype unknown", LERP, {"dtype": "float33"}, UNSUPPORTED, ("float33",)),
    Wrong("dtype None", LERP, {"dtype": None}, (UNSUPPORTED, INVALID, TypeError), ("dtype",)),
    Wrong("a_shape does not broadcast", LERP, {"a_shape": (4,)}, INVALID, ("a_shape", "[4]", "[4, 6]")),
    Wrong("b_shape is wider", LERP, {"b_shape": (2, 4, 6)}, INVALID, ("b_shape",)),
    Wrong("weight_shape does not broadcast", LERP, {"weight_shape": (4, 5)}, INVALID, ("weight_shape",)),
    Wrong("weight_shape with a number", LERP, {"weight": 0.5, "weight_shape": (6,)}, INVALID, ("weight",)),
    Wrong("a_shape negative", LERP, {"a_shape": (-6,)}, INVALID, ("a_shape",)),
    Wrong("huge integer weight", LERP, {"weight": 10**400}, EITHER, ("weight",)),
    Wrong("complex weight", LERP, {"weight": 1j}, (UNSUPPORTED, INVALID, TypeError), ("weight",)),
    Wrong("weight is text", LERP, {"weight": "half"}, (INVALID, TypeError), ("weight",)),
    Wrong(
        "qdtype int16",
        DEQUANTIZE,
        {"qdtype": "int16"},
        UNSUPPORTED,
        ("qdtype must be int8, uint8, float8_e4m3fn,", "got int16"),
    ),
    Wrong("scale_dtype neither", DEQUANTIZE, {"scale_dtype": "float16"}, UNSUPPORTED, ("float16", "float32")),
    Wrong("scale_dtype integer", FAKE_QUANTIZE, {"scale_dtype": "int32"}, UNSUPPORTED, ("int32",)),
    Wrong("empty range", FAKE_QUANTIZE, {"quant_min": 8, "quant_max": 7}, INVALID, ("quant_min", "8", "7")),
    Wrong("huge bound", FAKE_QUANTIZE, {"quant_max": 2**70}, EITHER, ("quant_max",)),
    Wrong("fractional bound", FAKE_QUANTIZE, {"quant_max": 7.5}, (INVALID, TypeError), ("quant_max",)),
    Wrong("a scale that divides nothing", FAKE_QUANTIZE_BLOCKS, {"scale_shape": (4, 4)}, INVALID, ("[4, 6]", "[4, 4]")),
    Wrong("a scale of rank 1", FAKE_QUANTIZE_BLOCKS, {"scale_shape": (4,)}, INVALID, ("rank 2", "[4]")),
    Wrong("rank 9 of tokens", FAKE_QUANTIZE, {"shape": (2,) * 9}, UNSUPPORTED, ("9",)),
)


@pytest.mark.parametrize("row", DESCRIPTORS, ids=lambda row: row.name)
def test_descriptor(row: Wrong) -> None:
    fields = {**base_fields(row.family), **row.fields}
    with pytest.raises(row.error) as caught:
        row.family.plan.select(row.family.descriptor(**fields), device="cpu")
    one_sentence(caught.value, "", row.words)


REQUIRED: dict[str, dict[str, Any]] = {
    "Scan": {"shape": (2, 3), "dtype": "float32"},
    "LerpBackward": {"shape": (2, 3), "dtype": "float32"},
    "LinearRecurrence": {"shape": (2, 3), "dtype": "float32"},
    "Rope": {"batch_size": 1, "num_heads": 1, "seq_len": 2, "head_dim": 2, "dtype": "float32"},
    "Dequantize": {"shape": (2, 4), "dtype": "float32", "scale_shape": (2, 1)},
    "DequantizePerToken": {"shape": (2, 4), "dtype": "float32"},
    "FakeQuantize": {"shape": (2, 3), "dtype": "float32", "quant_min": 0, "quant_max": 1, "scale_shape": (2, 1)},
    "FakeQuantizePerToken": {"shape": (2, 3), "dtype": "float32", "quant_min": 0, "quant_max": 1},
    "EmbeddingBag": {"num_embeddings": 3, "embedding_dim": 3, "num_bags": 2, "total_indices": 4, "dtype": "float32"},
    "EmbeddingBags": {
        "num_tables": 1, "num_bags": 2, "num_rows": 3, "num_elements": 9, "num_columns": 3, "embedding_dim": 3,
        "total_indices": 4, "dtype": "float32",
    },
    "EmbeddingBackward": {"num_embeddings": 3, "embedding_dim": 3, "num_indices": 4, "dtype": "float32"},
    "SelectiveScan": {"batch": 1, "dim": 2, "length": 3, "n": 2, "dtype": "float32"},
    "UniqueRows": {"num_rows": 3, "total": 2},
}  # fmt: skip
"""The required fields of descriptors, by the name that a forward shares with its backward."""


def descriptors() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Every descriptor by its family, and its required fields."""
    found = {}
    for name, fields in REQUIRED.items():
        for kind in (f"{name}Descriptor", f"{name}BackwardDescriptor"):
            if hasattr(sw, kind):
                found[getattr(sw, kind).family] = getattr(sw, kind), fields
    return found


ALL = descriptors()
WORDS = [(family, field) for family, choices in CHOICES.items() for field in choices]


@pytest.mark.parametrize(("family", "field"), WORDS)
def test_a_name_that_no_field_takes(family: str, field: str) -> None:
    """Refused where the descriptor is made, with the valid names. It alone finds an option that only ``select`` refuses."""
    descriptor, fields = ALL[family]
    for wrong in ("fp32", "cumall", "a b", "float33"):
        with pytest.raises(UNSUPPORTED) as caught:
            descriptor(**{**fields, field: wrong})
        one_sentence(caught.value, field, CHOICES[family][field])
        assert caught.value.op == family


def test_every_family_has_its_choices() -> None:
    """It alone finds a table of names for a family or a field that there is not."""
    assert CHOICES.keys() == ALL.keys()
    for family, choices in CHOICES.items():
        assert choices.keys() <= {field.name for field in dataclasses.fields(ALL[family][0])}


@pytest.mark.parametrize("family", CHOICES)
def test_names_that_fields_take(family: str) -> None:
    """``select`` takes every one of them. It alone finds a name that Python lets through and the core does not know."""
    descriptor, fields = ALL[family]
    plan = getattr(sw, descriptor.__name__.replace("Descriptor", "Plan"))
    for field, names in CHOICES[family].items():
        for name in names:
            both = {"dtype": name} if field in ("scale_dtype", "state_dtype") else {}
            plan.select(descriptor(**{**fields, **both, field: name}))


@pytest.mark.parametrize("family", [LERP, DEQUANTIZE, FAKE_QUANTIZE], ids=lambda f: f.name)
@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        pytest.param(r"^\{", '{"surprise": 1, ', id="unknown field"),
        pytest.param(r'"dtype":\s*"float32",?\s*', "", id="missing field"),
        pytest.param(r'"float32"', "32", id="dtype is a number"),
        pytest.param(r"\[4,\s*6\]", '"4x6"', id="shape is text"),
        pytest.param(r"\}$", "", id="cut short"),
        pytest.param(r"^.*$", "[1, 2]", id="no object"),
        pytest.param(r"^.*$", "", id="nothing"),
    ],
)
def test_json(family: Family, pattern: str, replacement: str) -> None:
    text = family.descriptor(**base_fields(family)).to_json()
    broken = re.sub(pattern, replacement, text, count=1, flags=re.DOTALL)
    assert broken != text
    with pytest.raises(INVALID) as caught:
        family.plan.select(family.descriptor.from_json(broken), device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("cuda:-1", EITHER),
        ("mps", UNSUPPORTED),
        ("cpu:1", EITHER),
        ("", EITHER),
        ("cudax", EITHER),
        (3.5, (UNSUPPORTED, INVALID, TypeError)),
    ],
    ids=str,
)
def test_device(device: Any, error: Any) -> None:
    with pytest.raises(error) as caught:
        LERP.plan.select(LERP.descriptor(**base_fields(LERP)), device=device)
    one_sentence(caught.value, "", (str(device),))


@pytest.mark.parametrize(
    ("preference", "error", "words"),
    [
        ({"kernel": "no_such_kernel"}, UNSUPPORTED, ("kernel", "no_such_kernel")),
        ({"kernel": "rows_of_lerp"}, UNSUPPORTED, ("kernel", "rows_of_lerp")),
        ({"max_workspace": -1}, INVALID, ("max_workspace", "-1")),
    ],
    ids=str,
)
def test_preference(preference: dict[str, Any], error: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        LERP.plan.select(LERP.descriptor(**base_fields(LERP)), device="cpu", preference=sw.PlanPreference(**preference))
    one_sentence(caught.value, "", words)


@pytest.mark.parametrize(
    "text", ["cpu\0", "\0", "\ud800", "cuda:\ud800", "cpu\n", "x" * 10_000, "cuda:\N{FULLWIDTH DIGIT ONE}", "CPU", " cpu"]
)
@pytest.mark.parametrize(
    "spell", [str, lambda text: SimpleNamespace(type=text, index=None), lambda text: SimpleNamespace(type="cuda", index=text)]
)
def test_text_of_a_device(text: str, spell: Any) -> None:
    """Whatever a string holds, the error is ours, and shows it in one line."""
    with pytest.raises(UNSUPPORTED) as caught:
        LERP.plan.select(LERP.descriptor(**base_fields(LERP)), device=spell(text))
    one_sentence(caught.value, "device", ())
    assert caught.value.op == "lerp_backward"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("field", ["dtype", "kind", "tie"])
@pytest.mark.parametrize("text", ["float32\0", "\ud800", "a\nb", "x" * 10_000])
def test_text_of_a_descriptor(field: str, text: str) -> None:
    fields = {"kind": "cummax", "shape": (2, 3), "dtype": "float32", field: text}
    with pytest.raises(EITHER) as caught:
        sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor(**fields))
    one_sentence(caught.value, "", (field,))
    assert str(caught.value).isprintable()
    assert caught.value.op.startswith("scan_backward")


PREFERENCES = (
    ("deterministic", 1), ("deterministic", None), ("deterministic", "yes"), ("max_workspace", "1"), ("max_workspace", 1.5),
    ("max_workspace", 2**70), ("max_workspace", 10**5000), ("kernel", 3), ("kernel", b"rows"), ("kernel", []), ("kernel", ""),
)  # fmt: skip


@pytest.mark.parametrize(("field", "value"), PREFERENCES, ids=lambda value: type(value).__name__)
def test_fields_of_a_preference(field: str, value: Any) -> None:
    with pytest.raises(INVALID, match=f"PlanPreference: {field} must be"):
        sw.PlanPreference(**{field: value})


@pytest.mark.parametrize("wrong", [0, "", {}, (), "default", {"deterministic": True}, sw.PlanPreference])
def test_what_is_no_preference(wrong: Any) -> None:
    with pytest.raises(TypeError, match="PlanPreference"):
        LERP.plan.select(LERP.descriptor(**base_fields(LERP)), preference=wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(UNSUPPORTED, match=r"(?i)driver|no device") as caught:
        LERP.plan.select(LERP.descriptor(**base_fields(LERP)), device="cuda")
    assert isinstance(caught.value, NotImplementedError)
