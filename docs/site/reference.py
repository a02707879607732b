"""The pages of the reference: every public name has a place on exactly one of them, or the build of the site fails."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREFIXES = {"sternway": "sw", "sternway.torch": "st", "sternway.torch.distributed": "std", "sternway.jax": "sj"}
"""The public modules, and the name under which the documents import each."""

TEXT = {
    "sternway.__version__": "The version of the installed package, a string; `0+source` if the package was never installed.",
    "sternway.jax.logcumsumexp": "Another name of `sj.cumlogsumexp`.",
}
"""Names that have no docstring of their own."""


def stated(*modules: str) -> list[str]:
    """The names in `__all__` of some modules, read from their source: functions before classes.

    A package names its modules there, as in `*_scan.__all__`.
    """
    names: list[str] = []
    for module in modules:
        path = ROOT / "python" / module.replace(".", "/")
        tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
        assignments = [node for node in tree.body if isinstance(node, ast.Assign)]
        [value] = [node.value for node in assignments if ast.unparse(node.targets[0]) == "__all__"]
        for entry in value.elts:
            part = ast.unparse(entry)
            names += stated(f"{module}.{part[1:].removesuffix('.__all__')}") if part[0] == "*" else [ast.literal_eval(entry)]
    return sorted(names, key=lambda name: name[0].isupper())


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

    def source(self) -> Path:
        """The file of the public module whose names the page has."""
        path = ROOT / "python" / self.module.replace(".", "/")
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def markdown(self) -> str:
        """The page: links to its names, as a phone hides the table of contents, and a directive of mkdocstrings for each."""
        links = [f"[`{name}`][{there}]" for name, there in self.objects.items() if there not in TEXT]
        parts = [f"# {self.title}\n\n{self.text}\n\n{', '.join(links)}\n"]
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
            *stated("sternway._sku", "sternway._library"),
            "__version__",
        ],
    ),
    Page(
        "scans",
        "Scans",
        "The cumulative operations, and their gradients.",
        stated("sternway._scan", "sternway._scan_forward"),
    ),
    Page(
        "recurrences",
        "Linear recurrences",
        "The recurrence `h[t] = a[t] * h[t-1] + b[t]`, and its gradients.",
        stated("sternway._linear_recurrence", "sternway._linear_recurrence_backward"),
    ),
    Page(
        "selective_scan",
        "Selective scan",
        "The recurrence of Mamba, and its gradients.",
        stated("sternway._selective_scan", "sternway._selective_scan_backward"),
    ),
    Page("rope", "RoPE", "Rotary position embedding and its gradient.", stated("sternway._rope")),
    Page(
        "quantization",
        "Quantization",
        "Dequantization and fake quantization with a scale for each token, and their gradients.",
        stated(
            "sternway._dequantize",
            "sternway._dequantize_backward",
            "sternway._fake_quantize",
            "sternway._fake_quantize_backward",
        ),
    ),
    Page(
        "lerp",
        "Linear interpolation",
        "The gradient of a linear interpolation with broadcasting.",
        stated("sternway._lerp"),
    ),
    Page(
        "embeddings",
        "Embeddings",
        "Embedding bags, gradients of embeddings and embedding bags, and the unique rows among indices.",
        stated(
            "sternway._embedding",
            "sternway._embedding_bag",
            "sternway._embedding_bag_forward",
            "sternway._embedding_bags",
            "sternway._unique_rows",
        ),
    ),
    Page(
        "errors",
        "Errors",
        "Causes and remedies are in [troubleshooting](../troubleshooting.md#errors-by-class).",
        stated("sternway.errors"),
    ),
    Page(
        "torch",
        "sternway.torch",
        "Functions and modules for tensors that require gradients, imported as `st`: see [Autograd](../autograd.md).",
        [*stated("sternway.torch"), "sternway.torch._patches.Patch"],
        module="sternway.torch",
    ),
    Page(
        "distributed",
        "sternway.torch.distributed",
        "Operations on tensors that ranks share, imported as `std`: see [More than one GPU](../distributed.md).",
        stated("sternway.torch.distributed"),
        module="sternway.torch.distributed",
    ),
    Page(
        "jax",
        "sternway.jax",
        "Functions for JAX, imported as `sj`: see [JAX](../jax.md).",
        stated("sternway.jax"),
        module="sternway.jax",
    ),
]


def exported() -> list[str]:
    """The full names in `__all__` of the public modules."""
    return [f"{module}.{name}" for module in PREFIXES for name in stated(module)]


def check() -> None:
    """Compare the pages with the modules.

    Raises:
        ValueError: a public name is on no page or on two, or a page has a name that is not public.
    """
    public = exported()
    shown = [name for page in PAGES for name in page.public]
    wrong = sorted(name for name in {*public, *shown} if (public.count(name), shown.count(name)) != (1, 1))
    if wrong:
        raise ValueError(f"public names and the pages of docs/site/reference.py differ in {', '.join(wrong)}")


def links() -> dict[str, str]:
    """The place of the object that inline code of a document names: `sw.cumsum`, or an error without its module."""
    found = {name: there for page in PAGES for name, there in page.objects.items() if "." in name and there not in TEXT}
    return found | {name: f"sternway.{name}" for name in stated("sternway.errors") if name != "Error"}


def resolved(name: str, path: str) -> str | None:
    """The place of the object that a name means in the docstring of the object at a path. None: no page has it."""
    modules = [module for module in reversed(PREFIXES) if path.startswith(f"{module}.")]
    places = {there for page in PAGES for there in page.objects.values()}
    for full in (name, *(f"{module}.{name}" for module in [*modules, "sternway._plan", "sternway._descriptor"])):
        if full in places:
            return full
    return None
