// Interface of the kernels: what Python calls (entry.cpp), and what each instruction set offers.
#pragma once
#include <stdint.h>

enum Kind { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, INT4 = 3 };

// A weight matrix of `outputs` x `inputs`, repacked by the kernels that read it (products.h).
struct Matrix {
    int64_t kind, group, outputs, inputs;
    const uint8_t *data;
    const float *bias;  // or null
};

struct Layer {
    const float *input_norm, *mlp_norm;
    const float *query_norm, *key_norm;  // or null
    const Matrix *qkv, *output, *gate_up, *down;
    uint8_t *keys, *values;  // kv_heads x slots x head_dim, in the model's dtype
    int64_t window;          // positions that a row attends to; 0: all
};

struct Model {
    int64_t layers, hidden, heads, kv_heads, head_dim, intermediate, slots;
    int64_t dtype;  // FLOAT32 or BFLOAT16, of the rows and of the keys and values
    double eps;
    const Layer *layer;
};

// `count` consecutive positions of one session, whose first row in the step is `row`.
struct Piece {
    int64_t row, count, position, decode;
    const int32_t *blocks;  // block of each 16 positions
};

// A step: its rows (rows x hidden) are replaced by those after the last layer.
struct Step {
    const Model *model;
    int64_t rows, pieces;
    void *x;
    const float *cosines, *sines;  // of each position: positions x head_dim / 2
    const Piece *piece;
};

// Rows that are multiplied with a matrix, in the dtype of `kind`: rows x `stride` elements.
struct Product {
    const Matrix *matrix;
    int64_t rows, kind, stride;
    const void *x;
    void *out;  // rows x outputs, of the same dtype
};

// Attention of one step with one layer: queries and the result are rows x heads x head_dim.
struct Attending {
    const Step *step;
    int64_t layer;
    const float *queries;
    float *out;
};

// The kernels of one instruction set.
struct Kernels {
    const char *name;
    int64_t (*packed_bytes)(int64_t kind, int64_t group, int64_t outputs, int64_t inputs);
    void (*pack)(const Matrix *, const void *q, const void *scale, const void *minimum, uint8_t *);
    void (*product)(const Product *);
    void (*attend)(const Attending *);
    void (*step)(const Step *);
};

extern const Kernels shoal_portable;
#if defined(__x86_64__)
extern const Kernels shoal_avx2, shoal_avx512, shoal_avx512bf16;
#elif defined(__aarch64__)
extern const Kernels shoal_neon, shoal_neondot;
#endif

// Calls `work` for the units 0 to `units` - 1 on the threads of the pool. `cost` is an estimate of
// the whole in bytes or multiplications; little work stays on the calling thread.
typedef void (*Work)(void *context, int64_t unit);
void shoal_parallel(Work work, void *context, int64_t units, int64_t cost);
int64_t shoal_threads();  // those of the pool, with the calling one

// Memory that belongs to the calling thread, valid until its next call with the same `slot`.
void *shoal_scratch(int slot, int64_t bytes);
