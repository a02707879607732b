"""The pages of the reference: every public name has a place on exactly one of them, or the build of the site fails."""

from __future__ import annotations

import ast
import runpy
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREFIXES = {"sternway": "sw", "sternway.torch": "st", "sternway.torch.distributed": "std", "sternway.jax": "sj"}
"""The public modules, and the name under which the documents import each."""

SCANS = list(runpy.run_path(str(ROOT / "python/sternway/_kinds.py"))["KINDS"])
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
    "sternway.__version__": "The version of the installed package, a string; `0+source` if the package was never installed.",
    "sternway.jax.logcumsumexp": "Another name of `sj.cumlogsumexp`.",
}
"""Names that have no docstring of their own."""


def plans(*names: str) -> list[str]:
    """The descriptor and the plan of each problem."""
    return [name + suffix for name in names for suffix in ("Descriptor", "Plan")]


@dataclass(frozen=True)
class Page:
    """One page: names that a public module exports, and full names of objects that it does not export, such as base classes."""

    path: str
    title: str
    text: str
    names: list[str]
    module: str = "sternway"

    @property
    def public(self) -> list[str]:
        """The full names of the public objects on the page."""
        return [f"{self.module}.{name}" for name in self.names if "." not in name]

    @property
    def objects(self) -> dict[str, str]:
        """The place of each object on the page by its name in a program, such as `sw.cumsum`, in order."""
        prefix = PREFIXES[self.module]
        return {
            name.rpartition(".")[2] if "." in name else f"{prefix}.{name}": name if "." in name else f"{self.module}.{name}"
            for name in self.names
        }

    def markdown(self) -> str:
        """The page, with a directive of mkdocstrings for each name."""
        parts = [f"# {self.title}\n\n{self.text}\n"]
        for name, identifier in self.objects.items():
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
        [
            "sternway._plan.Plan",
            "sternway._descriptor.Descriptor",
            "PlanPreference",
            "KernelSku",
            "PrecisionGuarantee",
            "info",
            "get_num_threads",
            "set_num_threads",
            "__version__",
        ],
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
            "sternway.torch._patch_rope.RopePatch",
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
    Page(
        "jax",
        "sternway.jax",
        "Functions for JAX, imported as `sj`: see [JAX](../jax.md).",
        [
            *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "logcumsumexp"),
            "lerp",
            "rope",
            "dequantize_per_token",
            "fake_quantize_per_token",
            "embedding",
            "embedding_bag",
        ],
        module="sternway.jax",
    ),
]


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
    shown = [name for page in PAGES for name in page.public]
    wrong = sorted(name for name in {*public, *shown} if (public.count(name), shown.count(name)) != (1, 1))
    if wrong:
        raise ValueError(f"public names and the pages of docs/site/reference.py differ in {', '.join(wrong)}")


def links() -> dict[str, str]:
    """The place of the object that inline code of a document names: `sw.cumsum`, or an error without its module."""
    found = {name: there for page in PAGES for name, there in page.objects.items() if "." in name and there not in TEXT}
    return found | {name: f"sternway.{name}" for name in ERRORS if name != "Error"}


def resolved(name: str, path: str) -> str | None:
    """The place of the object that a name means in the docstring of the object at a path. None: no page has it."""
    modules = [module for module in reversed(PREFIXES) if path.startswith(f"{module}.")]
    places = {there for page in PAGES for there in page.objects.values()}
    for full in (name, *(f"{module}.{name}" for module in [*modules, "sternway._plan", "sternway._descriptor"])):
        if full in places:
            return full
    return None
