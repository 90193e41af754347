// Checks the kernels of one instruction set against sums in double precision, without Python, so
// that it also runs in an emulator of another processor.
//
// usage: suite KERNELS THREADS   (KERNELS: a name, or `best`)
//
// The inputs, the tolerances and the rule that a row's bits do not depend on other rows are those
// of test_native.py. Prints one line for each group of checks, and then `passed KERNELS` or
// `failed KERNELS`.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "shoal.h"

extern "C" {
int shoal_version();
const Kernels *shoal_choose(const char *name, int threads);
const char *shoal_name(const Kernels *kernels);
int64_t shoal_packed_bytes(const Kernels *, int64_t kind, int64_t group, int64_t N, int64_t K);
void shoal_pack(const Kernels *, const Matrix *, const void *q, const void *scale,
                const void *minimum, uint8_t *data);
void shoal_product(const Kernels *, const Product *);
void shoal_attend(const Kernels *, const Attending *);
void shoal_step(const Kernels *, const Step *);
}

namespace {

typedef std::vector<float> Floats;
typedef std::vector<double> Doubles;

const char *KIND_NAMES[] = {"float32", "bfloat16", "int8", "int4"};
const float CANARY = 12345.0f;
const int64_t GUARD = 64;  // elements behind a result, which must stay as they are

const Kernels *kernels;
std::string group_name;
int checks, failures;
double worst;  // of the errors of the group, as a share of what is allowed

// ---- reporting

void fail(const char *what, const std::string &where) {
    printf("FAIL %s: %s: %s\n", group_name.c_str(), what, where.c_str());
    failures++;
}

void begin(const std::string &name) { group_name = name, checks = 0, worst = 0; }

void end() {
    printf("%s: %d checks, largest error %.3f of what is allowed\n", group_name.c_str(), checks,
           worst);
    fflush(stdout);
}

void expect(bool condition, const char *what, const std::string &where) {
    checks++;
    if (!condition) fail(what, where);
}

// The error is that of all elements together, as in test_native.py.
void expect_near(const Floats &found, const Doubles &expected, double allowed,
                 const std::string &where) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        difference += (found[i] - expected[i]) * (found[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    double error = sqrt(difference / size);
    worst = std::max(worst, error / allowed);
    expect(error < allowed, "differs", where + ", error " + std::to_string(error));
}

bool same_bits(const float *a, const float *b, int64_t count) { return !memcmp(a, b, count * 4); }

// ---- random inputs

struct Random {
    uint64_t state;
    uint32_t next() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(state >> 33);
    }
    int below(int count) { return (int)(next() % count); }
    float value() { return (float)(next() % 2000001) / 1000000 - 1; }  // -1 to 1
};

Floats random_values(Random *random, int64_t count, float size = 1.7f) {
    Floats values(count);
    for (float &each : values) each = random->value() * size;
    return values;
}

uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float of_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

double of_fp16(uint16_t half) {
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return half >> 15 ? -size : size;
}

// A scale of 2^-12 to 2^-9. Some are zero or subnormal, which files contain.
uint16_t random_scale(Random *random) {
    if (random->below(50) == 0) return (uint16_t)random->below(3);
    return (uint16_t)((3 + random->below(3)) << 10 | random->below(1024));
}

// ---- matrices

struct Weights {
    Matrix matrix = {};
    std::vector<uint8_t> packed;
    Floats bias;
    Doubles values;  // outputs x inputs
};

// Fills `q` and the values of the kinds that are not quantised.
void set_dense(Weights *w, std::vector<uint8_t> *q, Random *random) {
    int64_t count = w->matrix.outputs * w->matrix.inputs;
    Floats values = random_values(random, count, 0.2f);
    q->resize(count * 4);
    for (int64_t i = 0; i < count; i++) {
        uint16_t half = to_bf16(values[i]);
        if (w->matrix.kind == FLOAT32) memcpy(&(*q)[i * 4], &values[i], 4);
        else memcpy(&(*q)[i * 2], &half, 2);
        w->values[i] = w->matrix.kind == FLOAT32 ? values[i] : of_bf16(half);
    }
}

void set_quantised(Weights *w, std::vector<uint8_t> *q, std::vector<uint16_t> *scale,
                   std::vector<uint16_t> *minimum, Random *random) {
    int64_t N = w->matrix.outputs, K = w->matrix.inputs, group = w->matrix.group;
    bool int4 = w->matrix.kind == INT4;
    q->resize(int4 ? N * K / 2 : N * K);
    for (uint8_t &each : *q) each = (uint8_t)random->next();
    for (int64_t i = 0; i < N * K / group; i++) {
        scale->push_back(random_scale(random));
        minimum->push_back((uint16_t)(0x8000 | random_scale(random)));
    }
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++) {
            int64_t at = n * (K / group) + k / group;
            uint8_t pair = (*q)[int4 ? n * K / 2 + k / 32 * 16 + k % 16 : n * K + k];
            double number = int4 ? (k % 32 < 16 ? pair & 15 : pair >> 4) : (int8_t)pair;
            w->values[n * K + k] =
                number * of_fp16((*scale)[at]) + (int4 ? of_fp16((*minimum)[at]) : 0);
        }
}

Weights random_weights(int64_t kind, int64_t group, int64_t N, int64_t K, bool biased,
                       Random *random) {
    Weights w;
    w.matrix = {kind, group, N, K, nullptr, nullptr};
    w.values.resize(N * K);
    std::vector<uint8_t> q;
    std::vector<uint16_t> scale, minimum;
    if (kind == FLOAT32 || kind == BFLOAT16) set_dense(&w, &q, random);
    else set_quantised(&w, &q, &scale, &minimum, random);
    w.packed.resize(shoal_packed_bytes(kernels, kind, group, N, K));
    shoal_pack(kernels, &w.matrix, q.data(), scale.data(), minimum.data(), w.packed.data());
    w.matrix.data = w.packed.data();
    if (biased) w.bias = random_values(random, N);
    if (biased) w.matrix.bias = w.bias.data();
    return w;
}

Doubles multiplied(const Weights &w, const Doubles &x) {
    int64_t N = w.matrix.outputs, K = w.matrix.inputs, rows = (int64_t)x.size() / K;
    Doubles out(rows * N);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t n = 0; n < N; n++) {
            double sum = w.bias.empty() ? 0 : w.bias[n];
            for (int64_t k = 0; k < K; k++) sum += w.values[n * K + k] * x[row * K + k];
            out[row * N + n] = sum;
        }
    return out;
}

// ---- products

Floats product(const Weights &w, const float *x, int64_t rows, int64_t stride) {
    Floats out(rows * w.matrix.outputs + GUARD, CANARY);
    Product p = {&w.matrix, rows, FLOAT32, stride, x, out.data()};
    shoal_product(kernels, &p);
    for (int64_t i = 0; i < GUARD; i++)
        if (out[rows * w.matrix.outputs + i] != CANARY) return Floats(out.size(), NAN);
    out.resize(rows * w.matrix.outputs);
    return out;
}

bool computes_exactly(int64_t kind) {  // without rounding rows to the kind of the matrix
    std::string name = shoal_name(kernels);
    if (kind == INT8 || kind == INT4) return name == "portable" || name == "neon";
    return kind == FLOAT32 || name != "avx512bf16";
}

double allowed_error(int64_t kind) {
    if (kind == INT8 || kind == INT4) return computes_exactly(kind) ? 2e-6 : 2e-2;
    return computes_exactly(kind) ? 1e-6 : 4e-3;
}

void check_same_rows(const Weights &w, const Floats &x, const Floats &whole, int64_t rows,
                     const std::string &where) {
    const int64_t parts[][2] = {{0, 1}, {3, 1}, {1, 2}, {2, 3}, {5, 4}, {0, 5},
                                {7, 6}, {8, 7}, {1, 8}, {3, 33}, {0, 255}};
    int64_t N = w.matrix.outputs, K = w.matrix.inputs;
    for (auto &part : parts) {
        int64_t first = part[0], count = part[1];
        if (first + count > rows) continue;
        Floats some = product(w, &x[first * K], count, K);
        expect(same_bits(some.data(), &whole[first * N], count * N), "depends on other rows",
               where + ", " + std::to_string(count) + " rows");
    }
}

void check_bfloat16_rows(const Weights &w, const Floats &x, int64_t rows, const std::string &where) {
    int64_t N = w.matrix.outputs, K = w.matrix.inputs;
    std::vector<uint16_t> halves(rows * K), out(rows * N + GUARD, 7);
    Doubles exact(rows * K);
    for (int64_t i = 0; i < rows * K; i++) exact[i] = of_bf16(halves[i] = to_bf16(x[i]));
    Product p = {&w.matrix, rows, BFLOAT16, K, halves.data(), out.data()};
    shoal_product(kernels, &p);
    Floats found(rows * N);
    for (int64_t i = 0; i < rows * N; i++) found[i] = of_bf16(out[i]);
    expect_near(found, multiplied(w, exact), std::max(3e-3, allowed_error(w.matrix.kind)),
                where + ", rows in bfloat16");
    expect(out[rows * N] == 7 && out[rows * N + GUARD - 1] == 7, "writes behind its result", where);
}

// A value that is not finite makes all of its own row not finite, and no other row.
void check_not_finite(const Weights &w, Floats x, const std::string &where) {
    int64_t N = w.matrix.outputs, K = w.matrix.inputs;
    for (float value : {NAN, INFINITY, -INFINITY}) {
        x[3 * K + std::min<int64_t>(5, K - 1)] = value;
        Floats out = product(w, x.data(), 6, K);
        bool right = true;
        for (int64_t i = 0; i < 6 * N; i++) right &= std::isfinite(out[i]) == (i / N != 3);
        expect(right, "treats a value wrongly that is not finite", where);
    }
}

void check_product(int64_t kind, int64_t group, int64_t N, int64_t K, int64_t rows) {
    Random random = {(uint64_t)(kind * 7 + group + N * 13 + K)};
    std::string where = std::to_string(N) + " x " + std::to_string(K);
    Weights w = random_weights(kind, group, N, K, N % 4 != 0, &random);
    Floats x = random_values(&random, rows * K);
    Floats found = product(w, x.data(), rows, K);
    expect_near(found, multiplied(w, Doubles(x.begin(), x.end())), allowed_error(kind), where);
    check_same_rows(w, x, found, rows, where);
    check_bfloat16_rows(w, x, std::min<int64_t>(rows, 9), where);
    check_not_finite(w, x, where);
    Floats apart(9 * (K + 5), NAN);  // rows that do not follow each other
    for (int64_t row = 0; row < 9; row++)
        memcpy(&apart[row * (K + 5)], &x[row * K], K * 4);
    Floats again = product(w, apart.data(), 9, K + 5);
    expect(same_bits(again.data(), found.data(), 9 * N), "depends on the stride", where);
}

void check_products(int64_t kind, int64_t group) {
    begin(std::string("products of ") + KIND_NAMES[kind] + " in groups of " + std::to_string(group));
    // Shapes beside whole panels of 64 outputs and blocks of 32 inputs; more rows than are
    // multiplied at once (256).
    const int64_t shapes[][3] = {{130, 96, 300}, {256, 128, 40}, {64, 2048 + 64, 20},
                                 {300, 160, 36}, {7, 32, 520},   {1, 32, 9},
                                 {65, 64, 17},   {50, 50, 40},   {3, 1, 12}};
    for (auto &shape : shapes)
        if (kind == FLOAT32 || kind == BFLOAT16 || shape[1] % 32 == 0)
            check_product(kind, group, shape[0], shape[1], shape[2]);
    end();
}

// ---- models

struct Shape {
    const char *name;
    int64_t hidden, heads, kv_heads, head_dim, intermediate, window;
    bool norms;
};

const Shape SHAPES[] = {
    {"plain", 64, 4, 2, 16, 96, 0, false},
    {"norms", 128, 4, 4, 32, 160, 0, true},
    {"window", 64, 4, 2, 16, 96, 21, false},
    {"many heads", 96, 6, 1, 48, 100, 0, false},
    {"large heads", 70, 3, 1, 80, 64, 70, true},
};
const int64_t BLOCKS = 40, SLOTS = BLOCKS * 16, POSITIONS = 200;

// A model of two layers with random weights, its memory, and the tables of the rotary embedding.
struct Net {
    Shape shape;
    int64_t dtype, kind;
    std::vector<Weights> weights;
    std::vector<Floats> norms;
    std::vector<std::vector<uint8_t>> memory;
    std::vector<Layer> layers;
    Model model;
    Floats cosines, sines;
};

const float *random_norm(Net *net, int64_t size, Random *random) {
    Floats norm = random_values(random, size, 0.3f);
    for (float &each : norm) each += 1;
    net->norms.push_back(norm);
    return net->norms.back().data();
}

const Matrix *random_matrix(Net *net, int64_t N, int64_t K, bool biased, Random *random) {
    int64_t kind = K % 32 ? net->dtype : net->kind;
    net->weights.push_back(random_weights(kind, 32, N, K, biased, random));
    return &net->weights.back().matrix;
}

void set_layer(Net *net, Layer *layer, Random *random) {
    const Shape &s = net->shape;
    int64_t attended = s.heads * s.head_dim;
    layer->input_norm = random_norm(net, s.hidden, random);
    layer->mlp_norm = random_norm(net, s.hidden, random);
    layer->query_norm = s.norms ? random_norm(net, s.head_dim, random) : nullptr;
    layer->key_norm = s.norms ? random_norm(net, s.head_dim, random) : nullptr;
    layer->qkv = random_matrix(net, (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden, true, random);
    layer->output = random_matrix(net, s.hidden, attended, false, random);
    layer->gate_up = random_matrix(net, 2 * s.intermediate, s.hidden, false, random);
    layer->down = random_matrix(net, s.hidden, s.intermediate, false, random);
    layer->window = s.window;
    for (uint8_t **where : {&layer->keys, &layer->values}) {
        // Old content of blocks must not reach a row: all bits set are a NaN.
        net->memory.emplace_back(s.kv_heads * SLOTS * s.head_dim * 4, 0xff);
        *where = net->memory.back().data();
    }
}

void set_net(Net *net, const Shape &shape, int64_t dtype, int64_t kind) {
    Random random = {(uint64_t)(shape.hidden + shape.window + dtype * 3 + kind)};
    net->shape = shape, net->dtype = dtype, net->kind = kind;
    net->weights.reserve(8), net->norms.reserve(8), net->memory.reserve(4);  // addresses stay
    net->layers.resize(2);
    for (Layer &layer : net->layers) set_layer(net, &layer, &random);
    net->model = {2, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.intermediate,
                  SLOTS, dtype, 1e-5, net->layers.data()};
    int64_t half = shape.head_dim / 2;
    for (int64_t position = 0; position < POSITIONS; position++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)position * pow(10000, -(double)i / (double)half);
            net->cosines.push_back((float)cos(angle)), net->sines.push_back((float)sin(angle));
        }
}

void forget(Net *net) {
    for (auto &each : net->memory) std::fill(each.begin(), each.end(), (uint8_t)0xff);
}

// Some rows of a session: those of `x` from `first` to `end`.
struct Part {
    const std::vector<int32_t> *blocks;
    const Floats *x;
    int64_t first, end;
};

// Blocks in an order of their own: every third one from `start` on.
std::vector<int32_t> table_of(int start) {
    std::vector<int32_t> blocks;
    for (int i = 0; i < 13; i++) blocks.push_back((start + 3 * i) % (int)BLOCKS);
    return blocks;
}

std::vector<Piece> pieces_of(const std::vector<Part> &parts) {
    std::vector<Piece> pieces;
    int64_t row = 0;
    for (const Part &part : parts) {
        int64_t count = part.end - part.first;
        pieces.push_back({row, count, part.first, count == 1, part.blocks->data()});
        row += count;
    }
    return pieces;
}

// Computes a step. Returns the rows of the last part.
Floats step(Net *net, const std::vector<Part> &parts) {
    std::vector<Piece> pieces = pieces_of(parts);
    int64_t E = net->shape.hidden, rows = pieces.back().row + pieces.back().count;
    Floats wide;
    for (const Part &part : parts)
        wide.insert(wide.end(), &(*part.x)[part.first * E], part.x->data() + part.end * E);
    std::vector<uint16_t> halves(rows * E);
    for (int64_t i = 0; i < rows * E; i++) halves[i] = to_bf16(wide[i]);
    void *x = net->dtype == FLOAT32 ? (void *)wide.data() : (void *)halves.data();
    Step s = {&net->model, rows, (int64_t)pieces.size(), x, net->cosines.data(), net->sines.data(),
              pieces.data()};
    shoal_step(kernels, &s);
    if (net->dtype != FLOAT32)
        for (int64_t i = 0; i < rows * E; i++) wide[i] = of_bf16(halves[i]);
    return Floats(wide.begin() + pieces.back().row * E, wide.end());
}

// ---- the same in double precision

double stored(const Net &net, double value) {
    return net.dtype == FLOAT32 ? value : of_bf16(to_bf16((float)value));
}

void normalise(double *x, int64_t size, const float *norm) {
    double sum = 0;
    for (int64_t i = 0; i < size; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < size; i++) x[i] *= norm[i] / sqrt(sum / (double)size + 1e-5);
}

void turn(const Net &net, double *head, int64_t position) {
    int64_t half = net.shape.head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double c = net.cosines[position * half + i], s = net.sines[position * half + i];
        double a = head[i], b = head[i + half];
        head[i] = a * c - b * s, head[i + half] = b * c + a * s;
    }
}

// Attention of one head at one position. Keys and values are positions x kv_heads x head_dim.
void attend(const Shape &s, const double *query, const Doubles &keys, const Doubles &values,
            int64_t position, int64_t kv_head, double *out) {
    int64_t D = s.head_dim, row = s.kv_heads * D;
    int64_t first = s.window ? std::max<int64_t>(0, position + 1 - s.window) : 0;
    Doubles weights;
    double most = -1e300, sum = 0;
    for (int64_t t = first; t <= position; t++) {
        double score = 0;
        for (int64_t d = 0; d < D; d++) score += query[d] * keys[t * row + kv_head * D + d];
        weights.push_back(score / sqrt((double)D));
        most = std::max(most, weights.back());
    }
    for (double &each : weights) sum += each = exp(each - most);
    for (int64_t d = 0; d < D; d++) {
        out[d] = 0;
        for (int64_t t = first; t <= position; t++)
            out[d] += weights[t - first] / sum * values[t * row + kv_head * D + d];
    }
}

Doubles normed(const Net &net, const Doubles &x, const float *norm) {
    Doubles out = x;
    for (size_t at = 0; at < x.size(); at += net.shape.hidden)
        normalise(&out[at], net.shape.hidden, norm);
    return out;
}

void add(const Net &net, Doubles *x, const Doubles &more) {
    for (size_t i = 0; i < x->size(); i++) (*x)[i] = stored(net, (*x)[i] + more[i]);
}

// Attention of all rows: from the outputs of `qkv` to the inputs of `output`.
Doubles attended(const Net &net, const Layer &layer, Doubles qkv) {
    const Shape &s = net.shape;
    int64_t D = s.head_dim, all = (s.heads + 2 * s.kv_heads) * D, rows = (int64_t)qkv.size() / all;
    Doubles keys, values, out(rows * s.heads * D);
    for (int64_t row = 0; row < rows; row++) {
        double *heads = &qkv[row * all];
        for (int64_t h = 0; h < s.heads + s.kv_heads; h++) {
            if (s.norms) normalise(heads + h * D, D, h < s.heads ? layer.query_norm : layer.key_norm);
            turn(net, heads + h * D, row);
        }
        for (int64_t i = s.heads * D; i < all; i++)
            (i < (s.heads + s.kv_heads) * D ? keys : values).push_back(stored(net, heads[i]));
    }
    for (int64_t row = 0; row < rows; row++)
        for (int64_t h = 0; h < s.heads; h++)
            attend(s, &qkv[row * all + h * D], keys, values, row, h / (s.heads / s.kv_heads),
                   &out[(row * s.heads + h) * D]);
    return out;
}

// All layers for the first rows of a session.
Doubles layers_in_double(const Net &net, const Floats &x, int64_t rows) {
    int64_t F = net.shape.intermediate;
    Doubles now(x.begin(), x.begin() + rows * net.shape.hidden);
    for (double &each : now) each = stored(net, each);
    const Weights *w = net.weights.data();
    for (const Layer &layer : net.layers) {
        Doubles qkv = multiplied(w[0], normed(net, now, layer.input_norm));
        add(net, &now, multiplied(w[1], attended(net, layer, qkv)));
        Doubles wide = multiplied(w[2], normed(net, now, layer.mlp_norm)), gated;
        for (int64_t row = 0; row < rows; row++)
            for (int64_t i = 0; i < F; i++) {
                double gate = wide[row * 2 * F + i];
                gated.push_back(gate / (1 + exp(-gate)) * wide[row * 2 * F + F + i]);
            }
        add(net, &now, multiplied(w[3], gated));
        w += 4;
    }
    return now;
}

// ---- steps

void check_step(const Shape &shape, int64_t dtype, int64_t kind) {
    std::string where = std::string(shape.name) + ", " + KIND_NAMES[dtype] + ", matrices of " +
                        KIND_NAMES[kind];
    Net net;
    set_net(&net, shape, dtype, kind);
    Random random = {5};
    const int64_t rows = 81, E = shape.hidden;
    Floats x = random_values(&random, rows * E), other = random_values(&random, 60 * E);
    std::vector<int32_t> blocks = table_of(1), others = table_of(2);
    Floats whole = step(&net, {{&blocks, &x, 0, rows - 1}});
    Floats last = step(&net, {{&blocks, &x, rows - 1, rows}});
    Floats found = whole;
    found.insert(found.end(), last.begin(), last.end());
    double allowed = dtype == FLOAT32 ? 1e-5 : 1e-2;
    if (!computes_exactly(kind)) allowed = std::max(allowed, kind == BFLOAT16 ? 1e-2 : 3e-2);
    expect_near(found, layers_in_double(net, x, rows), allowed, where);

    forget(&net);
    Floats parts;
    const int64_t ends[] = {0, 7, 16, 33, 35, 64, 80};
    for (int i = 0; i < 6; i++) {
        Floats some = step(&net, {{&others, &other, 0, 37}, {&blocks, &x, ends[i], ends[i + 1]}});
        parts.insert(parts.end(), some.begin(), some.end());
    }
    expect(same_bits(parts.data(), whole.data(), 80 * E), "depends on how rows are divided", where);
    Floats beside = step(&net, {{&others, &other, 37, 38}, {&others, &other, 38, 60},
                                {&blocks, &x, 80, 81}});
    expect(same_bits(beside.data(), last.data(), E), "depends on other sessions", where);
}

void check_steps() {
    for (int64_t dtype : {FLOAT32, BFLOAT16}) {
        begin(std::string("steps in ") + KIND_NAMES[dtype]);
        for (const Shape &shape : SHAPES) check_step(shape, dtype, dtype);
        for (int64_t kind : {INT8, INT4}) check_step(SHAPES[0], dtype, kind);
        end();
    }
}

// ---- attention by itself, over many positions

void check_attention(const Shape &shape, int64_t dtype) {
    std::string where = std::string(shape.name) + ", " + KIND_NAMES[dtype];
    Net net;
    set_net(&net, shape, dtype, dtype);
    Random random = {9};
    const Shape &s = shape;
    int64_t D = s.head_dim, rows = 180, size = dtype == FLOAT32 ? 4 : 2;
    std::vector<int32_t> blocks = table_of(0);
    Doubles keys(rows * s.kv_heads * D), values(keys.size());
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; i < s.kv_heads * D; i++) {
            int64_t slot = (int64_t)blocks[t / 16] * 16 + t % 16;
            int64_t at = (i / D * SLOTS + slot) * D + i % D;
            for (bool key : {true, false}) {
                float value = random.value() * 2;
                uint16_t half = to_bf16(value);
                uint8_t *to = (key ? net.layers[0].keys : net.layers[0].values) + at * size;
                if (dtype == FLOAT32) memcpy(to, &value, 4);
                else memcpy(to, &half, 2);
                (key ? keys : values)[t * s.kv_heads * D + i] =
                    dtype == FLOAT32 ? value : of_bf16(half);
            }
        }
    Floats queries = random_values(&random, rows * s.heads * D), out(queries.size());
    Doubles expected(queries.size()), wide(queries.begin(), queries.end());
    for (int64_t row = 0; row < rows; row++)
        for (int64_t h = 0; h < s.heads; h++)
            attend(s, &wide[(row * s.heads + h) * D], keys, values, row,
                   h / (s.heads / s.kv_heads), &expected[(row * s.heads + h) * D]);
    for (bool decode : {false, true}) {
        std::vector<Piece> pieces;
        if (!decode) pieces.push_back({0, rows, 0, 0, blocks.data()});
        for (int64_t row = 0; decode && row < rows; row++)
            pieces.push_back({row, 1, row, 1, blocks.data()});
        Step one = {&net.model, rows, (int64_t)pieces.size(), nullptr, nullptr, nullptr,
                    pieces.data()};
        std::fill(out.begin(), out.end(), CANARY);
        Attending a = {&one, 0, queries.data(), out.data()};
        shoal_attend(kernels, &a);
        // Pairs of bfloat16, to which queries and weights are rounded.
        bool pairs = !decode && dtype == BFLOAT16 && !strcmp(shoal_name(kernels), "avx512bf16");
        expect_near(out, expected, pairs ? 3e-3 : 1e-5,
                    where + (decode ? ", row by row" : ", a prompt"));
    }
}

}  // namespace

int main(int count, char **arguments) {
    std::string name = count > 1 ? arguments[1] : "best";
    kernels = shoal_choose(name == "best" ? "" : name.c_str(), count > 2 ? atoi(arguments[2]) : 1);
    if (!kernels) {
        printf("this machine has no `%s` instructions\n", name.c_str());
        return 2;
    }
    check_products(FLOAT32, 32);
    check_products(BFLOAT16, 32);
    check_products(INT8, 32);
    check_products(INT8, 16);
    check_products(INT4, 32);
    begin("attention");
    for (int64_t dtype : {FLOAT32, BFLOAT16})
        for (const Shape &shape : SHAPES) check_attention(shape, dtype);
    end();
    check_steps();
    printf("%s %s\n", failures ? "failed" : "passed", shoal_name(kernels));
    return failures ? 1 : 0;
}
