"""The command line, ``python -m sternway``: info, selftest, demo and bench."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
from typing import Any

import sternway

from ._requirements import TORCH
from ._show import info_rows


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code."""
    top = parser()
    options = top.parse_args(arguments)
    if options.command is None:
        top.print_help()
        return 0
    try:
        return int(options.command(options))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except sternway.Error as error:
        print(error, file=sys.stderr)
        return 2
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if error.name == "sternway.bench":
            print("This is part of the installed package, not of python/ in the source tree: pip install .", file=sys.stderr)
            return 2
        if package in ("", "sternway"):
            raise
        requirement = f"'{TORCH}'" if package == "torch" else package
        everything = f"pip install '.[{options.extra}]' in a clone installs all that this command needs"
        print(f"This needs {package}, which is not installed: pip install {requirement}; {everything}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        prog="python -m sternway", description="Exact, deterministic gradients at the speed of memory."
    )
    top.add_argument("--version", action="version", version=f"sternway {sternway.__version__}")
    top.set_defaults(command=None)
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, body: Any, extra: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        added.set_defaults(command=body, extra=extra)
        return added

    info = command("info", run_info, "torch", "show versions, backends, GPUs, driver, kernel image and threads")
    info.add_argument("--json", action="store_true", help="as one JSON object")

    selftest = command(
        "selftest", run_selftest, "torch", "check every operation in every dtype on every device against float64"
    )
    selftest.add_argument("--device", help="cpu, cuda or cuda:N; all that are there by default")

    demo = command("demo", run_demo, "demo", "compare every gradient with torch.autograd and with float64 on real data")
    demo.add_argument("--all", action="store_true", dest="everything", help="forwards, float16 and float64, too")

    bench = command("bench", run_bench, "bench", "measure against torch in the same process")
    bench.add_argument(
        "family",
        nargs="?",
        help="lerp, dequantize, ...; host: a call itself; exactness: errors; growth: longer scans; carries: scans in chunks; "
        "recurrence: linear recurrences; selective: selective scans; packed: packed sequences and exclusive scans; "
        "quantize: scales of tensors, tokens, channels, groups and blocks; embedding: embedding bags; "
        "sparse: their sparse gradients; "
        "jax: against JAX; ranks: several GPUs, under torchrun; step: whole training steps; every operation by default",
    )
    bench.add_argument("--device", default=None, help="cpu, cuda or cuda:N; a GPU by default where there is one")
    bench.add_argument(
        "--rows",
        default="",
        metavar="TEXT",
        help="only rows whose name, shape and dtype contain TEXT, without the shape in growth; host, exactness, carries, "
        "sparse and ranks have no choice",
    )
    bench.add_argument(
        "--shapes",
        type=shapes,
        default=(),
        metavar="AxB,CxD",
        help="these shapes instead of the table's; of operations, embedding and step",
    )
    bench.add_argument("--csv", metavar="FILE", help="write the rows to FILE")
    bench.add_argument("--plot", metavar="FILE", help="draw the rows of operations or of step to FILE (png, svg or pdf)")
    bench.add_argument(
        "--quick",
        action="store_true",
        help="small shapes and few dtypes, with few repetitions on the CPU, in about 10 s on 2 cores: times are rough. A "
        "disturbed measurement is not repeated; torch.compile, the time with new outputs, and one axis of JAX's scans are "
        "left out. Not of ranks",
    )
    bench.add_argument("--limit", type=float, metavar="SECONDS", help="of step: begin no row after so many seconds")
    bench.add_argument("--commit", metavar="NAME", help="the commit that the CSV names; by default that of the source, by git")
    selftest.add_argument("--quiet", action="store_true", help="only the rows that fail, and the summary; no progress")
    for long in (demo, bench):
        long.add_argument("--quiet", action="store_true", help="no progress on standard error; the table stays")
    return top


def shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """Parse shapes such as 8191x8193,64x50257."""
    return tuple(tuple(map(int, shape.split("x"))) for shape in text.split(","))


def run_info(options: argparse.Namespace) -> int:
    """Versions, backends, devices, kernel image, threads."""
    facts = sternway.info()
    facts["torch"] = facts["torch"] or installed("torch")
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0
    facts["torch"] = facts["torch"] or "not installed"
    for title, words in info_rows(facts).items():
        print(f"{title:<13} {words}")
    return 0


def installed(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def run_selftest(options: argparse.Namespace) -> int:
    """Compare every case with float64."""
    from ._selftest import selftest

    return selftest(options.device, quiet=options.quiet)


def run_demo(options: argparse.Namespace) -> int:
    """Compare gradients on real data."""
    from ._demo import demo

    return demo(everything=options.everything, quiet=options.quiet)


def run_bench(options: argparse.Namespace) -> int:
    """Run the benchmark."""
    from .bench import bench

    return bench(options)


if __name__ == "__main__":
    sys.exit(main())
