/* All blocks of a stack in one call, as parts/block.py has them one by one: attention, attention over the encoder's
 * output if there is one, feed-forward, each with add & norm. A step of a small model then takes the time of its products,
 * not of its calls. */

#include "kernels.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    Linear qkv, out;          /* self-attention: q, k and v in one product */
    Linear cross_q, cross_out;   /* over the memory; its keys and values are given */
    Linear up, down;             /* a gated `up` gives the gates after the rest */
    Norm self_norm, cross_norm, feedforward_norm;
} Block;

typedef struct {
    const Block *blocks;
    int64_t n_blocks, width, heads, kv_heads, d_head, d_ff;
    int64_t post, cross;   /* norm after the sum or before f(x); whether there is a memory */
    int64_t gate;          /* the activation of gates, or 0 */
    double scale, cross_scale;
    Norm last;             /* of a pre-norm stack */
} Stack;

/* One call: `queries` new tokens of `rows` rows. A decoder's keys and values are kept, [rows, kv_heads, room, d_head] for
 * each block, with `past` tokens there before; an encoder keeps none. */
typedef struct {
    int64_t rows, queries, past, room, memory_keys, memory_room, repeats;
    float *const *keys, *const *values;               /* of each block; NULL: nothing is kept */
    const float *const *memory_k, *const *memory_v;   /* likewise */
    const Axes *bias, *memory_bias;                   /* NULL: nothing is hidden */
    const int64_t *row_index;
    const Rotation *rotation;
} Call;

static void add(const float *x, int64_t n, float *y) {
#pragma omp parallel for simd if (n > MANY)
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

static void keep(const float *from, int64_t step, float *to, const Stack *stack, const Call *call) {
    const int64_t G = stack->kv_heads, K = stack->d_head, T = call->queries;
    for (int64_t b = 0; b < call->rows; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t g = 0; g < G; g++)
                memcpy(to + ((b * G + g) * call->room + call->past + t) * K, from + (b * T + t) * step + g * K, 4 * K);
}

/* act(gate) · up, where x holds both side by side */
static void gated(int64_t activation, float *x, int64_t rows, int64_t n, float *y) {
#pragma omp parallel for if (rows * n > MANY)
    for (int64_t row = 0; row < rows; row++) {
        float *up = x + row * 2 * n, *gate = up + n;
        activate(activation, gate, n);
        for (int64_t i = 0; i < n; i++) y[row * n + i] = up[i] * gate[i];
    }
}

typedef struct {
    float *normed, *wide, *heads, *added; /* of the rows */
    void *quantized;
    int64_t *failed; /* whether attention had no memory */
} Room;

static void self_attention(const Stack *stack, const Call *call, int64_t i, const float *x, const Room *room) {
    const Block *block = stack->blocks + i;
    const int64_t H = stack->heads, G = stack->kv_heads, K = stack->d_head, T = call->queries, N = call->rows * T;
    const int64_t step = (H + 2 * G) * K, R = call->room;
    linear(&block->qkv, x, N, room->wide, room->quantized);
    Sizes sizes = {call->rows, H, G, T, call->past + T, K, 1};
    const Axes q = {room->wide, T * step, K, step};
    Axes k = {room->wide + H * K, T * step, K, step}, v = {room->wide + (H + G) * K, T * step, K, step};
    if (call->rotation) {
        const Sizes turned = {call->rows, H + G, G, T, 0, K, 1}; /* queries and keys, which are neighbours */
        rotate(call->rotation, &q, &q, &turned);
    }
    if (call->keys) {
        keep(k.at, step, call->keys[i], stack, call);
        keep(v.at, step, call->values[i], stack, call);
        k = (Axes){call->keys[i], G * R * K, R * K, K};
        v = (Axes){call->values[i], G * R * K, R * K, K};
    }
    *room->failed |= attend(&q, &k, &v, call->bias, call->row_index, room->heads, &sizes, (float)stack->scale);
    linear(&block->out, room->heads, N, room->added, room->quantized);
}

static void cross_attention(const Stack *stack, const Call *call, int64_t i, const float *x, const Room *room) {
    const Block *block = stack->blocks + i;
    const int64_t H = stack->heads, G = stack->kv_heads, K = stack->d_head, T = call->queries, N = call->rows * T;
    const int64_t R = call->memory_room;
    linear(&block->cross_q, x, N, room->wide, room->quantized);
    const Sizes sizes = {call->rows, H, G, T, call->memory_keys, K, call->repeats};
    const Axes q = {room->wide, T * H * K, K, H * K};
    const Axes k = {call->memory_k[i], G * R * K, R * K, K}, v = {call->memory_v[i], G * R * K, R * K, K};
    *room->failed |= attend(&q, &k, &v, call->memory_bias, 0, room->heads, &sizes, (float)stack->cross_scale);
    linear(&block->cross_out, room->heads, N, room->added, room->quantized);
}

static void feedforward(const Stack *stack, const Call *call, int64_t i, const float *x, const Room *room) {
    const Block *block = stack->blocks + i;
    const int64_t N = call->rows * call->queries;
    linear(&block->up, x, N, room->wide, room->quantized);
    float *inner = room->wide;
    if (stack->gate) {
        inner = room->wide + N * block->up.n_out;
        gated(stack->gate, room->wide, N, stack->d_ff, inner);
    }
    linear(&block->down, inner, N, room->added, room->quantized);
}

/* x = norm(x + f(x)), or x + f(norm(x)) */
static void add_and_norm(const Stack *stack, const Call *call, int64_t i, float *x, const Norm *around, const Room *room,
                         void (*f)(const Stack *, const Call *, int64_t, const float *, const Room *)) {
    const int64_t N = call->rows * call->queries, D = stack->width;
    if (!stack->post) norm(around, x, N, D, room->normed);
    f(stack, call, i, stack->post ? x : room->normed, room);
    add(room->added, N * D, x);
    if (stack->post) norm(around, x, N, D, x);
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* x [rows, queries, width] through all blocks, in place. Returns 0, or 1 if there was no memory for it. */
int64_t run_stack(const Stack *stack, const Call *call, float *x) {
    const int64_t N = call->rows * call->queries, D = stack->width, E = stack->heads * stack->d_head;
    const int64_t n_qkv = (stack->heads + 2 * stack->kv_heads) * stack->d_head;
    const int64_t n_wide = most(n_qkv, stack->d_ff * (stack->gate ? 3 : 1));
    const int64_t n_quantized = linear_room(most(most(D, E), stack->d_ff), N);
    const int64_t n_floats = PADDED(N * (2 * D + E + n_wide)); /* padded, to align the rest */
    float *all = malloc(4 * n_floats + n_quantized);
    if (!all) return 1;
    int64_t failed = 0;
    const Room room = {all, all + N * (2 * D + E), all + N * 2 * D, all + N * D, all + n_floats, &failed};
    for (int64_t i = 0; i < stack->n_blocks; i++) {
        const Block *block = stack->blocks + i;
        add_and_norm(stack, call, i, x, &block->self_norm, &room, self_attention);
        if (stack->cross) add_and_norm(stack, call, i, x, &block->cross_norm, &room, cross_attention);
        add_and_norm(stack, call, i, x, &block->feedforward_norm, &room, feedforward);
    }
    if (stack->last.weight) norm(&stack->last, x, N, D, x);
    free(all);
    return failed;
}
