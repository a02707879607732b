"""Runs the notebooks from top to bottom on the CPU, and compares their outputs with the committed ones.

    python tools/notebooks.py                           fail where a fresh run gives other outputs
    python tools/notebooks.py --write                   commit the outputs of this run
    python tools/notebooks.py notebooks/01_start.ipynb  these notebooks alone
    python tools/notebooks.py --gpu notebooks/05_embedding_bag.ipynb --output notebooks/gpu/05_embedding_bag.ipynb

The last command runs one notebook on a GPU, and writes a copy that names the card. It needs no build tools: sternway may be an
unpacked wheel on PYTHONPATH, beside torch, nbclient, ipykernel, matplotlib, tqdm and what else the notebook imports.

Text is the same outside of numbers, and so are whole numbers. Other numbers agree within 2 % or one unit of their last digit,
as processors and versions of torch round differently. Of an image only its presence is compared. Tags of a cell say what else
a fresh run may change:

    varies     numbers: times, and what depends on the files of this Python
    unchecked  all text: only the kinds of the outputs are compared
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 300_000  # bytes of a committed notebook
TIMEOUT = 600  # seconds of a cell
TOLERANCE = 0.02  # relative difference of a number that is the same
ON_CPU = "The committed outputs are those of a run on a CPU; where there is a GPU, the notebook runs on it."
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)[^)#\s]+")  # to a file; without the anchor
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")

Output = tuple[str, str]  # kind, text


def joined(text: str | list[str]) -> str:
    """A text of a notebook file, which may be a list of lines."""
    return text if isinstance(text, str) else "".join(text)


def as_on_screen(text: str) -> str:
    """What remains visible of a text with carriage returns, such as a progress bar that has erased itself."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return "\n".join(lines)


def cleaned(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell with one entry for each stream, without erased text and without metadata of the run."""
    kept: list[dict[str, Any]] = []
    for output in cell["outputs"]:
        if output["output_type"] != "stream":
            kept.append({**output, "metadata": {}} if "metadata" in output else output)
        elif kept and kept[-1].get("name") == output["name"]:
            kept[-1]["text"] = joined(kept[-1]["text"]) + joined(output["text"])
        else:
            kept.append({**output, "text": joined(output["text"])})
    for output in kept:
        if output["output_type"] == "stream":
            output["text"] = as_on_screen(output["text"])
    return [output for output in kept if output["output_type"] != "stream" or output["text"].strip()]


def outputs_of(cell: dict[str, Any]) -> list[Output]:
    """The outputs of a cell as kinds and texts, which are empty for images."""
    found: list[Output] = []
    for output in cleaned(cell):
        if output["output_type"] == "stream":
            found.append((output["name"], output["text"]))
        elif output["output_type"] == "error":
            found.append(("error", f"{output['ename']}: {output['evalue']}"))
        else:
            data = output["data"]
            found += [(kind, "" if kind.startswith("image/") else joined(data[kind])) for kind in sorted(data)]
    return found


def same_number(first: str, second: str) -> bool:
    """Whether two numbers agree: whole numbers exactly, others within 2 % or one unit of the last digit."""
    if first == second or re.fullmatch(r"[\d,]+", first):
        return first == second
    values = [float(text.replace(",", "")) for text in (first, second)]
    mantissa, _, exponent = first.lower().partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return math.isclose(*values, rel_tol=TOLERANCE) or abs(values[0] - values[1]) <= 1.01 * unit


def same_text(first: str, second: str, varies: bool) -> bool:
    """Whether two texts are the same, apart from spaces and from the value of numbers within what may change."""
    words = [NUMBER.sub("#", text).split() for text in (first, second)]
    if words[0] != words[1]:
        return False
    numbers = [NUMBER.findall(text) for text in (first, second)]
    return varies or all(map(same_number, *numbers))


def difference(committed: dict[str, Any], fresh: dict[str, Any]) -> str:
    """What differs in the outputs of a cell; empty if nothing does."""
    tags = committed["metadata"].get("tags", [])
    old, new = outputs_of(committed), outputs_of(fresh)
    kinds = [", ".join(kind for kind, _ in outputs) or "none" for outputs in (new, old)]
    if kinds[0] != kinds[1]:
        return f"the outputs are {kinds[0]}, and not, as committed, {kinds[1]}"
    for (kind, before), (_, after) in zip(old, new, strict=True):
        if "unchecked" not in tags and not same_text(before, after, "varies" in tags):
            return f"{kind} is\n{after}\nand not, as committed,\n{before}"
    return ""


def faults(notebook: dict[str, Any], size: int) -> list[str]:
    """What must not be in the outputs of a notebook: warnings and errors, paths of a machine, many bytes."""
    found = [f"has {size} bytes, more than {LARGEST}"] if size > LARGEST else []
    homes = {str(ROOT), str(Path.home()), "site-packages"} - {"/"}
    for number, cell in enumerate(notebook["cells"]):
        for kind, text in outputs_of(cell) if cell["cell_type"] == "code" else ():
            if kind in ("stderr", "error") or "Warning:" in text:
                found.append(f"cell {number} prints a warning or an error: {text.strip()}")
            found += [f"cell {number} names the path {home}" for home in sorted(homes) if home in text]
    return found


def execute(path: Path) -> Any:
    """The notebook after a run, on the CPU if CUDA_VISIBLE_DEVICES is empty."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    without_tkinter = "--IPKernelApp.exec_lines=import sys; sys.modules['tkinter'] = None"  # as is the Python of Debian
    client = nbclient.NotebookClient(
        notebook, timeout=TIMEOUT, record_timing=False, resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=[without_tkinter],
    )  # fmt: skip
    client.execute()
    return notebook


def save(notebook: Any, fresh: Any, path: Path) -> None:
    """Write a notebook to a file with the outputs of a fresh run."""
    import nbformat

    for cell, ran in zip(notebook["cells"], fresh["cells"], strict=True):
        if cell["cell_type"] == "code":
            cell["outputs"] = [nbformat.from_dict(output) for output in cleaned(ran)]  # type: ignore[no-untyped-call]
            cell["execution_count"] = ran["execution_count"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nbformat.writes(notebook).rstrip("\n") + "\n")  # type: ignore[no-untyped-call]


def name_the_card(notebook: Any, machine: str, path: Path, output: Path) -> None:
    """Begin a notebook with the machine of its run, and let its links start from the folder of the output.

    Raises:
        ValueError: the notebook has no sentence about its outputs, as it always runs on the CPU.
    """
    first = joined(notebook["cells"][0]["source"])
    if ON_CPU not in first:
        raise ValueError(f"{path.name} runs on the CPU alone")
    title, _, text = first.replace(ON_CPU, "").rstrip().partition("\n")
    run = f"**A run on one {machine}.** [{path.name}]({path.name}) has the outputs of a CPU."
    notebook["cells"][0]["source"] = f"{title}, on a GPU\n\n{run}\n{text}"

    def moved(match: re.Match[str]) -> str:
        return Path(os.path.relpath(path.parent / match[0], output.parent)).as_posix()

    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = LINK.sub(moved, joined(cell["source"]))


def run_on_gpu(path: Path, output: Path) -> list[str]:
    """Run a notebook on a GPU, write it to another file, and return what is wrong with it."""
    import nbformat
    from sternway.bench.report import machine

    from sternway._cases.source import cuda_devices

    devices, reason = cuda_devices()
    if not devices:
        return [f"there is no GPU to run on: {reason}"]
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    name_the_card(notebook, machine("cuda"), path, output)
    save(notebook, execute(path), output)
    wrong = faults(notebook, output.stat().st_size)
    if not any("device: cuda\n" in text for cell in notebook["cells"] if "outputs" in cell for _, text in outputs_of(cell)):
        wrong.append("no output says that the device is cuda")
    return wrong


def run(path: Path, write: bool) -> list[str]:
    """Run a notebook, and return what is wrong with it."""
    import nbformat

    committed = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    fresh = execute(path)
    if write:
        save(committed, fresh, path)
        return faults(committed, path.stat().st_size)
    wrong = faults(fresh, path.stat().st_size)
    for number, (cell, ran) in enumerate(zip(committed["cells"], fresh["cells"], strict=True)):
        if cell["cell_type"] == "code" and (text := difference(cell, ran)):
            wrong.append(f"cell {number}: {text}")
    return wrong


def main() -> int:
    """Run the notebooks, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(ROOT.glob("notebooks/*.ipynb")))
    parser.add_argument("--write", action="store_true", help="write the outputs into the notebooks")
    parser.add_argument("--gpu", action="store_true", help="run one notebook on a GPU; needs --output")
    parser.add_argument("--output", type=Path, help="the notebook that --gpu writes")
    options = parser.parse_args()
    if options.gpu and (len(options.notebooks) != 1 or options.output is None):
        parser.error("--gpu needs one notebook and --output")
    if not options.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    failed = 0
    for path in options.notebooks:
        began = time.perf_counter()
        wrong = run_on_gpu(path, options.output) if options.gpu else run(path, options.write)
        print(f"{path.name}: {time.perf_counter() - began:.1f} s, {path.stat().st_size / 1000:.0f} kB", flush=True)
        for text in wrong:
            print(f"{path.name}: {text}", file=sys.stderr)
        failed += bool(wrong)
    if failed and not options.write and not options.gpu:
        print("run `make notebooks ARGS=--write` if the outputs are meant to change", file=sys.stderr)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
