"""Descriptors: frozen, comparable, hashable, printable, and the same after JSON and pickle."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from families import EMBEDDING_BAG, LERP, ROPE, Family, make
from support import F32, FLOATS, name_of

SHAPE = (6, 37)


def descriptor_of(family: Family, dtype: torch.dtype = F32) -> Any:
    return make(family, SHAPE, dtype, "cpu").descriptor


def variants(family: Family) -> list[Any]:
    """Descriptors of one family that differ in one field each."""
    base = descriptor_of(family)
    others = [dataclasses.replace(base, dtype=name_of(dtype)) for dtype in FLOATS if dtype != F32]
    if family is ROPE:
        others += [dataclasses.replace(base, **{name: 64}) for name in ("batch_size", "seq_len", "head_dim", "num_key_heads")]
        others += [dataclasses.replace(base, pairing="interleaved"), dataclasses.replace(base, base=5e5)]
        return [base, *others]
    if family is EMBEDDING_BAG:
        others += [
            dataclasses.replace(base, **{name: 99}) for name in ("num_embeddings", "embedding_dim", "num_bags", "total_indices")
        ]
        others += [dataclasses.replace(base, mode=mode) for mode in ("mean", "max")]
        others += [dataclasses.replace(base, padding_idx=-1), dataclasses.replace(base, include_last_offset=True)]
        return [base, *others, dataclasses.replace(base, scale_grad_by_freq=True, offset_dtype="int32", index_dtype="int32")]
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
    if family is ROPE:
        assert descriptor.shape == (1, 1, 6, 38)
        assert dataclasses.replace(descriptor, head_dim=np.int64(38), seq_len=6.0) == descriptor
        assert dataclasses.replace(descriptor, layout="thd").shape == (6, 1, 38)
        return
    if family is EMBEDDING_BAG:
        sizes = torch.Size((descriptor.num_embeddings, 37))
        assert dataclasses.replace(descriptor, num_embeddings=sizes[0], embedding_dim=np.int64(sizes[1])) == descriptor
        return
    assert dataclasses.replace(descriptor, shape=torch.Size(SHAPE)) == descriptor
    assert dataclasses.replace(descriptor, shape=np.empty(SHAPE).shape) == descriptor
