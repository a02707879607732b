"""Private words that still tempt, and the standard terms of the field for them, for test_words.py.

A word is matched in one of two shapes. PART: one part of an identifier, in any spelling (`kAgain`, `product_again`,
`again`), in code, comments and documents. NAME: a regular expression for a whole identifier of code; comments and strings
are not read, because the word is ordinary English there. Files are named by globs from the root of the repository; a later
glob of `files` that begins with "!" takes files out again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ALL = ("*",)
CUDA = ("cuda/*",)
SCAN = ("cuda/scan/*", "core/internal/ops/scan/*", "core/internal/coretest/*")
C = ("cuda/*.cu*", "core/*.c", "core/*.h", "pybind/*.c", "pybind/*.h")
NATIVE = ("cuda/*", "core/*", "pybind/*")
CODE = (*NATIVE, "python/*", "tools/*.py", "examples/*")
AUTOGRAD = ("python/sternway/torch/_autograd/*", "python/sternway/torch/_served.py", "python/sternway/torch/_accelerate.py")


GO_TOLD = {"core/driver/driver_test.go": "tellError prints an error for the golden text"}
ROOM = {"core/internal/ops/scan/*_test.go": "room in memory around an output"}


@dataclass(frozen=True)
class Word:
    """A private word, what to write in its place, and where it is legitimate: {glob: reason}."""

    shape: str
    pattern: str
    standard: str
    files: tuple[str, ...] = ALL
    exceptions: dict[str, str] = field(default_factory=dict)
    planted: str = ""  # an identifier that the entry must find; the pattern itself if it is a plain word


def part(words: str, standard: str, files: tuple[str, ...] = ALL, exceptions: dict[str, str] | None = None) -> list[Word]:
    """An entry for each of several words that are matched as a part of an identifier."""
    return [Word("part", word, standard, files, exceptions or {}, word) for word in words.split()]


def name(
    pattern: str, standard: str, planted: str, files: tuple[str, ...] = NATIVE, exceptions: dict[str, str] | None = None
) -> list[Word]:
    """An entry that is matched as a whole identifier of code."""
    return [Word("name", pattern, standard, files, exceptions or {}, planted)]


WORDS: list[Word] = [
    # Numerics and the algebra of scans
    *part("tame tamed", "fast path, FastPath, is_fast"),
    *part("undone", "needs_fallback", NATIVE),
    *part("fault faults", "rejection, reject_range", SCAN),
    *part("moderate", "bounded inputs"),
    *part("renew renewed", "rematerialize"),
    *part("opaque", "keep_here (optimization barrier)", CUDA),
    *name(r"\w*[a-z0-9]Again(?![a-z])\w*|kAgain|\w+_again|again_\w+", "fallback pass, kRecomputed", "product_again"),
    *name(r"Heads?|head_before|tail_after|Tails?|ahead|behind", "prefix, suffix", "Head", C),
    *name(r"join|Join\w*", "combine", "join", C),
    *name(r"Far|Near|far|to_far|from_far|entering|leaving|let_in", "carry, to_carry, from_carry", "Far", C),
    *name(r"Cells?|cells?|kCells?", "ThreadScan; word of a bitmap", "Cell"),
    *part("winner won", "record (of a maximum), max_indices (of an embedding bag)", NATIVE),
    *part("winners", "max_indices", CODE),
    # One spelling, the American one of the names in code; "neighbours" is a value of the public interface
    *part("quantise quantised quantises quantisation dequantise dequantised dequantises dequantisation", "quantize"),
    *part(
        "vectorised normalised normalise initialised optimiser synchronisation behaviour colour colours", "-ize, -ization, -or"
    ),
    *name(r"Dtypes?", "DTypes", "Dtypes", ("core/*", "pybind/*")),
    # Geometry and selection
    *name(r"[Ss]trips?|[a-z]+Strips?|\w+_strips?", "panel (columns), row, block of lanes", "kept_strips"),
    *name(r"[Pp]arts|cut|cuts|uncut", "splits, split", "parts"),
    *name(r"[Pp]ieces?|kPieces?", "row_cluster, slice", "pieces"),
    *name(r"[Ss]labs?|kSlabs?|slab_\w+", "column_cluster", "slabs"),
    *name(r"quick|quicker\w*|quickest|kQuick\w*", "candidates, fast path", "quickerColumns"),
    *name(r"walked|walkedTiles|kWalk\w*|Walk(?!Dir)\w*|walk|\w+Walk", "tile, tilesPerRow; iteration space", "Walk"),
    *name(r"[Tt]akeTurns|take_turns|Turns?|Turner|turn", "persistent CTAs, WorkItem; rotate", "take_turns"),
    *name(r"dense|kDense", "vectorized, kVectorized", "kDense", SCAN),
    *name(r"leads|kLeads|lead_of", "misalignment, kMisaligned, alignment_offset", "kLeads", SCAN),
    *name(r"[Tt]ogether|\w*Together|kTeam\w*|Teams?", "cooperative row, cooperative launch", "kTogether"),
    *name(r"spread", "grid_resident, parallelFor", "spread"),
    # Memory, synchronization, host
    *name(r"[Rr]ings?|kRing\w*", "multi-stage cp.async pipeline, AsyncPipeline", "Ring"),
    *name(r"[Tt]old|hears?|packet|tells?", "tile status, TileStatus::publish, wait", "Told", ("cuda/*", "core/*.go"), GO_TOLD),
    *name(r"meet|meet_cluster|meet_device|meets", "cluster_sync, grid_sync", "meet_cluster"),
    *name(r"[Rr]ooms?", "smem, scratch", "rooms", ("cuda/*", "core/*"), ROOM),
    *part("crew hire hires dismiss dismisses patience", "worker pool, acquire, release, spinTime"),
    *name(r"helpers?|soon", "worker, spinUntil", "helper", ("core/internal/threads/*", "core/internal/cpu/*")),
    *part("recipe recipes", "launch cache", NATIVE),
    *name(r"[Rr]efuse[A-Z]\w*|refuse|refuse_\w+", "errs.New; a name of the error", "refuseDType"),
    *name(r"ask|aim|asked", "prefetch_tile, set_work_item; select_or_raise", "ask", (*CUDA, *AUTOGRAD)),
    # The machinery behind the drop-ins
    *name(r"way|each|in_front|[Tt]wice", "recorded_call, vmap_by_loop, batch_first, DoubleBackward", "in_front", AUTOGRAD),
    *name(r"how|How|own|kept|named", "options, use_our_forward, saved_values, with_public_names", "how", AUTOGRAD),
    *name(r"[Ss]entence|is_final|materialized", "selection_error, needs_no_graph, resolve", "is_final", AUTOGRAD),
]
