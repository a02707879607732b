"""The pages of the reference: every public name has a place on exactly one of them, or the build of the site fails."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

PREFIXES = {"sternway": "sw", "sternway.torch": "st", "sternway.torch.distributed": "std"}
"""The public modules, and the name under which the documents import each."""

SCANS = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]
ERRORS = [
    "Error",
    "UnsupportedError",
    "InvalidProblemError",
    "BufferTooSmallError",
    "WorkspaceTooSmallError",
    "MisalignedOperandError",
    "DeviceError",
]
TEXT = {
    "sternway.__version__": "The version of the installed package, a string; `0+source` if the package was never installed."
}
"""Names that have no docstring of their own."""


def plans(*names: str) -> list[str]:
    """The descriptor and the plan of each problem."""
    return [name + suffix for name in names for suffix in ("Descriptor", "Plan")]


@dataclass(frozen=True)
class Page:
    """One page: the names of one module, and names beside them that the module does not export, such as base classes."""

    path: str
    title: str
    text: str
    names: list[str]
    module: str = "sternway"
    others: tuple[str, ...] = ()

    @property
    def identifiers(self) -> list[str]:
        """The full names of the objects on the page, in order."""
        return [*self.others, *(f"{self.module}.{name}" for name in self.names)]

    def markdown(self) -> str:
        """The page, with a directive of mkdocstrings for each name."""
        parts = [f"# {self.title}\n\n{self.text}\n"]
        for identifier in self.identifiers:
            name = label(identifier)
            if identifier in TEXT:
                parts.append(f"## {name.replace('_', chr(92) + '_')}\n\n{TEXT[identifier]}\n")
            else:
                parts.append(f"::: {identifier}\n    options:\n      heading: {name}\n      toc_label: {name}\n")
        return "\n".join(parts)


PAGES = [
    Page(
        "plans",
        "Plans and settings",
        "What all plans and descriptors share, and the settings of the process. The examples import `sternway` as `sw`.",
        ["PlanPreference", "KernelSku", "PrecisionGuarantee", "info", "get_num_threads", "set_num_threads", "__version__"],
        others=("sternway._plan.Plan", "sternway._descriptor.Descriptor"),
    ),
    Page(
        "scans",
        "Scans",
        "Cumulative sums, products, maxima, minima and log-sum-exps, and their gradients.",
        [*(f"{name}_backward" for name in SCANS), *SCANS, *plans("ScanBackward", "Scan")],
    ),
    Page(
        "rope",
        "RoPE",
        "Rotary position embedding and its gradient.",
        ["rope", "rope_backward", *plans("RopeBackward", "Rope")],
    ),
    Page(
        "quantization",
        "Quantization",
        "Dequantization and fake quantization with a scale for each token, and their gradients.",
        [
            "dequantize_per_token",
            "dequantize_per_token_backward",
            "fake_quantize_per_token",
            "fake_quantize_per_token_backward",
            *plans("DequantizePerTokenBackward", "DequantizePerToken"),
            *plans("FakeQuantizePerTokenBackward", "FakeQuantizePerToken"),
        ],
    ),
    Page(
        "lerp",
        "Linear interpolation",
        "The gradient of a linear interpolation with broadcasting.",
        ["lerp_backward", *plans("LerpBackward")],
    ),
    Page(
        "embeddings",
        "Embeddings",
        "Gradients of embeddings and embedding bags, and the unique rows among indices.",
        [
            "embedding_backward",
            "embedding_bag_backward",
            "embedding_bag_per_sample_weights_backward",
            "unique_rows",
            *plans("EmbeddingBackward", "EmbeddingBagBackward", "UniqueRows"),
        ],
    ),
    Page("errors", "Errors", "Causes and remedies are in [troubleshooting](../troubleshooting.md#errors-by-class).", ERRORS),
    Page(
        "torch",
        "sternway.torch",
        "Functions and modules for tensors that require gradients, imported as `st`: see [Autograd](../autograd.md).",
        [
            "accelerate",
            *SCANS,
            "lerp",
            "rope",
            "apply_rotary_pos_emb",
            "rope_tables",
            "patch_rope",
            "dequantize_per_token",
            "fake_quantize_per_token",
            "embedding",
            "Embedding",
            "embedding_bag",
            "EmbeddingBag",
        ],
        module="sternway.torch",
    ),
    Page(
        "distributed",
        "sternway.torch.distributed",
        "Operations on tensors that ranks share, imported as `std`: see [More than one GPU](../distributed.md).",
        [*SCANS, "positions", "ShardedEmbeddingBag"],
        module="sternway.torch.distributed",
    ),
]


def label(identifier: str) -> str:
    """The name of an object as a program writes it: `sw.cumsum`; a base class without its module."""
    module, _, name = identifier.rpartition(".")
    return f"{PREFIXES[module]}.{name}" if module in PREFIXES else name


def exported(root: Path) -> list[str]:
    """The full names in `__all__` of the public modules, read from their source."""
    names = []
    for module in PREFIXES:
        tree = ast.parse((root / "python" / module.replace(".", "/") / "__init__.py").read_text())
        assignments = [node for node in tree.body if isinstance(node, ast.Assign)]
        [value] = [node.value for node in assignments if ast.unparse(node.targets[0]) == "__all__"]
        names += [f"{module}.{name}" for name in ast.literal_eval(value)]
    return names


def check(root: Path) -> None:
    """Compare the pages with the modules.

    Raises:
        ValueError: a public name is on no page or on two, or a page has a name that is not public.
    """
    public = exported(root)
    shown = [f"{page.module}.{name}" for page in PAGES for name in page.names]
    wrong = sorted(name for name in {*public, *shown} if (public.count(name), shown.count(name)) != (1, 1))
    if wrong:
        raise ValueError(f"public names and the pages of docs/site/reference.py differ in {', '.join(wrong)}")


def links() -> dict[str, str]:
    """The object that an inline code span of a document names, by the text of the span: `sw.cumsum` and `sw.cumsum()`."""
    shown = [identifier for page in PAGES for identifier in page.identifiers if identifier not in {*page.others, *TEXT}]
    return {label(name): name for name in shown} | {name: f"sternway.{name}" for name in ERRORS if name != "Error"}
