"""Kernels of a graphics card, in Triton. A row's result depends on nothing but the row.

Shapes: T rows of a step, N outputs and K inputs of a matrix, S parts of a sum. A product of few
rows has the sums of S parts of its inputs as result, in float32; the kernel that uses it adds them
in their order and rounds once. Roundings are those of the torch code (`layers.py`).
"""

# Triton compiles the source of these functions. Their parameters of type `tl.constexpr` are known
# when it does; all others are device pointers and integers.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: SIM102, SIM108 (a condition of the compiler and one of the card are not the same)

import triton
import triton.language as tl

LEAST = tl.constexpr(-1.0e30)  # smaller than any score, but finite: differences of it are no NaN


@triton.jit
def _begin(EARLY: tl.constexpr):
    """Wait for the kernel before, and let the next one take its place on the card.

    With EARLY, the card starts a kernel before its predecessor has ended, and it waits here. Each
    kernel of a step waits, so all that it reads is complete.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def few_rows(
    x, weight, bias, out, rows, outputs, inputs, part,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BIASED: tl.constexpr,
    EXACT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Write out[s, t, n] = sum of x[t, k] * weight[n, k] over the k of part s.

    `part` is the number of inputs of a part, a multiple of INPUTS. The weights are the first
    operand, so that a tile needs no more rows than there are.
    """
    _begin(EARLY)
    first = tl.program_id(0) * OUTPUTS
    split = tl.program_id(1)
    ns = first + tl.arange(0, OUTPUTS)
    ts = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    ks = split * part + tl.arange(0, INPUTS)
    end = tl.minimum((split + 1) * part, inputs)
    weights = weight + ns.to(tl.int64)[:, None] * inputs + ks[None, :]
    values = x + ts.to(tl.int64)[None, :] * inputs + ks[:, None]
    total = tl.zeros((OUTPUTS, ROWS), dtype=tl.float32)
    for k in range(split * part, end, INPUTS):
        inside = k + tl.arange(0, INPUTS) < end
        a = tl.load(weights, mask=(ns < outputs)[:, None] & inside[None, :], other=0.0)
        b = tl.load(values, mask=(ts < rows)[None, :] & inside[:, None], other=0.0)
        if EXACT:
            total = tl.dot(a, b, total, input_precision="ieee")
        else:
            total = tl.dot(a, b, total)
        weights += INPUTS
        values += INPUTS
    if BIASED:
        if split == 0:
            total += tl.load(bias + ns, mask=ns < outputs, other=0.0).to(tl.float32)[:, None]
    place = out + (split * rows + ts).to(tl.int64)[None, :] * outputs + ns[:, None]
    tl.store(place, total, mask=(ts < rows)[None, :] & (ns < outputs)[:, None])


@triton.jit
def few_rows_quantised(
    x, q, scales, minima, bias, out, rows, outputs, inputs, part, group,
    NIBBLES: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    BIASED: tl.constexpr, EXACT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write what `few_rows` does, with a matrix in one of the layouts of `Quantised`.

    NIBBLES says that it is `int4`, whose bytes have a weight for each half of their group. The
    halves are two products.
    """
    _begin(EARLY)
    ns = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(1)
    ts = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    step: tl.constexpr = INPUTS // 2 if NIBBLES else INPUTS
    columns = tl.arange(0, step)
    dtype = x.dtype.element_ty
    end = tl.minimum((split + 1) * part, inputs)
    real, wanted = (ns < outputs)[:, None], (ts < rows)[None, :]
    rows_of_q = q + ns.to(tl.int64)[:, None] * (inputs // 2 if NIBBLES else inputs)
    rows_of_scales = ns.to(tl.int64)[:, None] * (inputs // group)
    values = x + ts.to(tl.int64)[None, :] * inputs
    total = tl.zeros((OUTPUTS, ROWS), dtype=tl.float32)
    for k in range(split * part, end, INPUTS):
        if NIBBLES:
            ks = k + columns // 16 * 32 + columns % 16
            at = k // 2 + columns
        else:
            ks = k + columns
            at = ks
        inside = ks < end
        there = real & inside[None, :]
        place = rows_of_scales + (ks // group)[None, :]
        scale = tl.load(scales + place, mask=there, other=0.0).to(tl.float32)
        packed = tl.load(rows_of_q + at[None, :], mask=there, other=0)
        b = tl.load(values + ks[:, None], mask=wanted & inside[:, None], other=0.0)
        if NIBBLES:
            minimum = tl.load(minima + place, mask=there, other=0.0).to(tl.float32)
            a = ((packed & 15).to(tl.float32) * scale + minimum).to(dtype)
            total = _dot(a, b, total, EXACT)
            a = ((packed >> 4).to(tl.float32) * scale + minimum).to(dtype)
            b = tl.load(values + (ks + 16)[:, None], mask=wanted & inside[:, None], other=0.0)
        else:
            a = (packed.to(tl.float32) * scale).to(dtype)
        total = _dot(a, b, total, EXACT)
    if BIASED and split == 0:
        total += tl.load(bias + ns, mask=ns < outputs, other=0.0).to(tl.float32)[:, None]
    place_of_sums = out + (split * rows + ts).to(tl.int64)[None, :] * outputs + ns[:, None]
    tl.store(place_of_sums, total, mask=wanted & real)


@triton.jit
def _dot(a, b, total, EXACT: tl.constexpr):
    if EXACT:
        return tl.dot(a, b, total, input_precision="ieee")
    return tl.dot(a, b, total)


@triton.jit
def dequantise(
    q, scales, minima, out, inputs, group, NIBBLES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write a quantised matrix (N x inputs) in the dtype of `out`."""
    n = tl.program_id(0).to(tl.int64)
    ks = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ks < inputs
    place = n * (inputs // group) + ks // group
    scale = tl.load(scales + place, mask=inside, other=0.0).to(tl.float32)
    if NIBBLES:
        at = n * (inputs // 2) + ks // 32 * 16 + ks % 16
        packed = tl.load(q + at, mask=inside, other=0)
        packed = tl.where(ks % 32 < 16, packed & 15, packed >> 4)
        values = packed.to(tl.float32) * scale
        values += tl.load(minima + place, mask=inside, other=0.0).to(tl.float32)
    else:
        values = tl.load(q + n * inputs + ks, mask=inside, other=0).to(tl.float32) * scale
    tl.store(out + n * inputs + ks, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sum(sums, place, rows, width, mask, dtype: tl.constexpr, SPLITS: tl.constexpr):
    """Return the values at `place` of a product, added over its S parts and rounded to `dtype`."""
    total = tl.load(sums + place, mask=mask, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(sums + split * (rows * width) + place, mask=mask, other=0.0)
    return total.to(dtype)


@triton.jit
def add_and_norm(
    x, sums, weight, normed, rows, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, NORMED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Add a product to the residual stream x (T x WIDTH), and write its norm.

    SPLITS 0 adds nothing. NORMED False writes no norm.
    """
    _begin(EARLY)
    t = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    place = t * WIDTH + columns
    dtype = x.dtype.element_ty
    values = tl.load(x + place, mask=inside, other=0.0)
    if SPLITS > 0:
        change = _sum(sums, place, rows, WIDTH, inside, dtype, SPLITS)
        values = (values.to(tl.float32) + change.to(tl.float32)).to(dtype)
        tl.store(x + place, values, mask=inside)
    if NORMED:
        exact = values.to(tl.float32)
        scale = tl.rsqrt(tl.sum(exact * exact, 0) / WIDTH + eps)
        plain = (exact * scale).to(dtype).to(tl.float32)
        factors = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(normed + place, (factors * plain).to(dtype), mask=inside)


@triton.jit
def turn_and_keep(
    sums, query_norm, key_norm, cos, sin, positions, slots, queries, keys, values,
    rows, places, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, HEAD_NORMS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Split a product into heads, turn queries and keys, and write keys and values to their slots.

    `queries` is T x HEADS x WIDTH; `keys` and `values` are KV_HEADS x `places` x WIDTH. A row whose
    slot is negative writes no keys and no values.
    """
    _begin(EARLY)
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    half = WIDTH // 2
    swapped = tl.where(columns < half, columns + half, columns - half)
    total = (HEADS + 2 * KV_HEADS) * WIDTH
    dtype = queries.dtype.element_ty
    first = head * WIDTH
    plain = _sum(sums, t * total + first + columns, rows, total, inside, dtype, SPLITS)
    other = _sum(sums, t * total + first + swapped, rows, total, inside, dtype, SPLITS)
    if head < HEADS + KV_HEADS:
        if HEAD_NORMS:
            exact = plain.to(tl.float32)
            scale = tl.rsqrt(tl.sum(exact * exact, 0) / WIDTH + eps)
            factors = query_norm if head < HEADS else key_norm
            these = tl.load(factors + columns, mask=inside, other=0.0).to(tl.float32)
            those = tl.load(factors + swapped, mask=inside, other=0.0).to(tl.float32)
            plain = ((exact * scale).to(dtype).to(tl.float32) * these).to(dtype)
            other = ((other.to(tl.float32) * scale).to(dtype).to(tl.float32) * those).to(dtype)
        position = tl.load(positions + t)
        there = position * WIDTH + columns
        cosines = tl.load(cos + there, mask=inside, other=0.0).to(tl.float32)
        sines = tl.load(sin + there, mask=inside, other=0.0).to(tl.float32)
        straight = (plain.to(tl.float32) * cosines).to(dtype).to(tl.float32)
        across = (other.to(tl.float32) * sines).to(dtype).to(tl.float32)
        plain = (straight + across).to(dtype)
    if head < HEADS:
        tl.store(queries + (t * HEADS + head) * WIDTH + columns, plain, mask=inside)
    else:
        slot = tl.load(slots + t)
        kept = inside & (slot >= 0)
        if head < HEADS + KV_HEADS:
            place = ((head - HEADS).to(tl.int64) * places + slot) * WIDTH + columns
            tl.store(keys + place, plain, mask=kept)
        else:
            place = ((head - HEADS - KV_HEADS).to(tl.int64) * places + slot) * WIDTH + columns
            tl.store(values + place, plain, mask=kept)


@triton.jit
def gated(
    sums, inner, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Write silu(gate) * up (T x WIDTH) of a product with the outputs gate and up."""
    _begin(EARLY)
    t = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    dtype = inner.dtype.element_ty
    place = t * (2 * WIDTH) + columns
    size = rows
    gate = _sum(sums, place, size, 2 * WIDTH, inside, dtype, SPLITS)
    up = _sum(sums, place + WIDTH, size, 2 * WIDTH, inside, dtype, SPLITS)
    exact = gate.to(tl.float32)
    passed = (exact / (1.0 + tl.exp(-exact))).to(dtype)
    product = (passed.to(tl.float32) * up.to(tl.float32)).to(dtype)
    tl.store(inner + t * WIDTH + columns, product, mask=inside)


@triton.jit
def attend_chunk(
    queries, keys, values, tables, lengths, partial, weights, places, width_of_table, chunks,
    scale, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, KEYS: tl.constexpr, CHUNK: tl.constexpr, PAGE: tl.constexpr,
    EXACT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Attend to the positions of one chunk, for one row and the heads that share its keys.

    Chunks begin at multiples of CHUNK, so a row's sums have one order. `partial` (T x heads x
    chunks x WIDTH) gets the weighted values, `weights` (T x heads x chunks x 2) the largest score
    and the sum of the weights.
    """
    _begin(EARLY)
    t, kv_head, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + t)
    first = tl.maximum(length - window, 0) if window > 0 else 0
    begin, end = chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, length)
    if begin >= length or end <= first:
        return
    group: tl.constexpr = HEADS // KV_HEADS
    heads = tl.arange(0, GROUP)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    mine = (t.to(tl.int64) * HEADS + kv_head * group + heads) * WIDTH
    query = tl.load(
        queries + mine[:, None] + columns[None, :],
        mask=(heads < group)[:, None] & inside[None, :], other=0.0,
    )  # fmt: skip
    largest = tl.full((GROUP,), LEAST, dtype=tl.float32)
    total = tl.zeros((GROUP,), dtype=tl.float32)
    out = tl.zeros((GROUP, BLOCK), dtype=tl.float32)
    base = kv_head.to(tl.int64) * places * WIDTH
    begin = tl.maximum(begin, first // KEYS * KEYS)
    for start in range(begin, end, KEYS):
        at = start + tl.arange(0, KEYS)
        seen = (at < end) & (at >= first)
        page = tl.load(tables + t.to(tl.int64) * width_of_table + at // PAGE, mask=seen, other=0)
        slot = page.to(tl.int64) * PAGE + at % PAGE
        place = base + slot[:, None] * WIDTH + columns[None, :]
        there = seen[:, None] & inside[None, :]
        key = tl.load(keys + place, mask=there, other=0.0)
        value = tl.load(values + place, mask=there, other=0.0)
        if EXACT:
            scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        else:
            scores = tl.dot(query, tl.trans(key))
        scores = tl.where(seen[None, :], scores * scale, LEAST)
        higher = tl.maximum(largest, tl.max(scores, 1))
        shrunk = tl.exp2(largest - higher)
        parts = tl.where(seen[None, :], tl.exp2(scores - higher[:, None]), 0.0)
        total = total * shrunk + tl.sum(parts, 1)
        out = out * shrunk[:, None]
        if EXACT:
            out = tl.dot(parts, value.to(tl.float32), out, input_precision="ieee")
        else:
            out = tl.dot(parts.to(value.dtype), value, out)
        largest = higher
    row = (t.to(tl.int64) * HEADS + kv_head * group + heads) * chunks + chunk
    real = heads < group
    tl.store(
        partial + row[:, None] * WIDTH + columns[None, :], out,
        mask=real[:, None] & inside[None, :],
    )  # fmt: skip
    tl.store(weights + row * 2, largest, mask=real)
    tl.store(weights + row * 2 + 1, total, mask=real)


@triton.jit
def join_chunks(
    partial, weights, lengths, out, chunks, window,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Join the chunks of a row and head in their order. `out` is T x (HEADS * WIDTH)."""
    _begin(EARLY)
    t, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + t)
    first = tl.maximum(length - window, 0) if window > 0 else 0
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    row = t.to(tl.int64) * HEADS + head
    largest = LEAST
    total = 0.0
    joined = tl.zeros((BLOCK,), dtype=tl.float32)
    for chunk in range(first // CHUNK, tl.cdiv(length, CHUNK)):
        score = tl.load(weights + (row * chunks + chunk) * 2)
        weight = tl.load(weights + (row * chunks + chunk) * 2 + 1)
        part = tl.load(partial + (row * chunks + chunk) * WIDTH + columns, mask=inside, other=0.0)
        higher = tl.maximum(largest, score)
        old, new = tl.exp2(largest - higher), tl.exp2(score - higher)
        joined = joined * old + part * new
        total = total * old + weight * new
        largest = higher
    total = tl.where(total > 0.0, total, 1.0)  # a row without a session
    tl.store(out + row * WIDTH + columns, (joined / total).to(out.dtype.element_ty), mask=inside)


@triton.jit
def attend_tile(
    queries, keys, values, tiles, out, places, scale, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Attend with consecutive rows of one prompt.

    `tiles` has for each tile: its first row in the step, its number of rows (at most ROWS), the
    position of the first, and the place of its session's position 0 in `keys` and `values`
    (KV_HEADS x `places` x WIDTH). Keys are visited from multiples of KEYS on, so a row's sums have
    one order.
    """
    # The last tiles of a prompt have most keys, so they begin first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(tiles + tile * 4)
    count = tl.load(tiles + tile * 4 + 1)
    position = tl.load(tiles + tile * 4 + 2)
    origin = tl.load(tiles + tile * 4 + 3).to(tl.int64)
    kv_head = head // (HEADS // KV_HEADS)
    ts = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    place = ((row + ts).to(tl.int64)[:, None] * HEADS + head) * WIDTH + columns[None, :]
    real = (ts < count)[:, None] & inside[None, :]
    query = tl.load(queries + place, mask=real, other=0.0)
    base = (kv_head.to(tl.int64) * places + origin) * WIDTH
    largest = tl.full((ROWS,), LEAST, dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    joined = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    end = position + count
    begin = 0
    seen_by_all = (position + 1) // KEYS * KEYS
    if window > 0:
        begin = tl.maximum(position + 1 - window, 0) // KEYS * KEYS
        seen_by_all = begin
    total, joined, largest = _over_keys(
        query, keys + base, values + base, begin, seen_by_all, position, end, scale, window,
        total, joined, largest, WIDTH, BLOCK, ROWS, KEYS, False, EXACT,
    )  # fmt: skip
    total, joined, largest = _over_keys(
        query, keys + base, values + base, seen_by_all, end, position, end, scale, window,
        total, joined, largest, WIDTH, BLOCK, ROWS, KEYS, True, EXACT,
    )  # fmt: skip
    total = tl.where(total > 0.0, total, 1.0)  # rows beyond the prompt
    tl.store(out + place, (joined / total[:, None]).to(out.dtype.element_ty), mask=real)


@triton.jit
def _over_keys(
    query, keys, values, begin, stop, position, end, scale, window, total, joined, largest,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    MASKED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Add the keys from `begin` to `stop` - 1 to the sums of a tile's rows.

    MASKED False says that each row attends to all of these keys.
    """
    at_row = position + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    for start in tl.range(begin, stop, KEYS):
        at = start + tl.arange(0, KEYS)
        there = at[:, None] * WIDTH + columns[None, :]
        if MASKED:
            key = tl.load(keys + there, mask=(at < end)[:, None] & inside[None, :], other=0.0)
        else:
            key = tl.load(keys + there, mask=inside[None, :], other=0.0)
        if EXACT:
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        else:
            scores = tl.dot(query, tl.trans(key)) * scale
        if MASKED:
            seen = at[None, :] <= at_row[:, None]
            if window > 0:
                seen = seen & (at[None, :] > at_row[:, None] - window)
            scores = tl.where(seen, scores, LEAST)
        higher = tl.maximum(largest, tl.max(scores, 1))
        shrunk = tl.exp2(largest - higher)
        parts = tl.exp2(scores - higher[:, None])
        if MASKED:
            parts = tl.where(seen, parts, 0.0)
        total = total * shrunk + tl.sum(parts, 1)
        joined = joined * shrunk[:, None]
        if MASKED:
            value = tl.load(values + there, mask=(at < end)[:, None] & inside[None, :], other=0.0)
        else:
            value = tl.load(values + there, mask=inside[None, :], other=0.0)
        if EXACT:
            joined = tl.dot(parts, value.to(tl.float32), joined, input_precision="ieee")
        else:
            joined = tl.dot(parts.to(value.dtype), value, joined)
        largest = higher
    return total, joined, largest


@triton.jit
def peaks(logits, ids, largest, totals, size, BLOCK: tl.constexpr):
    """Write the lowest id with the largest logit of a row, that logit, and the sum of exp(logit -
    largest). A NaN makes the largest logit NaN."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    tops = tl.full((BLOCK,), -float("inf"), dtype=tl.float32)
    where = tl.zeros((BLOCK,), dtype=tl.int32)
    faulty = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, size, BLOCK):
        at = start + columns
        values = tl.load(logits + row * size + at, mask=at < size, other=-float("inf"))
        faulty |= (values != values).to(tl.int32)
        where = tl.where(values > tops, at, where)
        tops = tl.maximum(tops, values)
    top = tl.max(tops, 0)
    first = tl.min(tl.where(tops == top, where, size - 1), 0)
    sums = tl.zeros((BLOCK,), dtype=tl.float64)
    for start in range(0, size, BLOCK):
        at = start + columns
        values = tl.load(logits + row * size + at, mask=at < size, other=-float("inf"))
        sums += tl.exp(values - top).to(tl.float64)
    tl.store(ids + row, first.to(tl.int64))
    tl.store(largest + row, tl.where(tl.max(faulty, 0) > 0, float("nan"), top))
    tl.store(totals + row, tl.sum(sums, 0))
