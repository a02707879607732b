"""Descriptors: frozen, comparable, hashable, printable, and the same after JSON and pickle."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections import OrderedDict, deque
from copy import deepcopy
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from families import Family, make
from families.embedding import EMBEDDING
from families.embedding_bag import EMBEDDING_BAG
from families.embedding_bag_forward import EMBEDDING_BAG_FORWARD
from families.lerp import LERP
from families.rope import ROPE, ROPE_FORWARD
from families.selective_scan import SELECTIVE, SELECTIVE_BACKWARD
from support import F32, FLOATS, name_of

import sternway as sw

SHAPE = (6, 37)


def descriptor_of(family: Family, dtype: torch.dtype = F32) -> Any:
    return make(family, SHAPE, dtype, "cpu").descriptor


def variants(family: Family) -> list[Any]:
    """Descriptors of one family that differ in one field each."""
    base = descriptor_of(family)
    others = [dataclasses.replace(base, dtype=name_of(dtype)) for dtype in FLOATS if dtype != F32]
    if family in (ROPE, ROPE_FORWARD):
        others += [dataclasses.replace(base, **{name: 64}) for name in ("batch_size", "seq_len", "head_dim", "num_key_heads")]
        others += [dataclasses.replace(base, pairing="interleaved"), dataclasses.replace(base, base=5e5)]
        return [base, *others]
    if family in (EMBEDDING_BAG, EMBEDDING_BAG_FORWARD):
        others += [
            dataclasses.replace(base, **{name: 99}) for name in ("num_embeddings", "embedding_dim", "num_bags", "total_indices")
        ]
        others += [dataclasses.replace(base, mode=mode) for mode in ("mean", "max")]
        others += [dataclasses.replace(base, padding_idx=-1), dataclasses.replace(base, include_last_offset=True)]
        others.append(dataclasses.replace(base, offset_dtype="int32", index_dtype="int32"))
        return [base, *others, *([dataclasses.replace(base, scale_grad_by_freq=True)] if family is EMBEDDING_BAG else [])]
    if family is EMBEDDING:
        others += [dataclasses.replace(base, **{name: 99}) for name in ("num_embeddings", "embedding_dim", "num_indices")]
        others += [dataclasses.replace(base, padding_idx=-1), dataclasses.replace(base, index_dtype="int32")]
        return [base, *others, dataclasses.replace(base, scale_grad_by_freq=True)]
    if family in (SELECTIVE, SELECTIVE_BACKWARD):
        others += [dataclasses.replace(base, **{name: 99}) for name in ("batch", "dim", "length", "n", "num_sequences")]
        return [base, *others, *(dataclasses.replace(base, **{name: True}) for name in ("constant_b", "constant_c"))]
    others += [dataclasses.replace(base, shape=shape) for shape in ((), (5,), (6, 0), (37, 6))]
    if family is LERP:
        others += [dataclasses.replace(base, weight=w) for w in (0.0, 0.3, 1, -1e300, math.inf, -math.inf, math.nan)]
        others += [dataclasses.replace(base, weight_shape=(37,)), dataclasses.replace(base, a_shape=())]
    return [base, *others]


def test_descriptor_is_a_frozen_dataclass(family: Family) -> None:
    for descriptor in variants(family):
        assert dataclasses.is_dataclass(descriptor)
        with pytest.raises(dataclasses.FrozenInstanceError):
            descriptor.dtype = "float16"
        assert repr(descriptor).startswith(type(descriptor).__name__ + "(")
        assert "float" in repr(descriptor)


def test_descriptor_equality_and_hash(family: Family) -> None:
    every = variants(family)
    again = variants(family)
    assert every == again
    assert [hash(d) for d in every] == [hash(d) for d in again]
    assert len(set(every)) == len(every)
    assert len(set(every + again)) == len(every)


def test_descriptor_survives_json_and_pickle(family: Family) -> None:
    for descriptor in variants(family):
        text = descriptor.to_json()
        assert isinstance(text, str)
        for copy in (type(descriptor).from_json(text), pickle.loads(pickle.dumps(descriptor))):
            assert repr(copy) == repr(descriptor)
            assert copy == descriptor
            assert hash(copy) == hash(descriptor)
            assert copy.to_json() == text


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_dtype_spellings(family: Family, dtype: torch.dtype) -> None:
    """The name, torch's dtype and NumPy's are one."""
    descriptor = descriptor_of(family, dtype)
    assert dataclasses.replace(descriptor, dtype=name_of(dtype)) == descriptor
    assert dataclasses.replace(descriptor, dtype=dtype) == descriptor
    if dtype != torch.bfloat16:
        assert dataclasses.replace(descriptor, dtype=np.dtype(name_of(dtype))) == descriptor


def test_shape_spellings(family: Family) -> None:
    descriptor = descriptor_of(family)
    if family in (ROPE, ROPE_FORWARD):
        assert descriptor.shape == (1, 1, 6, 38)
        assert dataclasses.replace(descriptor, head_dim=np.int64(38), seq_len=6.0) == descriptor
        assert dataclasses.replace(descriptor, layout="thd").shape == (6, 1, 38)
        return
    if family in (SELECTIVE, SELECTIVE_BACKWARD):
        assert descriptor.shape == (1, *SHAPE)
        assert dataclasses.replace(descriptor, dim=np.int64(6), length=37.0) == descriptor
        return
    if family in (EMBEDDING_BAG, EMBEDDING_BAG_FORWARD, EMBEDDING):
        sizes = torch.Size((descriptor.num_embeddings, 37))
        assert dataclasses.replace(descriptor, num_embeddings=sizes[0], embedding_dim=np.int64(sizes[1])) == descriptor
        return
    assert dataclasses.replace(descriptor, shape=torch.Size(SHAPE)) == descriptor
    assert dataclasses.replace(descriptor, shape=np.empty(SHAPE).shape) == descriptor


SCAN = {"kind": "cummax", "shape": (2, 3), "dtype": "float32"}


def scan(**fields: Any) -> Any:
    return sw.ScanBackwardDescriptor(**{**SCAN, **fields})


class Pairs:
    """A sequence by its methods alone."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> int:
        return (2, 3)[i]


SHAPES = (
    (2, 3),
    [2, 3],
    range(2, 4),
    deque([2, 3]),
    torch.Size((2, 3)),
    np.array([2, 3]),
    torch.tensor([2, 3]),
    (np.int8(2), 3),
)


@pytest.mark.parametrize("shape", [*SHAPES, (np.int8(2), 3), Pairs()], ids=lambda value: type(value).__name__)
def test_shapes_are_sequences_of_integers(shape: Any) -> None:
    assert scan(shape=shape) == scan()
    assert all(type(n) is int for n in scan(shape=shape).shape)


NO_SHAPES = (
    {}, {2: 3}, {2: 3}.keys(), OrderedDict({2: 3}), MappingProxyType({2: 3}), set(), {2, 3}, frozenset((2, 3)), iter((2, 3)),
    (n for n in (2, 3)), "", "23", "ab", b"", b"ab", bytearray(b"ab"), memoryview(b"ab"), 6, None, object(), torch.Tensor,
    (2.0, 3), ("2", 3), (None,), ((2,), 3), np.array([2.5]), np.ones((2, 2), int), (2**63,), (10**5000, 1), range(10**15),
)  # fmt: skip


@pytest.mark.parametrize("shape", NO_SHAPES, ids=lambda value: type(value).__name__)
def test_what_is_no_shape(shape: Any) -> None:
    with pytest.raises(sw.InvalidProblemError, match="shape must be a sequence of integers") as caught:
        scan(shape=shape)
    assert (caught.value.op, caught.value.operand) == ("scan_backward", "shape")
    assert "\n" not in str(caught.value)
    with pytest.raises(sw.InvalidProblemError):
        dataclasses.replace(scan(), shape=shape)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda text: scan(kind=text), "kind"),
        (lambda text: scan(tie=text), "tie"),
        (lambda text: scan(dtype=text), "dtype"),
        (lambda text: sw.RopeBackwardDescriptor(1, 1, 3, 4, "float32", pairing=text), "pairing"),
        (lambda text: sw.RopeBackwardDescriptor(1, 1, 3, 4, "float32", angle=text), "angle"),
        (lambda text: sw.RopeBackwardDescriptor(1, 1, 3, 4, "float32", layout=text), "layout"),
        (lambda text: sw.EmbeddingBagBackwardDescriptor(3, 2, 1, 1, "float32", mode=text), "mode"),
        (lambda text: sw.EmbeddingBagBackwardDescriptor(3, 2, 1, 1, "float32", index_dtype=text), "index_dtype"),
        (lambda text: sw.EmbeddingBagBackwardDescriptor(3, 2, 1, 1, "float32", offset_dtype=text), "offset_dtype"),
        (lambda text: sw.EmbeddingBackwardDescriptor(3, 2, 1, "float32", index_dtype=text), "index_dtype"),
        (lambda text: sw.DequantizePerTokenBackwardDescriptor((2, 3), "float32", qdtype=text), "qdtype"),
        (lambda text: sw.DequantizePerTokenBackwardDescriptor((2, 3), "float32", scale_dtype=text), "scale_dtype"),
        (lambda text: sw.PlanPreference(kernel=text), "kernel"),
        (lambda text: sw.cummax_backward(np.ones(3), np.ones(3), tie=text), "tie"),
        (lambda text: sw.rope_backward(np.ones((1, 1, 3, 4)), pairing=text), "pairing"),
        (lambda text: sw.rope_backward(np.ones((1, 1, 3, 4)), angle=text), "angle"),
        (lambda text: sw.rope_backward(np.ones((1, 1, 3, 4)), layout=text), "layout"),
    ],
)
def test_empty_text_is_no_default(make: Any, field: str) -> None:
    with pytest.raises((sw.InvalidProblemError, sw.UnsupportedError), match=f"{field} must be") as caught:
        make("")
    assert "''" in str(caught.value) or '""' in str(caught.value)


def test_kind_of_a_scan_is_cumsum_unless_given() -> None:
    """The order of the fields stays; shape and dtype have no default although they follow one that has."""
    default = sw.ScanBackwardDescriptor(shape=(3,), dtype="float32")
    assert default == sw.ScanBackwardDescriptor("cumsum", (3,), "float32")
    assert default.kind == "cumsum"
    fields = "kind='cumsum', shape=(3,), dtype='float32', dim=-1, reverse=False, tie='last', carries=False"
    fields += ", num_sequences=None, exclusive=False"
    assert repr(default) == f"ScanBackwardDescriptor({fields})"
    assert pickle.loads(pickle.dumps(default)) == default == deepcopy(default)
    assert hash(default) == hash(sw.ScanBackwardDescriptor.from_json(default.to_json()))
    assert dataclasses.replace(default, kind="cumprod", dim=0) == sw.ScanBackwardDescriptor("cumprod", (3,), "float32", 0)
    for fields in ({}, {"kind": "cumsum"}, {"shape": (3,)}, {"dtype": "float32"}):
        with pytest.raises(TypeError, match=r"missing a required argument: '(shape|dtype)'"):
            sw.ScanBackwardDescriptor(**fields)
    with pytest.raises(sw.InvalidProblemError):
        sw.ScanBackwardDescriptor.from_json('{"kind": "cumsum", "shape": [3]}')


def test_scalars_of_numpy_are_options() -> None:
    assert scan(dim=np.int8(-2), reverse=np.True_, kind=np.str_("cummin")) == scan(dim=-2, reverse=True, kind="cummin")
    assert type(scan(reverse=np.bool_(False)).reverse) is bool
    preference = sw.PlanPreference(deterministic=np.False_, max_workspace=np.uint16(7), kernel=np.str_("rows"))
    assert preference == sw.PlanPreference(False, 7, "rows")
    assert sw.LerpBackwardDescriptor((3,), "float32", np.float32(0.5)) == sw.LerpBackwardDescriptor((3,), "float32", 0.5)
    ones = np.ones(3)
    assert sw.cumsum_backward(ones, np.int64(0), reverse=np.bool_(True)).tolist() == [1, 2, 3]
    assert sw.cumsum_backward(ones, reverse=np.bool_(False)).tolist() == [3, 2, 1]
    indices, offsets = np.array([0, 1]), np.array([0, 1, 2])
    bags = {
        "num_embeddings": np.int32(2),
        "include_last_offset": np.True_,
        "deterministic": np.True_,
        "padding_idx": np.int64(-1),
    }
    assert sw.embedding_bag_backward(np.ones((2, 1)), indices, offsets, **bags).tolist() == [[1], [0]]
    assert sw.unique_rows(indices, np.int64(5), padding_idx=np.int8(-1))[2].tolist() == [2]
    assert sw.lerp_backward(ones, np.True_)[1].tolist() == [1, 1, 1]


def test_an_option_means_the_same_on_every_call() -> None:
    """Plans are cached by the values of options: 1 equals True, and is refused all the same after it."""
    ones = np.ones(3)
    for _ in range(2):
        assert sw.cumsum_backward(ones, reverse=True).tolist() == [1, 2, 3]
        for wrong in (1, 1.0, "True", None):
            with pytest.raises(sw.InvalidProblemError, match="reverse must be True or False"):
                sw.cumsum_backward(ones, reverse=wrong)
        assert sw.cumsum_backward(ones[None], 1).tolist() == [[3, 2, 1]]
        for wrong in (True, np.True_):
            with pytest.raises(sw.InvalidProblemError, match="dim must be an integer of 64 bits"):
                sw.cumsum_backward(ones[None], wrong)


TEXTS = (
    "[" * 100_000, "{" * 100_000, '{"a":' * 3000 + "1" + "}" * 3000, '{"shape": ' + "[" * 2000 + "]" * 2000 + "}", "x" * 10_000,
    "1" * 10_000, "\0", "\ud800",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text[:9]!r} of {len(text)}")
def test_json_of_any_depth_is_refused(family: Family, text: str) -> None:
    with pytest.raises(sw.InvalidProblemError) as caught:
        type(descriptor_of(family)).from_json(text)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()
