/* softmax(q kᵀ · scale + bias) v and its gradients, for short sequences: at 14 tokens torch's kernel takes six times as
 * long for its overhead as for the sums. */

#include "kernels.h"

#include <stdlib.h>
#include <string.h>

typedef float vector __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));

typedef struct {
    float *at;
    int64_t row, column; /* strides */
} Matrix;

static inline Matrix flipped(Matrix a) { return (Matrix){a.at, a.column, a.row}; }

/* c = a b, or c += a b, for R rows and N vectors of columns: few enough to stay in registers */
static inline __attribute__((always_inline)) void tile(const int R, const int N, Matrix a, Matrix b, Matrix c, int64_t n,
                                                       int more) {
    vector sum[6][2];
    UNROLLED for (int r = 0; r < R; r++)
        UNROLLED for (int j = 0; j < N; j++) sum[r][j] = more ? *(vector *)(c.at + r * c.row + j * WIDE) : (vector){0};
    for (int64_t i = 0; i < n; i++) {
        vector of_b[2];
        UNROLLED for (int j = 0; j < N; j++) of_b[j] = *(vector *)(b.at + i * b.row + j * WIDE);
        UNROLLED for (int r = 0; r < R; r++)
            UNROLLED for (int j = 0; j < N; j++) sum[r][j] += a.at[r * a.row + i * a.column] * of_b[j];
    }
    UNROLLED for (int r = 0; r < R; r++)
        UNROLLED for (int j = 0; j < N; j++) *(vector *)(c.at + r * c.row + j * WIDE) = sum[r][j];
}

static inline __attribute__((always_inline)) void columns(const int N, Matrix a, Matrix b, Matrix c, int64_t rows,
                                                          int64_t n, int more) {
    for (; rows > 0; rows -= 6, a.at += 6 * a.row, c.at += 6 * c.row) switch (rows) {
        case 1: tile(1, N, a, b, c, n, more); break;
        case 2: tile(2, N, a, b, c, n, more); break;
        case 3: tile(3, N, a, b, c, n, more); break;
        case 4: tile(4, N, a, b, c, n, more); break;
        case 5: tile(5, N, a, b, c, n, more); break;
        default: tile(6, N, a, b, c, n, more);
        }
}

/* c [rows, width] = a [rows, n] · b [n, width], or c += a b; the width is in whole vectors */
static void product(Matrix a, Matrix b, Matrix c, int64_t rows, int64_t n, int64_t width, int more) {
    for (; width > WIDE; width -= 2 * WIDE, b.at += 2 * WIDE, c.at += 2 * WIDE) columns(2, a, b, c, rows, n, more);
    if (width > 0) columns(1, a, b, c, rows, n, more);
}

/* One head of x [tokens, K], with zeros up to whole vectors both ways: close together, and the same for every size. */
static Matrix head_of(const Axes *x, int64_t b, int64_t h, int64_t tokens, int64_t K, float *room) {
    const float *at = x->at + b * x->row + h * x->head;
    const int64_t wide = PADDED(K);
    for (int64_t t = 0; t < tokens; t++) {
        memcpy(room + t * wide, at + t * x->token, 4 * K);
        for (int64_t i = K; i < wide; i++) room[t * wide + i] = 0.0f;
    }
    memset(room + tokens * wide, 0, 4 * wide * (PADDED(tokens) - tokens));
    return (Matrix){room, wide, 1};
}

/* Copies a head's rows back into x. */
static void settle(Matrix head, const Axes *x, int64_t b, int64_t h, int64_t tokens, int64_t K) {
    float *at = (float *)x->at + b * x->row + h * x->head;
    for (int64_t t = 0; t < tokens; t++) memcpy(at + t * x->token, head.at + t * head.row, 4 * K);
}

typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));

/* [n, m] -> [m, n], both in whole vectors: squares of eight by eight, of which each step swaps every other 1, 2, 4 */
static Matrix transposed(Matrix x, int64_t n, int64_t m, float *room) {
#define PAIRED(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13), \
                     __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
    for (int64_t i = 0; i < n; i += 8)
        for (int64_t j = 0; j < m; j += 8) {
            eight a[8], c[8];
            UNROLLED for (int r = 0; r < 8; r++) a[r] = *(eight *)(x.at + (i + r) * x.row + j);
            UNROLLED for (int r = 0; r < 8; r += 2) {
                const eight pair[2] = {PAIRED(a[r], a[r + 1])};
                c[r] = pair[0], c[r + 1] = pair[1];
            }
            UNROLLED for (int r = 0; r < 8; r++) {
                const int from = r / 4 * 4 + r / 2 % 2;
                a[r] = r % 2 ? __builtin_shufflevector(c[from], c[from + 2], 2, 3, 10, 11, 6, 7, 14, 15)
                             : __builtin_shufflevector(c[from], c[from + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            }
            UNROLLED for (int r = 0; r < 8; r++) {
                const eight y = r < 4 ? __builtin_shufflevector(a[r], a[r + 4], 0, 1, 2, 3, 8, 9, 10, 11)
                                      : __builtin_shufflevector(a[r - 4], a[r], 4, 5, 6, 7, 12, 13, 14, 15);
                *(eight *)(room + (j + r) * n + i) = y;
            }
        }
    return (Matrix){room, n, 1};
}

int64_t padded(int64_t n) { return PADDED(n); }

/* The memory of one call: `n` pieces, each as large as the largest of a head's matrices. */
static float *pieces(const Sizes *sizes, int64_t n, int64_t *each) {
    const int64_t S = PADDED(sizes->keys), T = PADDED(sizes->queries), K = PADDED(sizes->width), longer = S > T ? S : T;
    *each = longer * (K > longer ? K : longer);
    return aligned_alloc(64, 4 * n * *each);
}

/* softmax(x · scale + bias) of each column of x [S, n]; no bias: NULL. `top` and `sum` are room for n numbers. The loops
 * go along the rows, so become vectors. */
static void softmax_down(float *restrict x, const float *restrict bias, float scale, int64_t S, int64_t n,
                         float *restrict top, float *restrict sum) {
    for (int64_t i = 0; i < n; i++) top[i] = HIDDEN, sum[i] = 0.0f;
    for (int64_t s = 0; s < S; s++)
        for (int64_t i = 0; i < n; i++) {
            const float score = x[s * n + i] * scale + (bias ? bias[s * n + i] : 0.0f);
            x[s * n + i] = score;
            top[i] = score > top[i] ? score : top[i];
        }
    for (int64_t s = 0; s < S; s++)
        for (int64_t i = 0; i < n; i++) {
            const float score = x[s * n + i], e = score > HIDDEN ? exponential(score - top[i]) : 0.0f;
            x[s * n + i] = e;
            sum[i] += e;
        }
    for (int64_t i = 0; i < n; i++) sum[i] = 1.0f / sum[i];
    for (int64_t s = 0; s < S; s++)
        for (int64_t i = 0; i < n; i++) x[s * n + i] *= sum[i];
}

/* bias [T, S] -> [S, whole]: 0 behind T */
static void turn_bias(const Axes *bias, int64_t b, int64_t h, int64_t T, int64_t S, int64_t whole, float *y) {
    const float *at = bias->at + b * bias->row + h * bias->head;
    for (int64_t s = 0; s < S; s++)
        for (int64_t t = 0; t < whole; t++) y[s * whole + t] = t < T ? at[t * bias->token + s] : 0.0f;
}

/* y = dropout(softmax(q kᵀ · scale + bias)) v. q [rows, heads, queries, width], k and v [rows, kv_heads, keys, width],
 * bias [rows, heads, queries, keys] or NULL, y like q; the last axis of each has no gaps. The weights [rows, heads,
 * keys, padded(queries)] are kept for the backward pass: dropped ones with a minus. A query is a column of them,
 * so that a vector holds eight queries' weights of one key, and nothing is ever summed across a vector. */
int64_t attend_forward(const Axes *q, const Axes *k, const Axes *v, const Axes *bias, float *weights, const Axes *y,
                    const Sizes *sizes, float scale, const Dropout *dropout) {
    const int64_t H = sizes->heads, T = sizes->queries, S = sizes->keys, K = sizes->width;
    const int64_t whole = PADDED(T), wide = PADDED(K), words = whole / 8;
    const float kept = 256.0f / (256.0f - (float)dropout->level);
    int64_t each;
    float *room = pieces(sizes, 7, &each);
    if (!room) return 1;
    float *added = room + 5 * each;
    uint8_t *bytes = (uint8_t *)(room + 6 * each);
    for (int64_t b = 0; b < sizes->rows; b++)
        for (int64_t h = 0; h < H; h++, weights += S * whole) {
            const int64_t g = h / (H / sizes->kv_heads);
            const Matrix queries = transposed(head_of(q, b, h, T, K, room), whole, wide, room + each);
            const Matrix keys = head_of(k, b, g, S, K, room), to = {room + 2 * each, wide, 1};
            Matrix left = {weights, whole, 1};
            product(keys, queries, left, S, K, whole, 0);
            if (bias && (bias->head || (h == 0 && (bias->row || b == 0)))) turn_bias(bias, b, h, T, S, whole, added);
            softmax_down(weights, bias ? added : 0, scale, S, whole, room, room + whole);
            if (dropout->level) {
                left.at = room + 3 * each;
                draw(dropout->seed, (b * H + h) * S * words, S * whole, bytes);
                const int32_t level = (int32_t)dropout->level;
                for (int64_t i = 0; i < S * whole; i++) {
                    left.at[i] = bytes[i] >= level ? weights[i] * kept : 0.0f;
                    weights[i] = bytes[i] >= level ? weights[i] : -weights[i];
                }
            }
            product(flipped(left), head_of(v, b, g, S, K, room), to, T, S, wide, 0);
            settle(to, y, b, h, T, K);
        }
    free(room);
    return 0;
}

/* With w = softmax(…), d = dropout(w) and y = d v:
 *   dv = dᵀ dy;  dw = dropout(dy vᵀ);  dscores = w · (dw - Σ w dw);  dq = dscores k · scale;  dk = dscoresᵀ q · scale
 * where a head of keys adds up the gradients of all its heads of queries. */
int64_t attend_backward(const Axes *q, const Axes *k, const Axes *v, const float *weights, const Axes *dy, const Axes *dq,
                     const Axes *dk, const Axes *dv, const Sizes *sizes, float scale, const Dropout *dropout) {
    const int64_t H = sizes->heads, T = sizes->queries, S = sizes->keys, K = sizes->width;
    const int64_t whole = PADDED(T), wide = PADDED(K), per_group = H / sizes->kv_heads;
    const float kept = 256.0f / (256.0f - (float)dropout->level);
    int64_t each;
    float *room = pieces(sizes, 9, &each);
    if (!room) return 1;
    float *sums = room + 8 * each;
    for (int64_t b = 0; b < sizes->rows; b++)
        for (int64_t h = 0; h < H; h++, weights += S * whole) {
            const int64_t g = h / per_group;
            const Matrix given = head_of(dy, b, h, T, K, room), scores = {room + 2 * each, whole, 1};
            Matrix left = {(float *)weights, whole, 1};
            product(head_of(v, b, g, S, K, room + 3 * each), transposed(given, whole, wide, room + each), scores, S, K,
                    whole, 0);
            float *d = scores.at;
            if (dropout->level) {
                left.at = room + 4 * each;
                for (int64_t i = 0; i < S * whole; i++) {
                    left.at[i] = weights[i] > 0.0f ? weights[i] * kept : 0.0f;
                    d[i] = weights[i] > 0.0f ? d[i] * kept : 0.0f;
                }
            }
            for (int64_t t = 0; t < whole; t++) sums[t] = 0.0f;
            for (int64_t s = 0; s < S; s++)
                for (int64_t t = 0; t < whole; t++) sums[t] += fabsf(weights[s * whole + t]) * d[s * whole + t];
            for (int64_t s = 0; s < S; s++)
                for (int64_t t = 0; t < whole; t++)
                    d[s * whole + t] = fabsf(weights[s * whole + t]) * (d[s * whole + t] - sums[t]) * scale;
            const Matrix to_q = {room + 5 * each, wide, 1}, to_k = {room + 6 * each, wide, 1};
            const Matrix to_v = {room + 7 * each, wide, 1};
            product(left, given, to_v, S, T, wide, h % per_group > 0);
            product(scores, head_of(q, b, h, T, K, room), to_k, S, T, wide, h % per_group > 0);
            product(flipped(scores), head_of(k, b, g, S, K, room), to_q, T, S, wide, 0);
            settle(to_q, dq, b, h, T, K);
            settle(to_k, dk, b, g, S, K);
            settle(to_v, dv, b, g, S, K);
        }
    free(room);
    return 0;
}
