"""The private words that the standard terms of the field replaced, for test_words.py.

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
WINNER = "record (of a maximum), argmax (of an embedding bag)"
GO_TOLD = {"core/driver/driver_test.go": "tellError prints an error for the golden text"}
INNER = {"core/internal/ops/scan/*.go": "Inner is the number of elements from a position of a row to the next"}


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
    # Numerics: fast path
    *part("tame tamed", "fast path, FastPath, is_fast"),
    *name(r"kTame|TameOf|TameKind", "FastPath<K>", "TameOf"),
    *part("undone", "needs_fallback", NATIVE),
    *name(r"kUndone|kExtreme|kLeavesRange", "reject_range, reject_magnitude", "kUndone"),
    *part("fault faults", "rejection, reject_range", SCAN),
    *part("moderate", "bounded inputs"),
    *part("renew renewed", "rematerialize"),
    *name(r"\w*[a-z0-9]Again(?![a-z])\w*|kAgain|\w+_again|again_\w+", "fallback pass, kRecomputed", "product_again"),
    *name(
        r"bad|badBytes|bad_bytes|marks?|marked",
        "reject_flags, flag_bytes",
        "badBytes",
        ("cuda/*", "core/internal/ops/scan/host/*", "core/internal/ops/embedding/*"),
    ),
    *name(r"kSteep|kGreat|kRight|kRaised|kDeep|kEnd", "kMaxAbsX, kMaxAbsDy, kMaxPrefixExp, ...", "kSteep"),
    *part("opaque", "keep_here (optimization barrier)", ("cuda/*",)),
    # Scan algebra
    *name(r"Heads?|head_before|tail_after|Tails?|ahead|behind", "Prefix, Suffix, prefix_before, suffix_after", "Head", C),
    *name(r"heads|tails?|kHeads|kTails", "upsweep (prefix), upsweep (suffix); segment heads", "tails", ("cuda/scan/*",)),
    *name(r"join|Join\w*", "combine", "join", C),
    *name(r"Far|Near|far|to_far|from_far", "Carry, to_carry, from_carry", "Far", C),
    *name(r"Passing|Passed|entering|let_in|leaving", "carry-in, RunningCarry, set_carry_in, suffix", "entering"),
    *name(r"Cells?|cells?|kCells?", "ThreadScan; word of a bitmap", "Cell"),
    *name(r"starts", "segment_heads (bit mask)", "starts", CUDA),
    *name(r"Finder|recorded|kFinds|kRecorded|isWinner|hasWinner", "RecordPass, record flags", "Finder", SCAN),
    *part("winner", WINNER, NATIVE),
    *part("winners", WINNER, NATIVE),
    *part("won", WINNER, NATIVE),
    *part("foresee foresees", "load_tile_prefix, prefetch_L2"),
    # One spelling, the American one of the names in code; "neighbours" is a value of the public interface
    *part("quantise quantised quantises quantisation dequantise dequantised dequantises dequantisation", "quantize"),
    *part("vectorised normalised initialised optimiser synchronisation behaviour colour colours", "-ize, -ization, -or"),
    # Geometry and selection
    *name(
        r"scanShape|scan_shape|share(Rows|Columns|Pieces|Slabs)?",
        "launch configuration, Config, configureX",
        "scanShape",
        ("core/internal/ops/scan/*",),
    ),
    *name(r"holds[A-Z]\w*|kHolds|kBased|kLong|kRuns|kFinds", "supportsLength; members of the kind", "holdsRows"),
    *name(r"lies|alike|liesAlong", "supportsLayout, columnsContiguous, sameDirection", "lies"),
    *name(r"instead", "baseline", "instead"),
    *name(r"quick|quicker\w*|quickest|kQuick\w*", "candidates, fast path", "quickerColumns"),
    *name(r"fill|scanRoom|deviceRoom", "fitToDevice, DeviceLimits", "scanRoom", ("core/internal/ops/scan/*",)),
    *name(r"pick|choose|along", "selectStatic, selectForOperands, baselineFor", "choose", ("core/internal/ops/scan/*",)),
    *name(r"[Uu]nits|beside", "numSMs, ctasPerSM", "beside", ("core/internal/ops/scan/gpu/*", "cuda/scan/*")),
    *name(
        r"[Ss]trips?|kStrips?|EACH_STRIP|STRIP|\w+_strips?|[a-z]+Strips?", "panel (columns), row, block of lanes", "EACH_STRIP"
    ),
    *name(r"[Pp]arts|cut|cuts|uncut", "splits, split", "parts"),
    *name(r"walked|walkedTiles|kWalk\w*", "tile, itemsPerThread, tilesPerRow", "walkedTiles"),
    *name(
        r"own|across|down|lane_of",
        "columnsPerThread, rowsPerThread, itemsPerThread",
        "across",
        ("core/internal/ops/scan/host/*",),
    ),
    *name(r"[Tt]akeTurns|take_turns|Turns?|Turner|turn|do_items", "persistent CTAs, WorkItem; rotate", "take_turns"),
    *name(r"dense|kDense", "vectorized, kVectorized", "kDense", SCAN),
    *name(r"leads|kLeads|lead_of|padded", "misalignment, kMisaligned, alignment_offset", "kLeads", SCAN),
    *name(r"kLines|lined|kLined", "kLineAligned", "kLines"),
    *name(r"hurries|kQuickMemory|kSlow", "bandwidthRich", "hurries"),
    # Memory and synchronization
    *name(r"[Rr]ings?|kRing\w*", "multi-stage cp.async pipeline, AsyncPipeline", "Ring"),
    *name(r"ask|aim|turn_to|asked", "prefetch_tile, set_work_item, advance_work_item", "turn_to", CUDA),
    *name(
        r"[Tt]old|hears?|packet|tells?|Told\w*",
        "tile status, TileStatus::publish, wait",
        "Told",
        ("cuda/*", "core/*.go"),
        GO_TOLD,
    ),
    *name(r"collect|learn|leave|hold", "look_back, read_carry, publish_prefix", "learn", CUDA),
    *name(r"[Tt]ogether|kTogether|kTeam\w*|Teams?|\w*Together", "cooperative row, cooperative launch", "kTogether"),
    *name(r"[Pp]ieces?|kPieces?|clusterPieces", "row_cluster, slice", "pieces"),
    *name(r"[Ss]labs?|kSlabs?|slab_\w+", "column_cluster", "slabs"),
    *name(r"spread", "grid_resident, parallelFor", "spread"),
    *name(r"meet|meet_cluster|meet_device|meets", "cluster_sync, grid_sync", "meet_cluster"),
    *name(
        r"[Rr]ooms?|Room\w*",
        "smem, Uninitialized<S, N>, scratch",
        "rooms",
        ("cuda/*", "core/*"),
        {"core/internal/ops/scan/*_test.go": "room in memory around an output"},
    ),
    *name(r"fetch_vector|bring_next", "cp_async_16", "bring_next"),
    *part("charged charge", "owns_column", NATIVE),
    *name(
        r"Inner|Outer|OwnLine|Line|Walk(?!Dir)\w*|\w+Walk|walk",
        "RowTile, ColumnTile, WarpTransposeIO, SplitState; iteration space",
        "Walk",
        NATIVE,
        INNER,
    ),
    # Host
    *part("crew hire hires dismiss dismisses patience", "worker pool, acquire, release, spinTime"),
    *name(r"helpers?|serve|soon", "worker, loop, spinUntil", "helper", ("core/internal/threads/*", "core/internal/cpu/*")),
    *name(r"inTeam|togetherOn\w*", "runOnAll, runOnOpenMP", "inTeam"),
    *part("recipe recipes", "launch cache", NATIVE),
    *name(r"[Rr]efuse[A-Z]\w*|refuse|refuse_\w+", "errs.New; a name of the error", "refuseDType"),
    *name(r"presence", "checkPresence", "presence", ("core/*.go",)),
    *name(r"apart", "disjointOutputs", "apart"),
    *name(r"sparing", "ConditionalWorkspace, WorkspaceOperand", "sparing"),
    *name(r"lineOf|sized", "stridedOf, grow", "lineOf"),
    *name(r"breath|hop|hops|\w+_hop|partner|partners", "pairsPerTile, pairStride, partnerOffset", "in_hop"),
    *part("breath breaths", "pairsPerTile", NATIVE),
    *name(r"kFew|few|Few\w+|SCAN_FEW\w*", "single_launch; short", "FewSum", ("cuda/*", "core/*.c", "core/*.h")),
    *name(r"Dtypes?", "DTypes", "Dtypes", ("core/*", "pybind/*")),
]
