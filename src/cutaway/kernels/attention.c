/* softmax(q kᵀ · scale + bias) v for short sequences, where the call of a general kernel takes longer than the sum. */

#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#define TOGETHER 8 /* queries that read keys and values at once */
typedef float vector __attribute__((vector_size(4 * WIDE)));

static float dot(const float *a, const float *b, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

void softmax(float *x, int64_t n) {
    const int64_t whole = PADDED(n);
    float top = x[0], sum = 0.0f;
    for (int64_t i = n; i < whole; i++) x[i] = HIDDEN;
    for (int64_t i = 0; i < whole; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < whole; i++) {
        const float e = x[i] > HIDDEN ? exponential(x[i] - top) : 0.0f;
        x[i] = e;
        sum += e;
    }
    const float share = 1.0f / sum;
    for (int64_t i = 0; i < whole; i++) x[i] *= share;
}

/* A row's result must not depend on the rows beside it. For some processors gcc splits a single fused multiply-add into
 * a product and an addition, which round twice; it does not if it can't follow the sum from step to step. */
#ifdef __x86_64__
#define ROUNDED_ONCE(sum) __asm__("" : "+x"(sum))
#else
#define ROUNDED_ONCE(sum)
#endif

/* y[r] = Σ_i a[r][i] · b[i] for R rows, where b is a column of vectors `step` apart */
static inline __attribute__((always_inline)) void weighted(const int R, const float *a, int64_t of_a, const vector *b,
                                                           int64_t step, int64_t n, vector y[TOGETHER]) {
    vector sum[TOGETHER];
    UNROLLED for (int r = 0; r < R; r++) sum[r] = (vector){0};
    for (int64_t i = 0; i < n; i++)
        UNROLLED for (int r = 0; r < R; r++) {
            sum[r] += a[r * of_a + i] * b[i * step];
            ROUNDED_ONCE(sum[r]);
        }
    UNROLLED for (int r = 0; r < R; r++) y[r] = sum[r];
}

static inline void weighted_rows(int64_t R, const float *a, int64_t of_a, const vector *b, int64_t step, int64_t n,
                                 vector y[TOGETHER]) {
    switch (R) {
    case 1: weighted(1, a, of_a, b, step, n, y); break;
    case 2: weighted(2, a, of_a, b, step, n, y); break;
    case 3: weighted(3, a, of_a, b, step, n, y); break;
    case 4: weighted(4, a, of_a, b, step, n, y); break;
    case 5: weighted(5, a, of_a, b, step, n, y); break;
    case 6: weighted(6, a, of_a, b, step, n, y); break;
    case 7: weighted(7, a, of_a, b, step, n, y); break;
    default: weighted(8, a, of_a, b, step, n, y);
    }
}

/* All T queries of one head over S keys of width K. `room` holds the keys transposed, the values, and the weights. */
static void attend_many(const float *q, int64_t of_q, const float *k, int64_t of_k, const float *v, int64_t of_v,
                        const float *bias, int64_t of_bias, float *y, int64_t of_y, int64_t T, int64_t S, int64_t K,
                        float scale, float *room) {
    const int64_t s_padded = PADDED(S), k_padded = PADDED(K), s_vectors = s_padded / WIDE, k_vectors = k_padded / WIDE;
    float *keys = room, *values = keys + K * s_padded, *weights = values + S * k_padded;
    for (int64_t i = 0; i < K; i++) {
        for (int64_t s = 0; s < S; s++) keys[i * s_padded + s] = k[s * of_k + i];
        for (int64_t s = S; s < s_padded; s++) keys[i * s_padded + s] = 0.0f;
    }
    for (int64_t s = 0; s < S; s++) {
        for (int64_t i = 0; i < K; i++) values[s * k_padded + i] = v[s * of_v + i];
        for (int64_t i = K; i < k_padded; i++) values[s * k_padded + i] = 0.0f;
    }
    for (int64_t t = 0; t < T; t += TOGETHER) {
        const int64_t R = T - t < TOGETHER ? T - t : TOGETHER;
        vector found[TOGETHER];
        for (int64_t block = 0; block < s_vectors; block++) {
            weighted_rows(R, q + t * of_q, of_q, (const vector *)keys + block, s_vectors, K, found);
            for (int64_t r = 0; r < R; r++) *(vector *)(weights + r * s_padded + block * WIDE) = found[r] * scale;
        }
        for (int64_t r = 0; r < R; r++) {
            float *row = weights + r * s_padded;
            if (bias)
                for (int64_t s = 0; s < S; s++) row[s] += bias[(t + r) * of_bias + s];
            softmax(row, S);
        }
        for (int64_t block = 0; block < k_vectors; block++) {
            weighted_rows(R, weights, s_padded, (const vector *)values + block, k_vectors, S, found);
            const int64_t n = K - block * WIDE < WIDE ? K - block * WIDE : WIDE;
            for (int64_t r = 0; r < R; r++) {
                float *to = y + (t + r) * of_y + block * WIDE;
                if (n == WIDE) memcpy(to, &found[r], sizeof(vector));
                else memcpy(to, &found[r], 4 * n);
            }
        }
    }
}

/* The address of each token's key (or value): token s is in the row row_index[s], or all are in the given row. */
typedef struct {
    const float *at;
    int64_t of_row, of_token, row;
    const int64_t *row_index;
} Tokens;

static inline const float *token(const Tokens *tokens, int64_t s) {
    return tokens->at + (tokens->row_index ? tokens->row_index[s] : tokens->row) * tokens->of_row + s * tokens->of_token;
}

static inline Tokens later(Tokens tokens, int64_t n) {
    tokens.at += n * tokens.of_token;
    if (tokens.row_index) tokens.row_index += n;
    return tokens;
}

typedef float eight __attribute__((vector_size(32)));
typedef float four __attribute__((vector_size(16)));

static inline eight eight_at(const float *x) {
    eight value;
    memcpy(&value, x, sizeof value);
    return value;
}

/* The sum of each of four vectors. */
static inline four sums(eight a, eight b, eight c, eight d) {
#define SHUFFLED __builtin_shufflevector
    const eight ab = SHUFFLED(a, b, 0, 8, 2, 10, 4, 12, 6, 14) + SHUFFLED(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
    const eight cd = SHUFFLED(c, d, 0, 8, 2, 10, 4, 12, 6, 14) + SHUFFLED(c, d, 1, 9, 3, 11, 5, 13, 7, 15);
    const eight all = SHUFFLED(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLED(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    return SHUFFLED(all, all, 0, 1, 2, 3) + SHUFFLED(all, all, 4, 5, 6, 7);
}

/* q kᵀ of one query, four keys at a time: for a head of E eights */
static inline __attribute__((always_inline)) void scores_of(const int E, const float *q, const Tokens *k, int64_t S,
                                                            float *scores) {
    for (int64_t s = 0; s < S; s += 4) {
        eight found[4];
        for (int i = 0; i < 4; i++) {
            const float *key = token(k, s + i < S ? s + i : S - 1);
            found[i] = eight_at(q) * eight_at(key);
            for (int e = 1; e < E; e++) found[i] += eight_at(q + 8 * e) * eight_at(key + 8 * e);
        }
        const four sum = sums(found[0], found[1], found[2], found[3]);
        memcpy(scores + s, &sum, sizeof sum);
    }
}

/* Σ weight · value */
static inline __attribute__((always_inline)) void values_of(const int E, const float *weights, const Tokens *v, int64_t S,
                                                            float *y) {
    eight sum[8] = {{0}};
    for (int64_t s = 0; s < S; s++) {
        const float *value = token(v, s);
        for (int e = 0; e < E; e++) sum[e] += weights[s] * eight_at(value + 8 * e);
    }
    memcpy(y, sum, 32 * E);
}

/* One query (the newest token): nothing is shared, so keys and values are read in place, from the first to the last
 * that is not masked. */
static void attend_one(const float *q, Tokens k, Tokens v, const float *bias, float *y, int64_t S, int64_t K, float scale,
                       float *weights) {
    if (bias) {
        int64_t first = 0;
        while (S > 1 && bias[S - 1] <= HIDDEN) S--;
        while (first < S - 1 && bias[first] <= HIDDEN) first++;
        k = later(k, first), v = later(v, first);
        bias += first, S -= first;
    }
    switch (K) {
    case 32: scores_of(4, q, &k, S, weights); break;
    case 64: scores_of(8, q, &k, S, weights); break;
    case 128: scores_of(16, q, &k, S, weights); break;
    default:
        for (int64_t s = 0; s < S; s++) weights[s] = dot(q, token(&k, s), K);
    }
    for (int64_t s = 0; s < S; s++) weights[s] = weights[s] * scale + (bias ? bias[s] : 0.0f);
    softmax(weights, S);
    switch (K) {
    case 32: values_of(4, weights, &v, S, y); break;
    case 64: values_of(8, weights, &v, S, y); break;
    default:
        for (int64_t i = 0; i < K; i++) y[i] = 0.0f;
        for (int64_t s = 0; s < S; s++) {
            const float *value = token(&v, s);
            for (int64_t i = 0; i < K; i++) y[i] += weights[s] * value[i];
        }
    }
}

/* The bytes of one head's scratch space. */
static int64_t head_room(const Sizes *sizes) {
    const int64_t s_padded = PADDED(sizes->keys), k_padded = PADDED(sizes->width);
    if (sizes->queries == 1) return 4 * s_padded;
    return 4 * (sizes->width * s_padded + sizes->keys * k_padded + TOGETHER * s_padded);
}

/* q [rows, heads, queries, width], k and v [rows / repeats, kv_heads, keys, width], bias [rows / repeats, heads, queries,
 * keys] or NULL; the last axis of each has no gaps. y [rows, queries, heads, width]. If there is one query, row_index
 * [rows, keys] may say which row of k and v each token is in. */
int64_t attend(const Axes *q, const Axes *k, const Axes *v, const Axes *bias, const int64_t *row_index, float *y,
            const Sizes *sizes, float scale) {
    const int64_t H = sizes->heads, T = sizes->queries, S = sizes->keys, K = sizes->width;
    int64_t failed = 0;
#pragma omp parallel reduction(| : failed) if (sizes->rows * H * T * S * K > MANY)
    {
        float *room = aligned_alloc(64, (head_room(sizes) + 63) / 64 * 64);
        failed |= !room;
#pragma omp for collapse(2)
        for (int64_t b = 0; b < sizes->rows; b++)
            for (int64_t h = 0; h < H; h++) {
                if (!room) continue;
                const int64_t g = h / (H / sizes->kv_heads), row = b / sizes->repeats;
                const float *queries = q->at + b * q->row + h * q->head;
                const float *keys = k->at + g * k->head, *values = v->at + g * v->head;
                const float *added = bias ? bias->at + row * bias->row + h * bias->head : 0;
                float *to = y + (b * T * H + h) * K;
                if (T == 1) {
                    const int64_t *in = row_index ? row_index + b * S : 0;
                    const Tokens of_k = {keys, k->row, k->token, row, in}, of_v = {values, v->row, v->token, row, in};
                    attend_one(queries, of_k, of_v, added, to, S, K, scale, room);
                } else
                    attend_many(queries, q->token, keys + row * k->row, k->token, values + row * v->row, v->token, added,
                                bias ? bias->token : 0, to, H * K, T, S, K, scale, room);
            }
        free(room);
    }
    return failed;
}
