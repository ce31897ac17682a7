"""A Triton kernel that moves the rows of accepted paths, in place, for all buffers and lanes in one launch.

Knows addresses and row numbers. Import it from `fused_commit` only: it needs the package triton.

Moving in place is safe row by row: a path increases and starts at or behind the committed rows, so row i of a path goes
to a place that no later row of it comes from. Each program does its rows in that order.
"""

import triton
import triton.language as tl


@triton.jit
def move_rows(
    buffers,  # int64 [buffers, 6]: address, strides of slot, head and row in elements, heads, width
    places,  # int64 [buffers, lanes, 2]: first row in flight, committed rows
    lanes,  # int64 [lanes, 2 + longest]: slot, length of the path, its nodes
    lane_count,
    longest,
    ITEM: tl.constexpr,  # an integer type as wide as the elements
    BLOCK: tl.constexpr,
):
    """One head of one lane in one buffer."""
    buffer = tl.program_id(0)
    lane = tl.program_id(1)
    head = tl.program_id(2)
    entry = buffers + buffer * 6
    if head < tl.load(entry + 4):
        path = lanes + lane * (2 + longest)
        place = places + (buffer * lane_count + lane) * 2
        rows = tl.load(entry).to(tl.pointer_type(ITEM))
        rows += tl.load(path) * tl.load(entry + 1) + head * tl.load(entry + 2)
        stride, width = tl.load(entry + 3), tl.load(entry + 5)
        first, committed = tl.load(place), tl.load(place + 1)
        for step in range(0, tl.load(path + 1)):
            source = rows + (first + tl.load(path + 2 + step)) * stride
            target = rows + (committed + step) * stride
            for start in range(0, width, BLOCK):
                cell = start + tl.arange(0, BLOCK)
                tl.store(target + cell, tl.load(source + cell, mask=cell < width), mask=cell < width)
            # a later row may land where this one came from: all threads must have read it
            tl.debug_barrier()
