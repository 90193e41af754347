// Products of rows with packed matrices, for one instruction set (see simd.h).
//
// An output is a sum over 64 inputs at a time, in their order (FLOAT32, BFLOAT16, INT8), or over
// groups of 32 inputs whose products are exact integers (INT4, and INT8 with dot-product
// instructions). So a row has the same bits beside any other rows.
//
// Layout. Outputs are packed in panels of 64, the last one filled up with zeros; inputs are filled
// up to a multiple of 32:
//   FLOAT32   [panel][input][64]
//   BFLOAT16  [panel][input / 2][64][2]
//   INT8      [panel][input / 32] { [8][64][4] int8, [32 / group][64] fp16 scales }
//   INT4      [panel][input / 32] { [4][64][4] bytes, [64] fp16 scales, [64] fp16 minima }
// A byte of INT4 has input 4j + i in its low nibble and input 16 + 4j + i in its high one.

const int PANEL = 64, GROUP = 32, DEEP = 64, ROWS = 256;
const int V = PANEL / W;  // vectors of a panel
const int64_t AHEAD = 4096;  // bytes from what is read to what is prefetched

inline int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

static bool dots(int64_t kind) {
    return kind == INT4 ? INT4_DOTS : kind == INT8 ? INT8_DOTS : kind == BFLOAT16 && BF16_DOTS;
}

static int64_t block_bytes(int64_t kind, int64_t group) {  // 64 outputs x 32 inputs
    if (kind == FLOAT32) return 8192;
    if (kind == BFLOAT16) return 4096;
    if (kind == INT8) return 2048 + 128 * (GROUP / group);
    return 1024 + 256;
}

static int64_t packed_bytes(int64_t kind, int64_t group, int64_t outputs, int64_t inputs) {
    return up(outputs, PANEL) / PANEL * (up(inputs, GROUP) / GROUP) * block_bytes(kind, group);
}

static inline const uint8_t *block_of(const Matrix *m, int64_t panel, int64_t block) {
    int64_t blocks = up(m->inputs, GROUP) / GROUP;
    return m->data + (panel * blocks + block) * block_bytes(m->kind, m->group);
}

// ---- packing

struct Packing {
    const Matrix *matrix;
    const uint8_t *q, *scale, *minimum;
    uint8_t *data;
};

// Bytes of 32 inputs of an output, before packing.
static int64_t run_bytes(int64_t kind) {
    return kind == FLOAT32 ? 128 : kind == BFLOAT16 ? 64 : kind == INT8 ? 32 : 16;
}

// Packs a block of one output, 4 bytes at a time. Where the inputs end, it is filled with zeros.
static void pack_column(const Packing *p, int64_t n, int64_t block, int o, uint8_t *to) {
    const Matrix *m = p->matrix;
    int64_t K = m->inputs, run = run_bytes(m->kind), first = block * GROUP;
    int64_t bytes = K * run / GROUP - block * run;
    if (bytes > run) bytes = run;
    uint32_t words[32] = {};
    memcpy(words, p->q + n * (K * run / GROUP) + block * run, bytes);
    uint32_t flip = m->kind == INT8 && INT8_UNSIGNED ? 0x80808080u : 0;
    for (int i = 0; i < run / 4; i++) {
        uint32_t word = words[i] ^ flip;
        memcpy(to + (i * PANEL + o) * 4, &word, 4);
    }
    if (m->kind == INT8) {
        int groups = GROUP / (int)m->group;
        for (int g = 0; g < groups && first + g * m->group < K; g++)
            memcpy(to + 2048 + (g * PANEL + o) * 2,
                   p->scale + (n * (K / m->group) + block * groups + g) * 2, 2);
    } else if (m->kind == INT4) {
        memcpy(to + 1024 + o * 2, p->scale + (n * (K / GROUP) + block) * 2, 2);
        memcpy(to + 1152 + o * 2, p->minimum + (n * (K / GROUP) + block) * 2, 2);
    }
}

static void pack_panel(void *context, int64_t panel) {
    const Packing *p = (const Packing *)context;
    const Matrix *m = p->matrix;
    int64_t blocks = up(m->inputs, GROUP) / GROUP, bytes = block_bytes(m->kind, m->group);
    uint8_t *to = p->data + panel * blocks * bytes;
    memset(to, 0, blocks * bytes);
    for (int64_t block = 0; block < blocks; block++)
        for (int o = 0; o < PANEL && panel * PANEL + o < m->outputs; o++)
            pack_column(p, panel * PANEL + o, block, o, to + block * bytes);
}

static void pack(const Matrix *m, const void *q, const void *scale, const void *minimum,
                 uint8_t *data) {
    Packing p = {m, (const uint8_t *)q, (const uint8_t *)scale, (const uint8_t *)minimum, data};
    shoal_parallel(pack_panel, &p, up(m->outputs, PANEL) / PANEL, m->outputs * m->inputs);
}

// ---- rows, as the products read them

// Up to ROWS rows of up to `blocks` x 32 inputs, in the form that a kind of matrix needs.
struct Rows {
    int64_t count, inputs, blocks;
    float *values;     // [input / 64][row][64]
    uint16_t *halves;  // the same in bfloat16
    int8_t *q;         // [block][row][32]
    float *scales;     // [block][row]
    float *offsets;    // [block][row]: scale times the sum of `q`
    int32_t *sums;     // [block][row][3]: SUMS_BY times the sums of 16, of 16 more, and of all `q`
};

static Rows rows_of(int64_t count, int64_t inputs, int64_t kind) {
    Rows r = {};
    r.count = count, r.inputs = inputs, r.blocks = up(inputs, GROUP) / GROUP;
    int64_t size = count * up(inputs, DEEP);
    if (!dots(kind)) r.values = (float *)shoal_scratch(0, size * 4);
    else if (kind == BFLOAT16) r.halves = (uint16_t *)shoal_scratch(0, size * 2);
    else {
        r.q = (int8_t *)shoal_scratch(0, size + count * r.blocks * 20);
        r.scales = (float *)(r.q + size);
        r.offsets = r.scales + count * r.blocks;
        r.sums = (int32_t *)(r.offsets + count * r.blocks);
    }
    return r;
}

static inline uint16_t to_half(float value) {  // bfloat16, to nearest even; a NaN stays one
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float of_half(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Quantises 32 values to int8 with one scale.
static void quantise(const float *x, int8_t *q, float *scale, int32_t *sums) {
    vf most = vzero(), odd = vzero();  // `odd` is zero, or a NaN where a value is not finite
    for (int i = 0; i < GROUP; i += W) {
        most = vmax(most, vabs(load(x + i)));
        odd = odd + (load(x + i) - load(x + i));
    }
    float largest = max_of(most);
    if (sum_of(odd) != 0) {  // the whole row becomes NaN, as it does in other products
        *scale = NAN;
        memset(q, 0, GROUP);
        sums[0] = sums[1] = sums[2] = 0;
        return;
    }
    *scale = largest / 127;
    vf inverse = splat(largest > 1e-30f ? 127 / largest : 0);
    for (int half = 0; half < 2; half++) {
        vi sum = vizero();
        for (int i = half * 16; i < half * 16 + 16; i += W) {
            vi values = to_int(load(x + i) * inverse);
            store_bytes(q + i, values);
            sum += values;
        }
        sums[half] = total_of(sum);
    }
    sums[2] = sums[0] + sums[1];
}

// Converts one row.
static void set_row(const Rows *r, int64_t row, const float *x) {
    int64_t whole = r->inputs / DEEP, padded = up(r->inputs, DEEP) / DEEP;
    for (int64_t deep = 0; deep < padded; deep++) {
        float rest[DEEP];
        const float *from = x + deep * DEEP;
        if (deep == whole) {
            memset(rest, 0, sizeof rest);
            memcpy(rest, from, (r->inputs - deep * DEEP) * 4);
            from = rest;
        }
        int64_t at = deep * r->count + row;
        if (r->values) memcpy(r->values + at * DEEP, from, DEEP * 4);
        else if (r->halves)
            for (int i = 0; i < DEEP; i++) r->halves[at * DEEP + i] = to_half(from[i]);
        else
            for (int64_t block = 2 * deep; block < 2 * deep + 2 && block < r->blocks; block++) {
                int64_t there = block * r->count + row;
                int32_t *sums = r->sums + 3 * there;
                quantise(from + block % 2 * GROUP, r->q + there * GROUP, r->scales + there, sums);
                r->offsets[there] = r->scales[there] * (float)sums[2];
                for (int i = 0; i < 3; i++) sums[i] *= SUMS_BY;
            }
    }
}

// ---- products in float32, and of pairs in bfloat16

// Elements of a product of T: one number, or a pair whose products are added.
struct Number {
    typedef vf Vector;
    INLINE vf each(const float *p) { return splat(*p); }
    INLINE vf some(const float *p) { return load(p); }
    INLINE vf added(vf sum, vf a, vf b) { return vfma(a, b, sum); }
};
struct Pair {
    typedef vi Vector;
    INLINE vi each(const float *p) { return (vi)splat(*p); }
    INLINE vi some(const float *p) { return loadi(p); }
#if BF16_DOTS
    INLINE vf added(vf sum, vi a, vi b) { return dot_pairs(sum, a, b); }
#else
    INLINE vf added(vf sum, vi, vi) { return sum; }  // never called
#endif
};

// y[rows][V2 vectors] += x[rows][depth] * b[depth][V2 vectors]. Elements of x are at
// row * ldx + depth * next.
template <class T, int M, int V2>
static inline void micro(int64_t depth, const float *x, int64_t ldx, int64_t next, const float *b,
                         int64_t ldb, float *y, int64_t ldy) {
    vf sum[M][V2];
    for (int m = 0; m < M; m++)
        for (int v = 0; v < V2; v++) sum[m][v] = vzero();
    for (int64_t k = 0; k < depth; k++) {
        typename T::Vector w[V2];
        for (int v = 0; v < V2; v++) w[v] = T::some(b + k * ldb + v * W);
        for (int m = 0; m < M; m++) {
            typename T::Vector one = T::each(x + m * ldx + k * next);
            for (int v = 0; v < V2; v++) sum[m][v] = T::added(sum[m][v], one, w[v]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int v = 0; v < V2; v++) {
            float *to = y + m * ldy + v * W;
            store(to, load(to) + sum[m][v]);
        }
}

// V2 is such that the sums, the weights and a value of x fit into registers, and that as many sums
// are independent as the processor has additions under way.
template <class T, int M, int V2>
static void columns(int64_t width, int64_t depth, const float *x, int64_t ldx, int64_t next,
                    const float *b, int64_t ldb, float *y, int64_t ldy) {
    int64_t c = 0;
    for (; c + V2 * W <= width; c += V2 * W) micro<T, M, V2>(depth, x, ldx, next, b + c, ldb, y + c, ldy);
    if (V2 > 2)
        for (; c + 2 * W <= width; c += 2 * W) micro<T, M, 2>(depth, x, ldx, next, b + c, ldb, y + c, ldy);
    for (; c < width; c += W) micro<T, M, 1>(depth, x, ldx, next, b + c, ldb, y + c, ldy);
}

// y[rows][width] += x[rows][depth] * b[depth][width]; the width is a multiple of W.
template <class T>
static void multiply(int64_t rows, int64_t width, int64_t depth, const float *x, int64_t ldx,
                     int64_t next, const float *b, int64_t ldb, float *y, int64_t ldy) {
    while (rows > 0) {
        // The fewest rounds, with rows divided evenly among them.
        int64_t rounds = (rows + 5) / 6, some = (rows + rounds - 1) / rounds;
        switch (some) {
            case 1: columns<T, 1, ONE_V>(width, depth, x, ldx, next, b, ldb, y, ldy); break;
            case 2: columns<T, 2, TWO_V>(width, depth, x, ldx, next, b, ldb, y, ldy); break;
            case 3: columns<T, 3, TWO_V>(width, depth, x, ldx, next, b, ldb, y, ldy); break;
            case 4: columns<T, 4, FOUR_V>(width, depth, x, ldx, next, b, ldb, y, ldy); break;
            case 5: columns<T, 5, MANY_V>(width, depth, x, ldx, next, b, ldb, y, ldy); break;
            default: columns<T, 6, MANY_V>(width, depth, x, ldx, next, b, ldb, y, ldy); break;
        }
        rows -= some, x += some * ldx, y += some * ldy;
    }
}

// Scales for the results of `byte_of`, which are 2^24 times as large as the weights.
static inline vf byte_scale(const uint8_t *from) { return load_fp16(from) * splat(1.0f / (1 << 24)); }

// The weights of a block in float32: [input][64].
static inline void unpack_block(const Matrix *m, const uint8_t *from, float *to) {
    if (m->kind == BFLOAT16) {
        for (int k = 0; k < GROUP; k += 2)
            for (int v = 0; v < V; v++) {
                vi pair = loadi(from + (k / 2 * PANEL + v * W) * 4);
                store(to + k * PANEL + v * W, low_half(pair));
                store(to + (k + 1) * PANEL + v * W, high_half(pair));
            }
    } else if (m->kind == INT8) {  // not stored for dot products
        for (int v = 0; v < V; v++)
            for (int k = 0; k < GROUP; k += 4) {
                vf scale = byte_scale(from + 2048 + (k / m->group * PANEL + v * W) * 2);
                vi four = loadi(from + (k / 4 * PANEL + v * W) * 4);
                store(to + (k + 0) * PANEL + v * W, byte_of<0>(four) * scale);
                store(to + (k + 1) * PANEL + v * W, byte_of<1>(four) * scale);
                store(to + (k + 2) * PANEL + v * W, byte_of<2>(four) * scale);
                store(to + (k + 3) * PANEL + v * W, byte_of<3>(four) * scale);
            }
    } else {
        for (int v = 0; v < V; v++) {
            vf scale = load_fp16(from + 1024 + v * W * 2), minimum = load_fp16(from + 1152 + v * W * 2);
            for (int j = 0; j < 4; j++) {
                vi four = loadi(from + (j * PANEL + v * W) * 4);
                for (int i = 0; i < 4; i++) {
                    vi both = four >> (8 * i);
                    store(to + (4 * j + i) * PANEL + v * W, vfma(to_float(both & 15), scale, minimum));
                    store(to + (16 + 4 * j + i) * PANEL + v * W,
                          vfma(to_float(both >> 4 & 15), scale, minimum));
                }
            }
        }
    }
}

// Beside each round of rows, a part of the next weights is prefetched. The processor itself does not
// read so far ahead, and would wait for the weights in every first round. With few rounds there is
// too little to compute meanwhile.
static void panel_of_values(const Matrix *m, int64_t panel, const Rows *r, float *y) {
    alignas(64) float weights[DEEP * PANEL];
    for (int64_t block = 0; block < r->blocks; block += 2) {
        int64_t depth = block + 2 <= r->blocks ? DEEP : GROUP;
        const uint8_t *from = block_of(m, panel, block);
        const float *b = (const float *)from;
        if (m->kind != FLOAT32) {
            for (int64_t i = 0; i * GROUP < depth; i++)
                unpack_block(m, from + i * block_bytes(m->kind, m->group),
                             weights + i * GROUP * PANEL);
            b = weights;
        }
        const float *x = r->values + block / 2 * r->count * DEEP;
        const uint8_t *ahead = from + depth / GROUP * block_bytes(m->kind, m->group);
        int64_t rounds = (r->count + 5) / 6, lines = rounds > 2 ? (ahead - from) / 64 : 0;
        float *to = y;
        for (int64_t rows = r->count; rounds; rounds--) {
            int64_t some = (rows + rounds - 1) / rounds, part = (lines + rounds - 1) / rounds;
            for (int64_t i = 0; i < part; i++) prefetch(ahead + i * 64);
            multiply<Number>(some, PANEL, depth, x, DEEP, 1, b, PANEL, to, PANEL);
            rows -= some, x += some * DEEP, to += some * PANEL;
            lines -= part, ahead += part * 64;
        }
    }
}

// The same for one row, without unpacking the weights into memory.
static void panel_of_one(const Matrix *m, int64_t panel, const Rows *r, float *y) {
    vf sum[V];
    for (int v = 0; v < V; v++) sum[v] = vzero();
    const uint8_t *from = block_of(m, panel, 0);
    int64_t bytes = block_bytes(m->kind, m->group);
    const float *x = r->values;
    for (int64_t block = 0; block < r->blocks; block++, from += bytes, x += GROUP) {
        if (block && block % 2 == 0)
            for (int v = 0; v < V; v++) {
                store(y + v * W, load(y + v * W) + sum[v]);
                sum[v] = vzero();
            }
        for (int64_t i = 0; i < bytes; i += 64) prefetch(from + bytes + i);
        if (m->kind == BFLOAT16) {
            for (int k = 0; k < GROUP; k += 2) {
                vf one = splat(x[k]), two = splat(x[k + 1]);
                for (int v = 0; v < V; v++) {
                    vi pair = loadi(from + (k / 2 * PANEL + v * W) * 4);
                    sum[v] = vfma(one, low_half(pair), sum[v]);
                    sum[v] = vfma(two, high_half(pair), sum[v]);
                }
            }
        } else {
            alignas(64) float scales[2][PANEL];
            for (int g = 0; g < GROUP / m->group; g++)
                for (int v = 0; v < V; v++)
                    store(scales[g] + v * W, byte_scale(from + 2048 + (g * PANEL + v * W) * 2));
            for (int k = 0; k < GROUP; k += 4) {
                const float *scale = scales[k / m->group];
                vf x0 = splat(x[k]), x1 = splat(x[k + 1]), x2 = splat(x[k + 2]), x3 = splat(x[k + 3]);
                for (int v = 0; v < V; v++) {
                    vi four = loadi(from + (k / 4 * PANEL + v * W) * 4);
                    vf by = load(scale + v * W);
                    sum[v] = vfma(x0, byte_of<0>(four) * by, sum[v]);
                    sum[v] = vfma(x1, byte_of<1>(four) * by, sum[v]);
                    sum[v] = vfma(x2, byte_of<2>(four) * by, sum[v]);
                    sum[v] = vfma(x3, byte_of<3>(four) * by, sum[v]);
                }
            }
        }
    }
    for (int v = 0; v < V; v++) store(y + v * W, load(y + v * W) + sum[v]);
}

// ---- products with dot-product instructions

#include "dots.h"

#if BF16_DOTS
// Beside each pair of inputs, LINES lines of what is read later are prefetched, from `ahead` on.
template <int M, int LINES>
static inline void halves_micro(int64_t depth, const uint16_t *x, const uint8_t *from,
                                const uint8_t *ahead, float *y) {
    vf sum[M][V];
    for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) sum[m][v] = vzero();
    for (int64_t k = 0; k < depth; k += 2) {
        for (int i = 0; i < LINES; i++) prefetch(ahead + (k / 2 * LINES + i) * 64);
        for (int v = 0; v < V; v++) {
            vi pair = loadi(from + (k / 2 * PANEL + v * W) * 4);
            for (int m = 0; m < M; m++)
                sum[m][v] = dot_halves(sum[m][v], pair, x + m * DEEP + k);
        }
    }
    for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) {
            float *to = y + m * PANEL + v * W;
            store(to, load(to) + sum[m][v]);
        }
}

template <int M>
static void halves_rows(int64_t depth, const uint16_t *x, const uint8_t *from, float *y,
                        const uint8_t *ahead, int64_t lines) {
    if (lines == 4) halves_micro<M, 4>(depth, x, from, ahead, y);
    else if (lines == 2) halves_micro<M, 2>(depth, x, from, ahead, y);
    else if (lines == 1) halves_micro<M, 1>(depth, x, from, ahead, y);
    else halves_micro<M, 0>(depth, x, from, ahead, y);
}

// The next weights are prefetched a few lines at a time, so that the processor waits for memory
// while it computes: all at once, they would fill its queue, and it would wait.
static void panel_of_halves(const Matrix *m, int64_t panel, const Rows *r, float *y) {
    for (int64_t block = 0; block < r->blocks; block += 2) {
        int64_t depth = block + 2 <= r->blocks ? DEEP : GROUP, rows = r->count;
        const uint8_t *from = block_of(m, panel, block);
        const uint16_t *x = r->halves + block / 2 * r->count * DEEP;
        const uint8_t *ahead = from + depth * PANEL * 4;
        int64_t left = rows > HALVES_FETCH_ROWS ? 4 : 0;  // lines beside each pair of inputs
        for (float *to = y; rows > 0;) {
            int64_t rounds = (rows + 5) / 6, some = (rows + rounds - 1) / rounds;
            int64_t lines = (left + rounds - 1) / rounds;
            switch (some) {
                case 1: halves_rows<1>(depth, x, from, to, ahead, lines); break;
                case 2: halves_rows<2>(depth, x, from, to, ahead, lines); break;
                case 3: halves_rows<3>(depth, x, from, to, ahead, lines); break;
                case 4: halves_rows<4>(depth, x, from, to, ahead, lines); break;
                case 5: halves_rows<5>(depth, x, from, to, ahead, lines); break;
                default: halves_rows<6>(depth, x, from, to, ahead, lines); break;
            }
            ahead += depth / 2 * lines * 64, left -= lines;
            rows -= some, x += some * DEEP, to += some * PANEL;
        }
    }
}
#endif

// ---- whole products

struct Multiplying {
    const Matrix *matrix;
    const Rows *rows;
    void *out;  // rows x `stride`
    int64_t stride, kind;
};

static void multiply_panel(void *context, int64_t panel) {
    const Multiplying *p = (const Multiplying *)context;
    const Matrix *m = p->matrix;
    const Rows *r = p->rows;
    float *y = (float *)shoal_scratch(1, ROWS * PANEL * 4);
    bool one = r->count == 1 && (m->kind == BFLOAT16 || m->kind == INT8) && !dots(m->kind);
    memset(y, 0, r->count * PANEL * 4);
    if (one) panel_of_one(m, panel, r, y);
    else if (!dots(m->kind)) panel_of_values(m, panel, r, y);
#if BF16_DOTS
    else if (m->kind == BFLOAT16) panel_of_halves(m, panel, r, y);
#endif
#if HAS_DOTS
    else panel_of_dots(m, panel, r, y);
#endif
    int64_t first = panel * PANEL, width = m->outputs - first < PANEL ? m->outputs - first : PANEL;
    for (int64_t row = 0; row < r->count; row++) {
        float *from = y + row * PANEL;
        if (m->bias)
            for (int64_t i = 0; i < width; i++) from[i] += m->bias[first + i];
        int64_t at = row * p->stride + first;
        if (p->kind == FLOAT32) memcpy((float *)p->out + at, from, width * 4);
        else
            for (int64_t i = 0; i < width; i++) ((uint16_t *)p->out)[at + i] = to_half(from[i]);
    }
}

static void multiply_rows(const Matrix *m, const Rows *r, void *out, int64_t kind) {
    Multiplying p = {m, r, out, m->outputs, kind};
    int64_t cost = up(m->outputs, PANEL) / PANEL * r->blocks * block_bytes(m->kind, m->group);
    shoal_parallel(multiply_panel, &p, up(m->outputs, PANEL) / PANEL, cost * ((r->count + 3) / 4));
}

// Where rows come from: float32 or bfloat16 in memory, rows x `stride`.
struct Setting {
    const Rows *rows;
    const uint8_t *x;
    int64_t kind, stride;
};

static void set_one(void *context, int64_t row) {
    const Setting *s = (const Setting *)context;
    int64_t inputs = s->rows->inputs;
    if (s->kind == FLOAT32) {
        set_row(s->rows, row, (const float *)s->x + row * s->stride);
        return;
    }
    float *wide = (float *)shoal_scratch(2, inputs * 4);
    const uint16_t *from = (const uint16_t *)s->x + row * s->stride;
    for (int64_t i = 0; i < inputs; i++) wide[i] = of_half(from[i]);
    set_row(s->rows, row, wide);
}

static void product(const Product *p) {
    int64_t size = p->kind == FLOAT32 ? 4 : 2, inputs = p->matrix->inputs;
    for (int64_t first = 0; first < p->rows; first += ROWS) {
        int64_t count = p->rows - first < ROWS ? p->rows - first : ROWS;
        Rows rows = rows_of(count, inputs, p->matrix->kind);
        Setting s = {&rows, (const uint8_t *)p->x + first * p->stride * size, p->kind, p->stride};
        shoal_parallel(set_one, &s, count, count * inputs);
        uint8_t *out = (uint8_t *)p->out + first * p->matrix->outputs * size;
        multiply_rows(p->matrix, &rows, out, p->kind);
    }
}
