"""Tables of cosines and sines for rotary embeddings, as the models of transformers make them.

- ``models``: the model types that are understood, and the rotary class that each has, in one table.
- ``settings``: reads a configuration or a mapping, checks every key, and gives a :class:`frequencies.Rope`.
- ``frequencies``: the rope types, their keys and their formulas, in one table.
- ``columns``: which axis of the positions and which frequency each column of a table belongs to.
- ``tables``: :func:`rope_tables`.

Nothing here imports transformers: a configuration is read by its attributes.
"""

from .tables import rope_tables

__all__ = ["rope_tables"]
