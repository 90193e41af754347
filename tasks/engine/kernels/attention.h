// Attention over keys and values in blocks of 16 positions, for one instruction set.
//
// A row that continues a text attends alone. Rows of a prompt attend in tiles of up to 16 rows, to 64
// positions at a time, with the softmax of Milakov and Gimelshein (2018). If the processor multiplies
// pairs of bfloat16 and the model is in bfloat16, queries and weights of prompts are rounded to it, as
// in most kernels for it. Each row has its own chain of sums, in an order that only its position
// decides: its bits are the same beside any other rows, and however a prompt is divided.

const int BLOCK = 16, TILE = 16, CHUNK = 64;  // positions of a block and of a chunk, rows of a tile
const int HEADS = 4;                          // heads of a text's row that are computed at once
const int BLEND_V = W < 16 ? 2 : 4;           // vectors of each of HEADS heads that fit into registers
const float NONE = -1e30f;                    // a score that counts as none
const int64_t SOON = 2 * BLOCK;               // positions from a key that is read to one that is prefetched

INLINE vf load_kv(const uint8_t *from, int64_t i, bool wide) {
    return wide ? load((const float *)from + i) : load_bf16((const uint16_t *)from + i);
}

// Keys or values of one head of a layer, as a session's blocks order them.
struct Cache {
    const uint8_t *base;
    const int32_t *blocks;
    int64_t row;   // bytes of a position
    int64_t next;  // bytes to the next head of the layer, 0 after the last one
    bool wide;

    const uint8_t *at(int64_t position) const {
        return base + ((int64_t)blocks[position / BLOCK] * BLOCK + position % BLOCK) * row;
    }
};

static Cache cache_of(const Model *m, const uint8_t *memory, const Piece *piece, int64_t head) {
    bool wide = m->dtype == FLOAT32;
    int64_t row = m->head_dim * (wide ? 4 : 2);
    int64_t next = head + 1 < m->kv_heads ? m->slots * row : 0;
    return {memory + head * m->slots * row, piece->blocks, row, next, wide};
}

// Scores of H queries for the positions `first` to `end` - 1.
//
// The blocks of a text lie anywhere in memory, and the processor would wait for each of them. So
// beside each position, keys of a later block are prefetched, or else those of the next head, and
// the position's values.
template <int H, bool WIDE>
static void score(const Cache *keys, const Cache *values, int64_t first, int64_t end, int64_t D,
                  const float *q, float *scores, int64_t ld) {
    for (int64_t t = first; t < end;) {
        const uint8_t *key = keys->at(t), *value = values->at(t);
        int64_t stop = (t / BLOCK + 1) * BLOCK, past = t + SOON - up(end, BLOCK);
        int64_t other = first + past < end ? first + past : end - 1;
        const uint8_t *soon = past < 0 ? keys->at(t + SOON) : keys->at(other) + keys->next;
        stop = stop < end ? stop : end;
#if FOUR_SUMS
        for (; t + 4 <= stop; t += 4, key += 4 * keys->row) {
            for (int64_t i = 0; i < 4 * keys->row; i += 64) prefetch(soon + i), prefetch(value + i);
            soon += 4 * keys->row, value += 4 * keys->row;
            vf sum[H][4];
            for (int h = 0; h < H; h++)
                for (int i = 0; i < 4; i++) sum[h][i] = vzero();
            for (int64_t d = 0; d < D; d += W) {
                vf k[4];
                for (int i = 0; i < 4; i++) k[i] = load_kv(key + i * keys->row, d, WIDE);
                for (int h = 0; h < H; h++)
                    for (int i = 0; i < 4; i++)
                        sum[h][i] = vfma(load(q + h * D + d), k[i], sum[h][i]);
            }
            for (int h = 0; h < H; h++)
                four_sums(sum[h][0], sum[h][1], sum[h][2], sum[h][3], scores + h * ld + t - first);
        }
#endif
        for (; t < stop; t++, key += keys->row) {
            for (int64_t i = 0; i < keys->row; i += 64) prefetch(soon + i), prefetch(value + i);
            soon += keys->row, value += keys->row;
            vf sum[H];
            for (int h = 0; h < H; h++) sum[h] = vzero();
            for (int64_t d = 0; d < D; d += W) {
                vf k = load_kv(key, d, WIDE);
                for (int h = 0; h < H; h++) sum[h] = vfma(load(q + h * D + d), k, sum[h]);
            }
            for (int h = 0; h < H; h++) scores[h * ld + t - first] = sum_of(sum[h]);
        }
    }
}

// Replaces scores by their exponentials, and returns the sum of these.
static float soften(float *scores, int64_t count) {
    int64_t padded = up(count, W);
    for (int64_t t = count; t < padded; t++) scores[t] = NONE;
    vf all = vzero(), most = splat(NONE);
    for (int64_t t = 0; t < padded; t += W) most = vmax(most, load(scores + t));
    most = splat(max_of(most));
    for (int64_t t = 0; t < padded; t += W) {
        vf e = exponential(load(scores + t) - most);
        store(scores + t, e);
        if (t + W > count)
            for (int64_t i = count; i < t + W; i++) scores[i] = 0;
        all += load(scores + t);
    }
    return sum_of(all);
}

// Sums N vectors of the values, from element `d` of the head on, by the weights of H queries.
template <int H, int N, bool WIDE>
static void blend(const Cache *values, int64_t first, int64_t end, int64_t D, int64_t d,
                  const float *weights, int64_t ld, const float *sums, float *out) {
    vf sum[H][N];
    for (int h = 0; h < H; h++)
        for (int v = 0; v < N; v++) sum[h][v] = vzero();
    for (int64_t t = first; t < end;) {
        const uint8_t *value = values->at(t);
        int64_t stop = (t / BLOCK + 1) * BLOCK;
        for (stop = stop < end ? stop : end; t < stop; t++, value += values->row) {
            vf some[N];
            for (int v = 0; v < N; v++) some[v] = load_kv(value, d + v * W, WIDE);
            for (int h = 0; h < H; h++) {
                vf weight = splat(weights[h * ld + t - first]);
                for (int v = 0; v < N; v++) sum[h][v] = vfma(weight, some[v], sum[h][v]);
            }
        }
    }
    for (int h = 0; h < H; h++)
        for (int v = 0; v < N; v++) store(out + h * D + d + v * W, sum[h][v] / splat(sums[h]));
}

// H heads of a row that share keys, from scaled queries on.
template <int H, bool WIDE>
static void attend_heads(const Cache *keys, const Cache *values, int64_t first, int64_t end,
                         int64_t D, const float *q, float *scores, int64_t ld, float *out) {
    const int MOST = BLEND_V;
    score<H, WIDE>(keys, values, first, end, D, q, scores, ld);
    float sums[H];
    for (int h = 0; h < H; h++) sums[h] = soften(scores + h * ld, end - first);
    int64_t d = 0;
    for (; d + MOST * W <= D; d += MOST * W)
        blend<H, MOST, WIDE>(values, first, end, D, d, scores, ld, sums, out);
    if (MOST > 2)
        for (; d + 2 * W <= D; d += 2 * W)
            blend<H, 2, WIDE>(values, first, end, D, d, scores, ld, sums, out);
    for (; d < D; d += W) blend<H, 1, WIDE>(values, first, end, D, d, scores, ld, sums, out);
}

template <bool WIDE>
static void attend_heads(int heads, const Cache *keys, const Cache *values, int64_t first,
                         int64_t end, int64_t D, const float *q, float *scores, int64_t ld,
                         float *out) {
    switch (heads) {
        case 1: attend_heads<1, WIDE>(keys, values, first, end, D, q, scores, ld, out); break;
        case 2: attend_heads<2, WIDE>(keys, values, first, end, D, q, scores, ld, out); break;
        case 3: attend_heads<3, WIDE>(keys, values, first, end, D, q, scores, ld, out); break;
        default: attend_heads<4, WIDE>(keys, values, first, end, D, q, scores, ld, out); break;
    }
}

static void attend_row(const Attending *a, const Piece *piece, int64_t kv_head) {
    const Model *m = a->step->model;
    const Layer *layer = &m->layer[a->layer];
    int64_t D = m->head_dim, share = m->heads / m->kv_heads, end = piece->position + 1;
    int64_t first = layer->window && end > layer->window ? end - layer->window : 0;
    int64_t ld = up(end - first, W);
    Cache keys = cache_of(m, layer->keys, piece, kv_head);
    Cache values = cache_of(m, layer->values, piece, kv_head);
    float *q = (float *)shoal_scratch(3, HEADS * (D + ld) * 4), *scores = q + HEADS * D;
    vf scale = splat(1 / sqrtf((float)D));
    for (int64_t h = 0; h < share; h += HEADS) {
        int some = (int)(share - h < HEADS ? share - h : HEADS);
        int64_t at = (piece->row * m->heads + kv_head * share + h) * D;
        for (int64_t d = 0; d < some * D; d += W) store(q + d, load(a->queries + at + d) * scale);
        if (keys.wide)
            attend_heads<true>(some, &keys, &values, first, end, D, q, scores, ld, a->out + at);
        else attend_heads<false>(some, &keys, &values, first, end, D, q, scores, ld, a->out + at);
    }
}

// Rows of a prompt that attend together: `rows` of them from `position` on, `heads` heads each.
// Column h * rows + i of the scores is head h of row i. The last vector is filled up with zeros.
struct Tile {
    int64_t position, rows, row, head, heads, window;
    int64_t columns() const { return up(heads * rows, W); }
};

// Copies positions to float32. Returns their number.
static int64_t widen(const Cache *from, int64_t first, int64_t end, int64_t D, float *to) {
    int64_t count = end - first < CHUNK ? end - first : CHUNK;
    for (int64_t t = 0; t < count; t++) {
        const uint8_t *at = from->at(first + t);
        for (int64_t d = 0; d < D; d += W) store(to + t * D + d, load_kv(at, d, from->wide));
    }
    return count;
}

// Removes the scores of positions to which a row does not attend, and sets their weights to zero.
static void mask(const Tile *tile, int64_t first, int64_t count, float *scores, float with) {
    int64_t columns = tile->columns();
    for (int64_t t = 0; t < count; t++)
        for (int64_t i = 0; i < tile->rows; i++) {
            int64_t at = tile->position + i, key = first + t;
            if (key <= at && (!tile->window || key > at - tile->window)) continue;
            for (int64_t h = 0; h < tile->heads; h++) scores[t * columns + h * tile->rows + i] = with;
        }
}

// Converts the scores of a chunk to weights. `most` and `sums` belong to the columns; `change` is
// what earlier sums must be multiplied with. Returns whether any of these is not 1.
static bool reweigh(const Tile *tile, int64_t first, int64_t count, float *scores, float *most,
                    float *sums, float *change) {
    int64_t columns = tile->columns();
    bool masked = first + count > tile->position ||
                  (tile->window && first <= tile->position + tile->rows - 1 - tile->window);
    if (masked) mask(tile, first, count, scores, NONE);
    bool changed = false;
    for (int64_t c = 0; c < columns; c += W) {
        vf old = load(most + c), now = old;
        for (int64_t t = 0; t < count; t++) now = vmax(now, load(scores + t * columns + c));
        for (int64_t t = 0; t < count; t++) {
            float *at = scores + t * columns + c;
            store(at, exponential(load(at) - now));
        }
        store(most + c, now);
        store(change + c, exponential(old - now));
        for (int i = 0; i < W; i++) changed |= change[c + i] != 1;
    }
    if (masked) mask(tile, first, count, scores, 0);
    for (int64_t c = 0; c < columns; c += W) {
        vf sum = load(sums + c) * load(change + c);
        for (int64_t t = 0; t < count; t++) sum += load(scores + t * columns + c);
        store(sums + c, sum);
    }
    return changed;
}

// Scores of the columns for some positions, and the sums of their values by weights, which replace
// the scores. `wide` has room for CHUNK positions.
static int64_t tile_scores(const Cache *keys, int64_t first, int64_t end, int64_t D, const float *q,
                           int64_t columns, float *wide, float *scores) {
    int64_t count = widen(keys, first, end, D, wide);
    memset(scores, 0, count * columns * 4);
    multiply<Number>(count, columns, D, wide, D, 1, q, columns, scores, columns);
    return count;
}

static void tile_sums(const Cache *values, int64_t first, int64_t end, int64_t D, float *scores,
                      int64_t columns, float *wide, float *out) {
    int64_t count = widen(values, first, end, D, wide);
    multiply<Number>(columns, D, count, scores, 1, columns, wide, D, out, D);
}

// The same in pairs of bfloat16: of elements of a head for scores, and of positions for sums. Only
// kernels with BF16_DOTS call this.
INLINE vi pair_of(vf first, vf second) { return ((vi)first >> 16 & 0xffff) | ((vi)second & ~0xffff); }
INLINE vf to_halves(vf a) { return (vf)((vi)a + ((vi)a >> 16 & 1) + 0x7fff); }  // the upper 16 bits

static int64_t pair_scores(const Cache *keys, const Cache *values, int64_t first, int64_t end, int64_t D,
                           const float *q, int64_t columns, float *scores) {
    int64_t count = end - first < CHUNK ? end - first : CHUNK;
    memset(scores, 0, count * columns * 4);
    for (int64_t t = 0; t < count; t += BLOCK) {  // positions of a block lie one behind the other
        int64_t some = count - t < BLOCK ? count - t : BLOCK;
        for (int64_t at = 0; at < some * D * 2; at += 64) prefetch(values->at(first + t) + at);
        const float *x = (const float *)keys->at(first + t);
        multiply<Pair>(some, columns, D / 2, x, D / 2, 1, q, columns, scores + t * columns, columns);
    }
    return count;
}

static void pair_sums(const Cache *values, int64_t first, int64_t end, int64_t D, float *scores,
                      int64_t columns, float *wide, float *out) {
    int64_t count = end - first < CHUNK ? end - first : CHUNK, pairs = (count + 1) / 2;
    for (int64_t t = 0; t < count; t += 2) {
        bool two = t + 1 < count;
        const uint8_t *one = values->at(first + t), *other = two ? values->at(first + t + 1) : one;
        for (int64_t d = 0; d < D; d += W) {
            vf more = two ? load_kv(other, d, false) : vzero();
            store(wide + t / 2 * D + d, (vf)pair_of(load_kv(one, d, false), more));
        }
        for (int64_t c = 0; c < columns; c += W) {
            vf more = two ? load(scores + (t + 1) * columns + c) : vzero();
            vf weight = to_halves(load(scores + t * columns + c));
            store(scores + t / 2 * columns + c, (vf)pair_of(weight, to_halves(more)));
        }
    }
    multiply<Pair>(columns, D, pairs, scores, 1, columns, wide, D, out, D);
}

static void attend_tile(const Attending *a, const Piece *piece, int64_t kv_head, const Tile *tile) {
    const Model *m = a->step->model;
    const Layer *layer = &m->layer[a->layer];
    int64_t D = m->head_dim, columns = tile->columns(), end = tile->position + tile->rows;
    Cache keys = cache_of(m, layer->keys, piece, kv_head);
    Cache values = cache_of(m, layer->values, piece, kv_head);
    bool pairs = BF16_DOTS && m->dtype == BFLOAT16;
    float *q = (float *)shoal_scratch(3, (2 * columns * D + CHUNK * (D + columns) + 3 * columns) * 4);
    float *out = q + columns * D, *wide = out + columns * D, *scores = wide + CHUNK * D;
    float *most = scores + CHUNK * columns, *sums = most + columns, *change = sums + columns;
    memset(q, 0, 2 * columns * D * 4);
    float scale = 1 / sqrtf((float)D);
    for (int64_t h = 0; h < tile->heads; h++)
        for (int64_t i = 0; i < tile->rows; i++) {
            const float *from = a->queries + ((tile->row + i) * m->heads + tile->head + h) * D;
            int64_t c = h * tile->rows + i;
            for (int64_t d = 0; d < D; d++)
                if (pairs) ((uint16_t *)q)[(d / 2 * columns + c) * 2 + d % 2] = to_half(from[d] * scale);
                else q[d * columns + c] = from[d] * scale;
        }
    for (int64_t c = 0; c < columns; c++) most[c] = NONE, sums[c] = 0;
    int64_t first = tile->window && tile->position >= tile->window
                        ? (tile->position + 1 - tile->window) / CHUNK * CHUNK : 0;
    for (; first < end; first += CHUNK) {
        int64_t count = pairs ? pair_scores(&keys, &values, first, end, D, q, columns, scores)
                              : tile_scores(&keys, first, end, D, q, columns, wide, scores);
        if (reweigh(tile, first, count, scores, most, sums, change))
            for (int64_t c = 0; c < columns; c++)
                for (int64_t d = 0; d < D; d += W)
                    store(out + c * D + d, load(out + c * D + d) * splat(change[c]));
        if (pairs) pair_sums(&values, first, end, D, scores, columns, wide, out);
        else tile_sums(&values, first, end, D, scores, columns, wide, out);
    }
    for (int64_t h = 0; h < tile->heads; h++)
        for (int64_t i = 0; i < tile->rows; i++) {
            float *to = a->out + ((tile->row + i) * m->heads + tile->head + h) * D;
            int64_t c = h * tile->rows + i;
            for (int64_t d = 0; d < D; d += W) store(to + d, load(out + c * D + d) / splat(sums[c]));
        }
}

// Tiles of a piece: the most rows and heads of one, the number of tiles, and the parts of the heads
// that share keys.
struct Tiles {
    int64_t rows, heads, count, parts;
};

static Tiles tiles_of(const Model *m, const Piece *p) {
    int64_t share = m->heads / m->kv_heads, count = (p->count + TILE - 1) / TILE;
    // Keys and values are read once for more heads, unless threads would have nothing to do.
    int64_t heads = m->kv_heads * count < shoal_threads() ? HEADS : 2 * HEADS;
    // Rows are divided evenly, in fours: so many rows of HEADS heads fill a vector.
    int64_t rows = up((p->count + count - 1) / count, 4);
    return {rows, heads, (p->count + rows - 1) / rows, (share + heads - 1) / heads};
}

// Units of work: for each piece, its tiles (or its row) and heads of keys.
static int64_t units_of(const Model *m, const Piece *p) {
    if (p->decode) return m->kv_heads;
    Tiles tiles = tiles_of(m, p);
    return m->kv_heads * tiles.count * tiles.parts;
}

static void attend_unit(void *context, int64_t unit) {
    const Attending *a = (const Attending *)context;
    const Model *m = a->step->model;
    const Piece *piece = a->step->piece;
    for (int64_t units; unit >= (units = units_of(m, piece)); piece++) unit -= units;
    int64_t kv_head = unit % m->kv_heads;
    unit /= m->kv_heads;
    if (piece->decode) {
        attend_row(a, piece, kv_head);
        return;
    }
    Tiles tiles = tiles_of(m, piece);
    int64_t share = m->heads / m->kv_heads, head = unit % tiles.parts * tiles.heads;
    int64_t heads = share - head < tiles.heads ? share - head : tiles.heads;
    int64_t first = unit / tiles.parts * tiles.rows, rows = piece->count - first;
    if (rows > tiles.rows) rows = tiles.rows;
    Tile tile = {piece->position + first, rows, piece->row + first, kv_head * share + head, heads,
                 m->layer[a->layer].window};
    attend_tile(a, piece, kv_head, &tile);
}

static void attend(const Attending *a) {
    const Model *m = a->step->model;
    int64_t units = 0, cost = 0;
    for (int64_t i = 0; i < a->step->pieces; i++) {
        const Piece *p = &a->step->piece[i];
        units += units_of(m, p);
        cost += p->count * (p->position + p->count) * m->heads * m->head_dim / 2;
    }
    shoal_parallel(attend_unit, (void *)a, units, cost);
}
