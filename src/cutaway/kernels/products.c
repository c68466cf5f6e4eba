/* Products with weights of 8 bits, as fast as the processor multiplies bytes.
 *
 * A weight is quantised once, each output channel by its largest number; a row of x when it comes: x ≈ low + scale · q, q
 * from 0 (the smallest number of the row) to 255 (the largest). Products and sums are then whole numbers, exact and the
 * same whichever rows are computed together.
 *
 * The weight is packed into tiles of some columns, in each of them four neighbours together, as the instruction takes
 * them. What is read from memory is read once and in order, so that one row is as fast as memory; many rows share it from
 * the nearest cache.
 *
 *     column   0           1              TILE - 1
 *     k        0 1 2 3     0 1 2 3    …   0 1 2 3        then the same for k = 4 … 7, and so on
 */

#include "kernels.h"

#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* --- activations ----------------------------------------------------------------------------------------------- */

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

void activate(int64_t activation, float *y, int64_t n) {
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
        for (int64_t i = 0; i < n; i++) y[i] /= 1.0f + exponential(-y[i]);
        break;
    }
}

/* --- what the processor multiplies ------------------------------------------------------------------------------ */

/* ROWS are computed at once, as many as the registers hold; `summed` takes eight numbers of a row, four (x) by the
 * weights w and four (x') by w'. */

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

#define ROWS 6
#define LANES 16
#define VECTORS 4 /* of a tile */
#define LARGEST 0
typedef __m512i Whole;
static inline Whole repeated(int32_t x) { return _mm512_set1_epi32(x); }
static inline Whole summed(Whole total, Whole x, const int8_t *w, Whole x_, const int8_t *w_) {
    total = _mm512_dpbusd_epi32(total, x, _mm512_loadu_si512(w));
    return _mm512_dpbusd_epi32(total, x_, _mm512_loadu_si512(w_));
}

#elif defined(__AVX2__)

/* Four products are first added in 16 bits, so 255 · (w₀ + w₁ + w₄ + w₅) of eight weights must fit them, and the same of
 * the other four. Multiplying is what takes the time: three instructions do it for 64 products. They stand next to each
 * other: gcc would multiply all first, and run out of registers. */
#define ROWS 5
#define LANES 8
#define VECTORS 2
#define LARGEST 128
typedef __m256i Whole;
static inline Whole repeated(int32_t x) { return _mm256_set1_epi32(x); }
static inline Whole summed(Whole total, Whole x, const int8_t *w, Whole x_, const int8_t *w_) {
    Whole pairs, others;
    __asm__("vpmaddubsw %[w], %[x], %[pairs]\n\t"
            "vpmaddubsw %[w_], %[x_], %[others]\n\t"
            "vpaddw %[others], %[pairs], %[pairs]\n\t"
            "vpmaddwd %[ones], %[pairs], %[pairs]\n\t"
            "vpaddd %[pairs], %[total], %[total]"
            : [total] "+x"(total), [pairs] "=&x"(pairs), [others] "=&x"(others)
            : [x] "x"(x), [w] "m"(*(const Whole *)w), [x_] "x"(x_), [w_] "m"(*(const Whole *)w_),
              [ones] "x"(_mm256_set1_epi16(1)));
    return total;
}

#endif

#ifdef LANES
#define TILE (LANES * VECTORS) /* columns */
#else
#define TILE 0
#define LARGEST 0
#endif

/* What a weight must be like: columns of a tile (0: there is no instruction for it), and how large four of one sign
 * that are added in 16 bits may be together (0: none are). */
int64_t tile_columns(void) { return TILE; }
int64_t largest_four(void) { return LARGEST; }

#if TILE

typedef float Real __attribute__((vector_size(4 * LANES)));
typedef int32_t Counted __attribute__((vector_size(4 * LANES)));

static inline Real real_at(const float *x) {
    Real value;
    memcpy(&value, x, sizeof value);
    return value;
}

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

/* --- products --------------------------------------------------------------------------------------------------- */

#define NEAR 196608 /* bytes of rows that stay in a core's own cache while all tiles are multiplied with them */

/* R rows by the columns of one tile, eight numbers of each row at a step; q has the first four numbers of all rows side
 * by side, then their next four.
 *
 * Σ x w = scale · s · Σ (q - 128) w' + (low + 128 · scale) · s Σ w', where x = low + scale · q, w = s · w', and the layer
 * knows its Σ w' (sums) and s Σ w' (totals) beforehand.
 */
static inline __attribute__((always_inline)) void tile(const int R, const uint8_t *q, int64_t steps, const int8_t *w,
                                                       const float *row_scales, const float *lows, const Linear *layer,
                                                       int64_t first, float *y) {
    Whole total[ROWS][VECTORS];
    UNROLLED for (int r = 0; r < R; r++)
        UNROLLED for (int c = 0; c < VECTORS; c++) total[r][c] = repeated(0);
    for (int64_t k = 0; k < steps; k++, w += 8 * TILE, q += 8 * R)
        UNROLLED for (int r = 0; r < R; r++) {
            int32_t four, others;
            memcpy(&four, q + r * 4, 4);
            memcpy(&others, q + (R + r) * 4, 4);
            const Whole x = repeated(four), x_ = repeated(others);
            UNROLLED for (int c = 0; c < VECTORS; c++)
                total[r][c] = summed(total[r][c], x, w + c * LANES * 4, x_, w + (VECTORS + c) * LANES * 4);
        }
    float found[ROWS][TILE];
    UNROLLED for (int c = 0; c < VECTORS; c++) {
        const int64_t at = first + c * LANES;
        const Real scales = real_at(layer->scales + at), bias = layer->bias ? real_at(layer->bias + at) : (Real){0};
        const Real totals = real_at(layer->totals + at);
        Counted sums;
        memcpy(&sums, layer->sums + at, sizeof sums);
        sums *= 128;
        UNROLLED for (int r = 0; r < R; r++) {
            const Real sum = __builtin_convertvector((Counted)total[r][c] - sums, Real);
            const Real value = sum * (row_scales[r] * scales) + (lows[r] + 128.0f * row_scales[r]) * totals + bias;
            memcpy(&found[r][c * LANES], &value, sizeof value);
        }
    }
    if (layer->activation) activate(layer->activation, found[0], R * TILE);
    const int64_t left = layer->n_out - first;
    UNROLLED for (int r = 0; r < R; r++) {
        float *to = y + r * layer->n_out + first;
        if (left >= TILE) memcpy(to, found[r], sizeof found[r]);
        else memcpy(to, found[r], 4 * left);
    }
}

static void tile_rows(int64_t R, const uint8_t *q, int64_t steps, const int8_t *w, const float *row_scales,
                      const float *lows, const Linear *layer, int64_t first, float *y) {
    switch (R) {
    case 1: tile(1, q, steps, w, row_scales, lows, layer, first, y); break;
    case 2: tile(2, q, steps, w, row_scales, lows, layer, first, y); break;
    case 3: tile(3, q, steps, w, row_scales, lows, layer, first, y); break;
    case 4: tile(4, q, steps, w, row_scales, lows, layer, first, y); break;
#if ROWS > 5
    case 5: tile(5, q, steps, w, row_scales, lows, layer, first, y); break;
#endif
    default: tile(ROWS, q, steps, w, row_scales, lows, layer, first, y);
    }
}
#endif

/* The quantised rows, and two floats for each before them. */
int64_t linear_room(int64_t n_in, int64_t rows) {
#if TILE
    return rows * (8 + (n_in + 7) / 8 * 8);
#else
    return 0;
#endif
}

#if TILE
/* R rows, quantised: the first 4 numbers of each side by side, then the next. */
static void quantize_rows(int64_t R, const float *x, int64_t n, int64_t steps, uint8_t *q, float *scales, float *lows) {
    uint8_t row[steps * 8] __attribute__((aligned(64)));
    for (int64_t r = 0; r < R; r++) {
        quantize_row(x + r * n, n, row, scales + r, lows + r);
        for (int64_t i = n; i < steps * 8; i++) row[i] = 0;
        for (int64_t k = 0; k < steps * 2; k++) memcpy(q + (k * R + r) * 4, row + k * 4, 4);
    }
}
#endif

void linear(const Linear *layer, const float *x, int64_t rows, float *y, void *room) {
#if TILE
    const int64_t n = layer->n_in, steps = (n + 7) / 8, width = steps * 8;
    const int64_t tiles = (layer->n_out + TILE - 1) / TILE;
    float *row_scales = (float *)room, *lows = row_scales + rows;
    uint8_t *q = (uint8_t *)(lows + rows);
    const int64_t fit = NEAR / width / ROWS * ROWS, some = fit > ROWS ? fit : ROWS;
#pragma omp parallel if (rows * n * layer->n_out > 8 * MANY)
    {
#pragma omp for
        for (int64_t row = 0; row < rows; row += ROWS)
            quantize_rows(rows - row < ROWS ? rows - row : ROWS, x + row * n, n, steps, q + row * width, row_scales + row,
                          lows + row);
#pragma omp for collapse(2)
        for (int64_t begin = 0; begin < rows; begin += some)
            for (int64_t t = 0; t < tiles; t++) {
                const int64_t end = begin + some < rows ? begin + some : rows;
                for (int64_t row = begin; row < end; row += ROWS)
                    tile_rows(end - row, q + row * width, steps, layer->weight + t * TILE * width, row_scales + row,
                              lows + row, layer, t * TILE, y + row * layer->n_out);
            }
    }
#endif
}
