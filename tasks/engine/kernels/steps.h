// A step through all layers of a shard: norms, products, rotary embedding, attention, SiLU.
//
// Values between two products are float32. Where one is stored, in the rows after each half of a
// layer and in the keys and values, it is rounded to the model's dtype. So a shard that is divided
// computes the same as a whole one.

struct Run {
    const Step *step;
    const Layer *layer;
    float *x;       // rows x hidden
    float *wide;    // rows x outputs of `qkv` and `gate_up`
    float *added;   // rows x hidden: outputs of `output` and `down`
    float *heads;   // rows x heads x head_dim: queries, and then what they attended to
    int64_t first;  // row of the step that is the first one of `rows`
    const float *norm;
    Rows rows;
};

static inline float rounded(float value, int64_t dtype) {
    return dtype == FLOAT32 ? value : of_half(to_half(value));
}

static float inverse_rms(const float *x, int64_t size, double eps) {
    vf sum = vzero();
    int64_t i = 0;
    for (; i + W <= size; i += W) sum = vfma(load(x + i), load(x + i), sum);
    float all = sum_of(sum);
    for (; i < size; i++) all += x[i] * x[i];
    return (float)(1 / sqrt(all / (double)size + eps));
}

static void normed_row(void *context, int64_t row) {
    const Run *run = (const Run *)context;
    int64_t E = run->step->model->hidden;
    const float *x = run->x + (run->first + row) * E;
    float *to = (float *)shoal_scratch(2, E * 4), by = inverse_rms(x, E, run->step->model->eps);
    for (int64_t i = 0; i < E; i++) to[i] = x[i] * by * run->norm[i];
    set_row(&run->rows, row, to);
}

static void attended_row(void *context, int64_t row) {
    const Run *run = (const Run *)context;
    int64_t size = run->step->model->heads * run->step->model->head_dim;
    set_row(&run->rows, row, run->heads + (run->first + row) * size);
}

// silu(gate) * up
static void gated_row(void *context, int64_t row) {
    const Run *run = (const Run *)context;
    int64_t F = run->step->model->intermediate;
    const float *gate = run->wide + (run->first + row) * 2 * F, *more = gate + F;
    float *to = (float *)shoal_scratch(2, (F + W) * 4);
    int64_t i = 0;
    for (; i + W <= F; i += W) {
        vf g = load(gate + i);
        store(to + i, g / (splat(1.0f) + exponential(vzero() - g)) * load(more + i));
    }
    for (; i < F; i++) to[i] = gate[i] / (1 + expf(-gate[i])) * more[i];
    set_row(&run->rows, row, to);
}

static void added_row(void *context, int64_t row) {
    const Run *run = (const Run *)context;
    int64_t E = run->step->model->hidden, dtype = run->step->model->dtype;
    for (int64_t i = row * E; i < (row + 1) * E; i++)
        run->x[i] = rounded(run->x[i] + run->added[i], dtype);
}

static void turn(float *head, const float *cosines, const float *sines, int64_t D) {
    for (int64_t i = 0; i < D / 2; i++) {
        float a = head[i], b = head[i + D / 2];
        head[i] = a * cosines[i] - b * sines[i];
        head[i + D / 2] = b * cosines[i] + a * sines[i];
    }
}

static void keep(uint8_t *memory, int64_t slot, const float *head, int64_t D, int64_t dtype) {
    if (dtype == FLOAT32) {
        memcpy((float *)memory + slot * D, head, D * 4);
        return;
    }
    uint16_t *to = (uint16_t *)memory + slot * D;
    for (int64_t d = 0; d < D; d++) to[d] = to_half(head[d]);
}

// Turns the queries and keys of a row, and stores its keys and values.
static void turned_row(void *context, int64_t row) {
    const Run *run = (const Run *)context;
    const Model *m = run->step->model;
    const Piece *piece = run->step->piece;
    while (row >= piece->row + piece->count) piece++;
    int64_t position = piece->position + row - piece->row, D = m->head_dim;
    int64_t slot = (int64_t)piece->blocks[position / BLOCK] * BLOCK + position % BLOCK;
    const float *cosines = run->step->cosines + position * (D / 2);
    const float *sines = run->step->sines + position * (D / 2);
    float *heads = run->wide + row * (m->heads + 2 * m->kv_heads) * D;
    for (int64_t h = 0; h < m->heads + m->kv_heads; h++) {
        float *head = heads + h * D;
        const float *norm = h < m->heads ? run->layer->query_norm : run->layer->key_norm;
        if (norm) {
            float by = inverse_rms(head, D, m->eps);
            for (int64_t d = 0; d < D; d++) head[d] *= by * norm[d];
        }
        turn(head, cosines, sines, D);
    }
    memcpy(run->heads + row * m->heads * D, heads, m->heads * D * 4);
    for (int64_t h = 0; h < m->kv_heads; h++) {
        int64_t there = h * m->slots + slot;
        keep(run->layer->keys, there, heads + (m->heads + h) * D, D, m->dtype);
        keep(run->layer->values, there, heads + (m->heads + m->kv_heads + h) * D, D, m->dtype);
    }
}

// Multiplies all rows of the step, each prepared by `set`.
static void project(Run *run, const Matrix *matrix, Work set, float *out) {
    for (run->first = 0; run->first < run->step->rows; run->first += ROWS) {
        int64_t count = run->step->rows - run->first;
        if (count > ROWS) count = ROWS;
        run->rows = rows_of(count, matrix->inputs, matrix->kind);
        shoal_parallel(set, run, count, count * matrix->inputs * 4);
        multiply_rows(matrix, &run->rows, out + run->first * matrix->outputs, FLOAT32);
    }
}

static void step_layer(Run *run, int64_t index) {
    const Model *m = run->step->model;
    int64_t rows = run->step->rows;
    const Layer *layer = run->layer = &m->layer[index];
    run->norm = layer->input_norm;
    project(run, layer->qkv, normed_row, run->wide);
    shoal_parallel(turned_row, run, rows, rows * layer->qkv->outputs * 4);
    // Queries and results are apart, because heads of a unit are read while others are written.
    float *queries = run->heads, *out = queries + rows * m->heads * m->head_dim;
    Attending a = {run->step, index, queries, out};
    attend(&a);
    run->heads = out;
    project(run, layer->output, attended_row, run->added);
    run->heads = queries;
    shoal_parallel(added_row, run, rows, rows * m->hidden * 4);
    run->norm = layer->mlp_norm;
    project(run, layer->gate_up, normed_row, run->wide);
    project(run, layer->down, gated_row, run->added);
    shoal_parallel(added_row, run, rows, rows * m->hidden * 4);
}

static void step(const Step *s) {
    const Model *m = s->model;
    int64_t size = s->rows * m->hidden, widest = 2 * m->intermediate;
    int64_t qkv = (m->heads + 2 * m->kv_heads) * m->head_dim, attended = m->heads * m->head_dim;
    if (qkv > widest) widest = qkv;
    float *memory = (float *)shoal_scratch(4, (2 * size + s->rows * (widest + 2 * attended)) * 4);
    Run run = {};
    run.step = s, run.x = memory, run.added = memory + size, run.heads = run.added + size;
    run.wide = run.heads + 2 * s->rows * attended;
    for (int64_t i = 0; i < size; i++)
        run.x[i] = m->dtype == FLOAT32 ? ((float *)s->x)[i] : of_half(((uint16_t *)s->x)[i]);
    for (int64_t layer = 0; layer < m->layers; layer++) step_layer(&run, layer);
    if (m->dtype == FLOAT32) memcpy(s->x, run.x, size * 4);
    else
        for (int64_t i = 0; i < size; i++) ((uint16_t *)s->x)[i] = to_half(run.x[i]);
}
