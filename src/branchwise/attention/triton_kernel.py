"""Two Triton kernels: tree attention over a part of the keys, and the merge of the parts.

Knows pointers, strides and bits; the shapes, the errors and the choice of tiles are `triton_backend`'s. Import it from
there only: it needs the package triton.

A program of the first kernel owns a tile of queries (the G query heads of one key/value head are rows of one tile, so
that keys and values are read once for all of them) and one of several parts of the committed tokens. The last part also
takes the columns behind them, whose visibility is one bit each:

    grid      (tiles of G * N query rows, B * K, parts)
    keys      | part 0 | part 1 | ... | last part | columns of the trees |
               a count says what is visible         words of 64 bits say it

Softmax runs online in base 2 (Milakov and Gimelshein 2018, section 3). With several parts, each leaves its normalised
output and the base-2 logarithm of its sum; the second kernel weighs them (as in Flash-Decoding: Dao, Haziza, Massa and
Sizov 2023).
"""

import triton
import triton.language as tl


@triton.jit
def _absorb(
    query,  # [M, D]
    key,  # [D, C]
    value,  # [C, Dv]
    seen,  # [M, C]
    mixed,  # [M, Dv]
    total,  # [M]
    largest,  # [M]
    FACTOR: tl.constexpr,
    CAP: tl.constexpr,
    WIDEN: tl.constexpr,
    SUM: tl.constexpr,
):
    """Takes C more keys into the running softmax of M queries."""
    if WIDEN:
        scores = tl.dot(query.to(tl.float32), key.to(tl.float32), input_precision="ieee")
    else:
        scores = tl.dot(query, key, input_precision="ieee", out_dtype=SUM)
    scores *= FACTOR
    if CAP != 0:
        # cap * tanh(x) with exp2(scores) = exp(2 x); from 2^60 on it is the cap itself
        scores = CAP * (1 - 2 / (1 + tl.exp2(tl.minimum(scores, 60))))
    scores = tl.where(seen, scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    # a query that has seen nothing so far must not compute -inf - -inf
    pivot = tl.where(new_largest == float("-inf"), 0, new_largest)
    weights = tl.exp2(scores - pivot[:, None])
    shrink = tl.exp2(largest - pivot)
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None]
    weights = weights.to(value.dtype)
    if WIDEN:
        mixed += tl.dot(weights.to(tl.float32), value.to(tl.float32), input_precision="ieee")
    else:
        mixed += tl.dot(weights, value, input_precision="ieee", out_dtype=SUM)
    return mixed, total, new_largest


@triton.jit
def _row_offsets(row, table, stride_page, stride_row, PAGE: tl.constexpr):
    """Where rows of one sequence lie, in elements: in pages that a table names, or one after the other."""
    if PAGE > 0:
        page = tl.load(table + row // PAGE).to(tl.int64)
        return page * stride_page + (row % PAGE).to(tl.int64) * stride_row
    return row.to(tl.int64) * stride_row


@triton.jit
def attend_part(
    query,
    key,
    value,
    output,  # [parts, B, H, N, Dv]; with one part [B, H, N, Dv]
    logsum,  # [parts, B, H, N], base 2; unused with one part
    sinks,  # [H]
    table,  # [B, pages], unused without pages
    words,  # [B, N, W]
    nodes,  # [B]
    depth,  # [B, N]
    column_depth,  # [B, T]
    committed,  # [B]
    stride_qb,
    stride_qh,
    stride_qn,
    stride_qd,
    stride_kb,  # of a batch row, or of a page
    stride_kh,
    stride_kr,
    stride_kd,
    stride_vb,
    stride_vh,
    stride_vr,
    stride_vd,
    stride_table,
    column_row,  # row of column 0 without pages; with pages it is the committed count
    batch,
    width,  # N
    columns,  # T
    word_count,  # W
    parts,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_DIM: tl.constexpr,
    PAD_VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr,  # queries per tile
    BLOCK: tl.constexpr,  # keys per step
    COLUMNS: tl.constexpr,  # tree columns per step, a divisor of 64
    FACTOR: tl.constexpr,
    CAP: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    ONE_PART: tl.constexpr,
    WIDEN: tl.constexpr,
    SUM: tl.constexpr,  # dtype of scores and sums
):
    """One tile of queries against one part of the keys."""
    pair = tl.program_id(1)
    part = tl.program_id(2)
    b = pair // KV_HEADS
    kv_head = pair % KV_HEADS
    folded = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # [M], head of the group slow, node fast
    exists = folded < GROUP * width
    head = kv_head * GROUP + folded // width
    node = folded % width
    d = tl.arange(0, PAD_DIM)
    dv = tl.arange(0, PAD_VALUE_DIM)

    rows = b.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh + node.to(tl.int64) * stride_qn
    queries = tl.load(
        query + rows[:, None] + d[None, :] * stride_qd, mask=exists[:, None] & (d < DIM)[None, :], other=0.0
    )
    length = tl.load(committed + b)
    own_depth = tl.load(depth + b * width + node, mask=exists, other=0)
    own_table = table + b * stride_table
    keys = key + kv_head.to(tl.int64) * stride_kh
    values = value + kv_head.to(tl.int64) * stride_vh
    if PAGE == 0:
        keys += b.to(tl.int64) * stride_kb
        values += b.to(tl.int64) * stride_vb

    mixed = tl.zeros([ROWS, PAD_VALUE_DIM], dtype=SUM)
    total = tl.zeros([ROWS], dtype=SUM)
    largest = tl.full([ROWS], float("-inf"), dtype=SUM)

    first = 0
    if HAS_WINDOW:
        first = tl.maximum(length + 1 - window, 0)  # the root looks furthest back
    share = tl.cdiv(tl.cdiv(length - first, BLOCK), parts) * BLOCK
    begin = first + part * share
    end = tl.minimum(begin + share, length)
    for start in range(begin, end, BLOCK):
        row = start + tl.arange(0, BLOCK)
        inside = row < end
        at_key = _row_offsets(tl.where(inside, row, 0), own_table, stride_kb, stride_kr, PAGE)
        at_value = _row_offsets(tl.where(inside, row, 0), own_table, stride_vb, stride_vr, PAGE)
        key_block = tl.load(
            keys + at_key[None, :] + d[:, None] * stride_kd, mask=inside[None, :] & (d < DIM)[:, None], other=0.0
        )
        value_block = tl.load(
            values + at_value[:, None] + dv[None, :] * stride_vd,
            mask=inside[:, None] & (dv < VALUE_DIM)[None, :],
            other=0.0,
        )
        seen = inside[None, :] & exists[:, None]
        if HAS_WINDOW:
            seen = seen & (length + own_depth[:, None] - row[None, :] < window)
        mixed, total, largest = _absorb(
            queries, key_block, value_block, seen, mixed, total, largest, FACTOR, CAP, WIDEN, SUM
        )

    if part == parts - 1:
        for start in range(0, columns, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = column < columns
            if PAGE > 0:
                row = length + tl.where(inside, column, 0)
                # rows of padding have no page of their own
                inside = inside & (column < tl.load(nodes + b))
                row = tl.where(inside, row, 0)
            else:
                row = column_row + tl.where(inside, column, 0)
            at_key = _row_offsets(row, own_table, stride_kb, stride_kr, PAGE)
            at_value = _row_offsets(row, own_table, stride_vb, stride_vr, PAGE)
            key_block = tl.load(
                keys + at_key[None, :] + d[:, None] * stride_kd, mask=inside[None, :] & (d < DIM)[:, None], other=0.0
            )
            value_block = tl.load(
                values + at_value[:, None] + dv[None, :] * stride_vd,
                mask=inside[:, None] & (dv < VALUE_DIM)[None, :],
                other=0.0,
            )
            if IS_CAUSAL:
                seen = column[None, :] <= node[:, None]
            else:
                word = tl.load(words + (b * width + node) * word_count + start // 64, mask=exists, other=0)
                places = (start % 64 + tl.arange(0, COLUMNS)).to(tl.int64)
                seen = ((word[:, None] >> places[None, :]) & 1) != 0
            seen = seen & inside[None, :] & exists[:, None]
            if HAS_WINDOW:
                other_depth = tl.load(column_depth + b * columns + column, mask=column < columns, other=0)
                seen = seen & (own_depth[:, None] - other_depth[None, :] < window)
            mixed, total, largest = _absorb(
                queries, key_block, value_block, seen, mixed, total, largest, FACTOR, CAP, WIDEN, SUM
            )

    is_node = exists & (node < tl.load(nodes + b))
    out_row = (b * KV_HEADS * GROUP + head).to(tl.int64) * width + node  # row of [B, H, N]
    if ONE_PART and HAS_SINKS:
        sink = tl.load(sinks + head, mask=exists, other=0.0).to(SUM) * 1.4426950408889634
        pivot = tl.maximum(largest, sink)
        shrink = tl.exp2(largest - pivot)
        total = total * shrink + tl.exp2(sink - pivot)
        mixed = mixed * shrink[:, None]
    positive = tl.where(total == 0, 1, total)
    if not ONE_PART:
        out_row += part.to(tl.int64) * batch * KV_HEADS * GROUP * width
        tl.store(logsum + out_row, largest + tl.log2(positive), mask=exists)
    result = mixed / positive[:, None]
    result = tl.where(is_node[:, None], result, 0)
    tl.store(
        output + out_row[:, None] * VALUE_DIM + dv[None, :],
        result.to(output.dtype.element_ty),
        mask=exists[:, None] & (dv < VALUE_DIM)[None, :],
    )


@triton.jit
def merge_parts(
    partial,  # [parts, B, H, N, Dv]
    logsum,  # [parts, B, H, N], base 2
    sinks,  # [H]
    output,  # [B, H, N, Dv]
    parts,
    rows,  # B * H * N
    heads,
    width,
    VALUE_DIM: tl.constexpr,
    PAD_VALUE_DIM: tl.constexpr,
    PAD_PARTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """One query row: the parts weighed by their sums."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PAD_PARTS).to(tl.int64)
    dv = tl.arange(0, PAD_VALUE_DIM)
    sums = tl.load(logsum + part * rows + row, mask=part < parts, other=float("-inf"))  # [P]
    pivot = tl.max(sums, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + (row // width) % heads).to(pivot.dtype) * 1.4426950408889634
        pivot = tl.maximum(pivot, sink)
    # padding may have seen nothing in any part
    pivot = tl.where(pivot == float("-inf"), 0, pivot)
    weights = tl.exp2(sums - pivot)
    total = tl.sum(weights, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - pivot)
    at = (part[:, None] * rows + row) * VALUE_DIM + dv[None, :]
    outputs = tl.load(partial + at, mask=(part < parts)[:, None] & (dv < VALUE_DIM)[None, :], other=0.0)  # [P, Dv]
    result = tl.sum(outputs * weights[:, None], 0) / tl.where(total == 0, 1, total)
    tl.store(output + row * VALUE_DIM + dv, result.to(output.dtype.element_ty), mask=dv < VALUE_DIM)
