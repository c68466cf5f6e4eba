/* The products of the int8 engine, y = x Wᵀ + b with weights of 8 bits, and the small steps between them.
 *
 * W is quantised per output channel once; each row of x when it comes, from its smallest number to its largest.
 * Products and sums are then integers, exact and the same whichever rows are computed together.
 *
 * Built on first use by the machine's own compiler (see kernels.py); without one, torch does the same in more steps.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
#define VNNI 1
#endif

#define MANY 32768 /* numbers that are worth a second thread */

/* --- rows to 8 bits ------------------------------------------------------------------------------------------- */

/* x ≈ low + scale · q with q from 0 to 255: the smallest number of the row is 0, the largest 255 */
static void quantize_row(const float *x, int64_t n, uint8_t *q, float *scale, float *low) {
    float least = x[0], most = x[0];
    for (int64_t i = 0; i < n; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    const float span = most - least, up = span > 0.0f ? 255.0f / span : 0.0f;
    for (int64_t i = 0; i < n; i++) q[i] = (uint8_t)(int32_t)((x[i] - least) * up + 0.5f);
    *scale = span / 255.0f;
    *low = least;
}

/* --- activations ----------------------------------------------------------------------------------------------- */

/* e^x = 2^n · e^r with n = round(x / ln 2): a polynomial for e^r, and n goes straight into the exponent's bits */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    const float n = nearbyintf(x * 1.44269504f);
    const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float e = 1.9875691500e-4f;
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * r * r + r + 1.0f;
    union { int32_t bits; float value; } power = {((int32_t)n + 127) << 23};
    return e * power.value;
}

static inline float logistic(float x) { return 1.0f / (1.0f + exponential(-x)); }

/* x (½ + x P(x²)), and 0 or x beyond ±4: GELU's sigmoid as a polynomial, off by 1e-04 at most, less than a hundredth of
 * the step that 8 bits can tell apart, and as fast as the product it follows */
static inline float bent(float x, const float P[8]) {
    const float near = x < -4.0f ? -4.0f : x > 4.0f ? 4.0f : x, square = near * near;
    float p = P[7];
    for (int i = 6; i >= 0; i--) p = p * square + P[i];
    return x * (0.5f + near * p);
}

static const float EXACT[8] = {3.982058638e-01f, -6.509366562e-02f, 9.055031227e-03f, -8.865393282e-04f,
                               5.788830436e-05f, -2.345304334e-06f, 5.185089871e-08f, -4.581433708e-10f};
static const float TANH[8] = {3.984940316e-01f, -6.587821028e-02f, 9.523308857e-03f, -1.006875450e-03f,
                              7.406311616e-05f, -3.536355552e-06f, 9.737992016e-08f, -1.164803899e-09f};

enum { NONE, RELU, GELU, GELU_TANH, SILU };

static void activate(int activation, float *y, int64_t n) {
    switch (activation) {
    case RELU:
        for (int64_t i = 0; i < n; i++) y[i] = y[i] > 0.0f ? y[i] : 0.0f;
        break;
    case GELU:
        for (int64_t i = 0; i < n; i++) y[i] = bent(y[i], EXACT);
        break;
    case GELU_TANH:
        for (int64_t i = 0; i < n; i++) y[i] = bent(y[i], TANH);
        break;
    case SILU:
        for (int64_t i = 0; i < n; i++) y[i] *= logistic(y[i]);
        break;
    }
}

/* --- products --------------------------------------------------------------------------------------------------
 * Only where the processor multiplies bytes (VNNI). The weight is packed: 64 columns side by side, four numbers of each
 * together, as the instruction takes them. What is read from memory is read once and in order, so that one row is as
 * fast as memory; many rows share it from the nearest cache.
 *
 *     column   0           1                63
 *     k        0 1 2 3     0 1 2 3    …     0 1 2 3        256 bytes, then the same for k = 4 … 7, and so on
 */

#define TILE 64 /* columns */
#define ROWS 6  /* rows that are computed at once: as many as the registers hold */
#define NEAR 196608 /* bytes of rows that stay in a core's own cache while all tiles are multiplied with them */
#define UNROLLED _Pragma("GCC unroll 8") /* so that they are registers */

int64_t multiplies_bytes(void) {
#ifdef VNNI
    return 1;
#else
    return 0;
#endif
}

#ifdef VNNI
typedef struct {
    const float *scales, *totals, *bias;
    const int32_t *sums;
    int64_t columns, activation;
} Layer; /* all but its weight */

/* R rows by the 64 columns of one tile; q has `steps` groups of four bytes a row.
 *
 * Σ x w = scale · s · Σ (q - 128) w' + (low + 128 · scale) · s Σ w', where x = low + scale · q, w = s · w', and the layer
 * knows its Σ w' (sums) and s Σ w' (totals) beforehand.
 */
static inline __attribute__((always_inline)) void tile(const int R, const uint8_t *q, int64_t steps, const int8_t *w,
                                                       const float *row_scales, const float *lows, const Layer *layer,
                                                       int64_t first, float *y) {
    __m512i total[ROWS][4];
    UNROLLED for (int r = 0; r < R; r++)
        UNROLLED for (int c = 0; c < 4; c++) total[r][c] = _mm512_setzero_si512();
    for (int64_t k = 0; k < steps; k++) {
        __m512i weight[4];
        UNROLLED for (int c = 0; c < 4; c++) weight[c] = _mm512_loadu_si512(w + k * 4 * TILE + c * 64);
        UNROLLED for (int r = 0; r < R; r++) {
            int32_t four;
            memcpy(&four, q + (r * steps + k) * 4, 4);
            const __m512i all = _mm512_set1_epi32(four);
            UNROLLED for (int c = 0; c < 4; c++) total[r][c] = _mm512_dpbusd_epi32(total[r][c], all, weight[c]);
        }
    }
    UNROLLED for (int c = 0; c < 4; c++) {
        const int64_t at = first + c * 16, left = layer->columns - at;
        if (left <= 0) continue;
        const __mmask16 real = left >= 16 ? 0xffff : (1 << left) - 1;
        const __m512i sums = _mm512_slli_epi32(_mm512_maskz_loadu_epi32(real, layer->sums + at), 7);
        const __m512 scales = _mm512_maskz_loadu_ps(real, layer->scales + at);
        const __m512 totals = _mm512_maskz_loadu_ps(real, layer->totals + at);
        const __m512 bias = layer->bias ? _mm512_maskz_loadu_ps(real, layer->bias + at) : _mm512_setzero_ps();
        UNROLLED for (int r = 0; r < R; r++) {
            const __m512 sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(total[r][c], sums));
            const __m512 base = _mm512_fmadd_ps(_mm512_set1_ps(lows[r] + 128.0f * row_scales[r]), totals, bias);
            const __m512 value = _mm512_fmadd_ps(sum, _mm512_mul_ps(_mm512_set1_ps(row_scales[r]), scales), base);
            _mm512_mask_storeu_ps(y + r * layer->columns + at, real, value);
        }
    }
    if (layer->activation) {
        const int64_t left = layer->columns - first, n = left < TILE ? left : TILE;
        for (int r = 0; r < R; r++) activate((int)layer->activation, y + r * layer->columns + first, n);
    }
}

static void tile_rows(int64_t R, const uint8_t *q, int64_t steps, const int8_t *w, const float *row_scales,
                      const float *lows, const Layer *layer, int64_t first, float *y) {
    switch (R) {
    case 1: tile(1, q, steps, w, row_scales, lows, layer, first, y); break;
    case 2: tile(2, q, steps, w, row_scales, lows, layer, first, y); break;
    case 3: tile(3, q, steps, w, row_scales, lows, layer, first, y); break;
    case 4: tile(4, q, steps, w, row_scales, lows, layer, first, y); break;
    case 5: tile(5, q, steps, w, row_scales, lows, layer, first, y); break;
    default: tile(6, q, steps, w, row_scales, lows, layer, first, y);
    }
}
#endif

/* y = activation(x Wᵀ + bias). x [rows, n]; `room` holds the quantised rows, n rounded up to 4 bytes each, and two
 * floats a row before them */
void linear(const float *x, int64_t rows, int64_t n, const int8_t *packed, int64_t columns, const float *scales,
            const int32_t *sums, const float *totals, const float *bias, int64_t activation, char *room, float *y) {
#ifdef VNNI
    const int64_t steps = (n + 3) / 4, width = steps * 4, tiles = (columns + TILE - 1) / TILE;
    float *row_scales = (float *)room, *lows = row_scales + rows;
    uint8_t *q = (uint8_t *)(lows + rows);
    const int64_t fit = NEAR / width / ROWS * ROWS, some = fit > ROWS ? fit : ROWS;
    const Layer layer = {scales, totals, bias, sums, columns, activation};
#pragma omp parallel if (rows * n > MANY || columns * n > MANY)
    {
#pragma omp for
        for (int64_t row = 0; row < rows; row++) {
            uint8_t *to = q + row * width;
            quantize_row(x + row * n, n, to, row_scales + row, lows + row);
            for (int64_t i = n; i < width; i++) to[i] = 0;
        }
#pragma omp for collapse(2)
        for (int64_t begin = 0; begin < rows; begin += some)
            for (int64_t t = 0; t < tiles; t++) {
                const int64_t end = begin + some < rows ? begin + some : rows;
                for (int64_t row = begin; row < end; row += ROWS)
                    tile_rows(end - row, q + row * width, steps, packed + t * TILE * width, row_scales + row, lows + row,
                              &layer, t * TILE, y + row * columns);
            }
    }
#endif
}

/* --- attention ---------------------------------------------------------------------------------------------------
 * softmax(q kᵀ · scale + bias) v for short sequences, where calling a general kernel takes longer than computing.
 */

#define WIDE 16    /* numbers of a vector; keys, values and weights are kept in whole ones */
#define TOGETHER 4 /* queries that read them at once */
#define HIDDEN -3e38f /* less than any score; -ffinite-math-only knows no infinity */
#define PADDED(n) (((n) + WIDE - 1) / WIDE * WIDE)
typedef float vector __attribute__((vector_size(4 * WIDE)));

static float dot(const float *a, const float *b, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* of the first n numbers; there is room up to a whole vector, which becomes 0 */
static void softmax(float *x, int64_t n) {
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


/* y[r] = Σ_i a[r][i] · b[i] for R rows, where b is a column of vectors `step` apart */
static inline __attribute__((always_inline)) void weighted(const int R, const float *a, int64_t of_a, const vector *b,
                                                           int64_t step, int64_t n, vector y[TOGETHER]) {
    for (int r = 0; r < R; r++) y[r] = (vector){0};
    for (int64_t i = 0; i < n; i++)
        for (int r = 0; r < R; r++) y[r] += a[r * of_a + i] * b[i * step];
}

static inline void weighted_rows(int64_t R, const float *a, int64_t of_a, const vector *b, int64_t step, int64_t n,
                          vector y[TOGETHER]) {
    if (R >= 4) weighted(4, a, of_a, b, step, n, y);
    else if (R == 3) weighted(3, a, of_a, b, step, n, y);
    else if (R == 2) weighted(2, a, of_a, b, step, n, y);
    else weighted(1, a, of_a, b, step, n, y);
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

/* One query (the newest token): nothing to share, so keys and values are read where they are. Token s is in the row
 * holders[s], or all are in the given row; of_k and of_v are the strides of rows, heads and tokens. */
static void attend_one(const float *q, const float *k, const int64_t *of_k, const float *v, const int64_t *of_v,
                       const int64_t *holders, int64_t row, const float *bias, float *y, int64_t S, int64_t K,
                       float scale, float *weights) {
    for (int64_t s = 0; s < S; s++)
        weights[s] = dot(q, k + (holders ? holders[s] : row) * of_k[0] + s * of_k[2], K) * scale;
    if (bias)
        for (int64_t s = 0; s < S; s++) weights[s] += bias[s];
    softmax(weights, S);
    for (int64_t i = 0; i < K; i++) y[i] = 0.0f;
    for (int64_t s = 0; s < S; s++) {
        const float *value = v + (holders ? holders[s] : row) * of_v[0] + s * of_v[2];
        for (int64_t i = 0; i < K; i++) y[i] += weights[s] * value[i];
    }
}

/* q [B, H, T, K], k and v [B / share, G, S, K], bias [B / share, H, T, S] or NULL, each with its strides of the first three
 * axes (0: the same for all); y [B, T, H, K], without gaps. The last axis of q, k and v has no gaps. If T is 1, holders
 * [B, S] may say which row of k and v each token is in. */
void attend(const float *q, const float *k, const float *v, const float *bias, const int64_t *holders, float *y,
            const int64_t *sizes, const int64_t *strides, float scale) {
    const int64_t B = sizes[0], H = sizes[1], T = sizes[2], G = sizes[3], S = sizes[4], K = sizes[5], share = sizes[6];
    const int64_t *of_q = strides, *of_k = strides + 3, *of_v = strides + 6, *of_bias = strides + 9;
    const int64_t s_padded = PADDED(S), k_padded = PADDED(K);
    const int64_t n_room = T == 1 ? s_padded : K * s_padded + S * k_padded + TOGETHER * s_padded;
#pragma omp parallel for collapse(2) if (B * H * T * S * K > MANY)
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++) {
            const int64_t g = h / (H / G), row = b / share;
            const float *queries = q + b * of_q[0] + h * of_q[1];
            const float *keys = k + g * of_k[1], *values = v + g * of_v[1];
            const float *added = bias ? bias + row * of_bias[0] + h * of_bias[1] : 0;
            float *to = y + (b * T * H + h) * K;
            float room[n_room] __attribute__((aligned(4 * WIDE)));
            if (T == 1)
                attend_one(queries, keys, of_k, values, of_v, holders ? holders + b * S : 0, row, added, to, S, K, scale,
                           room);
            else
                attend_many(queries, of_q[2], keys + row * of_k[0], of_k[2], values + row * of_v[0], of_v[2], added, of_bias[2], to, H * K, T, S, K, scale,
                            room);
        }
}

/* --- the small steps of a Llama ----------------------------------------------------------------------------------
 * One call instead of the eight (norm) and six (rotation) that torch's steps take.
 */

/* y = gamma · x / √(mean(x²) + epsilon), for each row of x [rows, n] */
void rms_norm(const float *x, int64_t rows, int64_t n, const float *gamma, float epsilon, float *y) {
#pragma omp parallel for if (rows * n > MANY)
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * n;
        const float share = 1.0f / sqrtf(dot(from, from, n) / (float)n + epsilon);
        for (int64_t i = 0; i < n; i++) y[row * n + i] = gamma[i] * (from[i] * share);
    }
}

/* y = x · cos + (-second half, first half) · sin. x [B, H, T, K] with strides of the first three axes and no gaps in
 * the last; cos and sin [B, T, K] with strides of the first two; y [B, T, H, K], without gaps. */
void turn(const float *x, const float *cosines, const float *sines, float *y, const int64_t *sizes,
          const int64_t *strides) {
    const int64_t B = sizes[0], H = sizes[1], T = sizes[2], K = sizes[3], half = K / 2;
#pragma omp parallel for collapse(2) if (B * H * T * K > MANY)
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++) {
            const float *c = cosines + b * strides[3] + t * strides[4], *s = sines + b * strides[3] + t * strides[4];
            for (int64_t h = 0; h < H; h++) {
                const float *from = x + b * strides[0] + h * strides[1] + t * strides[2];
                float *to = y + ((b * T + t) * H + h) * K;
                for (int64_t i = 0; i < half; i++) to[i] = from[i] * c[i] - from[i + half] * s[i];
                for (int64_t i = half; i < K; i++) to[i] = from[i] * c[i] + from[i - half] * s[i];
            }
        }
}
