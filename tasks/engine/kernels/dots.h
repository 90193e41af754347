// Products with dot-product instructions for bytes, for one instruction set (see products.h).
//
// The loop over the inputs of a block is not unrolled, because the processor recognises a stream of
// weights only if their loads stay in the order of memory: Zen 4 reads 15 % more bytes per second.
#if HAS_DOTS

const int64_t SOME_ROWS = 32;  // whose sums stay in the first cache

// Adds a block of 32 inputs to V2 vectors of outputs, from vector `first` on, of M rows. `at` is the
// place of the first row's block in `r`. GROUPS are those of a block's scales.
template <int KIND, int GROUPS, int M, int V2, bool FETCH>
INLINE void dots_tile(const uint8_t *from, int first, const Rows *r, int64_t at, float *y) {
    const int RUNS = (KIND == INT4 ? 4 : 8) / GROUPS, WHOLE = GROUPS == 1 ? 2 : 0;
    const int8_t *q = r->q + at * GROUP;
    const int32_t *sums = r->sums + at * 3;
    const float *by = r->scales + at, *offsets = r->offsets + at;
    const uint8_t *scales = from + (KIND == INT4 ? 1024 : 2048) + first * W * 2;
    from += first * W * 4, y += first * W;
    for (int g = 0; g < GROUPS; g++) {
        vi dot[M][V2];
        for (int m = 0; m < M; m++)
            for (int v = 0; v < V2; v++)
                dot[m][v] = KIND == INT4 ? vizero() : bytes_start(sums + m * 3 + WHOLE + g);
#pragma GCC unroll 1
        for (int j = g * RUNS; j < (g + 1) * RUNS; j++) {
            vi four[V2];
            for (int v = 0; v < V2; v++) {
                const uint8_t *here = from + (j * PANEL + v * W) * 4;
                four[v] = loadi(here);
                if (FETCH && v * W % 16 == 0) prefetch(here + AHEAD);
            }
            const int8_t *x = q + 4 * j;
            if (KIND == INT4) {
                vi half[V2];
                for (int v = 0; v < V2; v++) half[v] = low_nibbles(four[v]);
                for (int m = 0; m < M; m++)
                    for (int v = 0; v < V2; v++)
                        dot[m][v] = dot_add(dot[m][v], half[v], x + m * GROUP);
                for (int v = 0; v < V2; v++) half[v] = high_nibbles(four[v]);
                for (int m = 0; m < M; m++)
                    for (int v = 0; v < V2; v++)
                        dot[m][v] = dot_add(dot[m][v], half[v], x + m * GROUP + 16);
            } else
                for (int m = 0; m < M; m++)
                    for (int v = 0; v < V2; v++)
                        dot[m][v] = bytes_add(dot[m][v], four[v], x + m * GROUP);
        }
        for (int v = 0; v < V2; v++) {
            vf scale = load_fp16(scales + (g * PANEL + v * W) * 2), minimum;
            if (KIND == INT4) minimum = load_fp16(scales + (PANEL + v * W) * 2);
            for (int m = 0; m < M; m++) {
                float *to = y + m * PANEL + v * W;
                vf sum = load(to), whole = to_float(KIND == INT4 ? dot_end(dot[m][v]) : dot[m][v]);
                if (KIND == INT4) sum = vfma(minimum, splat(offsets[m]), sum);
                store(to, vfma(whole * scale, splat(by[m]), sum));
            }
        }
    }
}

template <int KIND, int GROUPS, int M, int V2>
INLINE void dots_rows(const uint8_t *from, const Rows *r, int64_t at, float *y, bool fetch) {
    for (int first = 0; first < V; first += V2)
        if (fetch) dots_tile<KIND, GROUPS, M, V2, true>(from, first, r, at, y);
        else dots_tile<KIND, GROUPS, M, V2, false>(from, first, r, at, y);
}

template <int KIND, int GROUPS>
static void panel_of_dots(const Matrix *m, int64_t panel, const Rows *r, float *y) {
    int64_t bytes = block_bytes(KIND, GROUP / GROUPS);
    for (int64_t some = 0; some < r->count; some += SOME_ROWS) {
        int64_t end = some + SOME_ROWS < r->count ? some + SOME_ROWS : r->count;
        const uint8_t *from = block_of(m, panel, 0);
        for (int64_t block = 0; block < r->blocks; block++, from += bytes) {
            int64_t at = block * r->count, row = some;
            bool fetch = (end - some) * (KIND == INT4 ? 2 : 1) > FETCH_ROWS;
            for (; row + 8 <= end; row += 8, fetch = false)
                dots_rows<KIND, GROUPS, 8, DOTS_V>(from, r, at + row, y + row * PANEL, fetch);
            for (; row + 4 <= end; row += 4, fetch = false)
                dots_rows<KIND, GROUPS, 4, DOTS_V>(from, r, at + row, y + row * PANEL, fetch);
            for (; row + 2 <= end; row += 2, fetch = false)
                dots_rows<KIND, GROUPS, 2, DOTS_V>(from, r, at + row, y + row * PANEL, fetch);
            if (row < end) dots_rows<KIND, GROUPS, 1, V>(from, r, at + row, y + row * PANEL, fetch);
        }
    }
}

static void panel_of_dots(const Matrix *m, int64_t panel, const Rows *r, float *y) {
    if (m->kind == INT4) panel_of_dots<INT4, 1>(m, panel, r, y);
    else if (m->group == GROUP) panel_of_dots<INT8, 1>(m, panel, r, y);
    else panel_of_dots<INT8, 2>(m, panel, r, y);
}
#endif
