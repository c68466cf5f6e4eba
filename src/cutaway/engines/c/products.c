/* Products with weights of 8 bits, as fast as the processor multiplies small whole numbers.
 *
 * A weight is quantised once, each output channel by its largest number; a row of x when it comes. Products and sums are
 * then whole numbers, exact and the same whichever rows are computed together. What the rows become depends on what the
 * processor can multiply:
 *
 *     bytes (AVX-512 VNNI)   x ≈ low + scale · q, q from 0 (the smallest number of the row) to 255 (the largest)
 *     words (AVX2)           x ≈ scale · q, q from -8191 to 8191, or less far if so many sums did not fit 32 bits
 *
 * The weight is packed into tiles of some columns, in each of them DEPTH neighbours together, as the instruction takes
 * them. What is read from memory is read once and in order, so that one row is as fast as memory; many rows share it from
 * the nearest cache.
 *
 *     column   0           1              TILE - 1
 *     k        0 1 2 3     0 1 2 3    …   0 1 2 3        then the same for k = 4 … 7, and so on (DEPTH is 4 here)
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

#define ROWS 6 /* that are computed at once: as many as the registers hold */
#define UNROLLED _Pragma("GCC unroll 8") /* so that they are registers */

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

#define LANES 16
#define VECTORS 4 /* of a tile */
#define DEPTH 4
typedef uint8_t Quantum;
typedef __m512i Whole;
static inline Whole weight_at(const int8_t *w) { return _mm512_loadu_si512(w); }
static inline Whole repeated(int32_t x) { return _mm512_set1_epi32(x); }
static inline Whole summed(Whole total, Whole x, Whole w) { return _mm512_dpbusd_epi32(total, x, w); }

#elif defined(__AVX2__)

#define LANES 8
#define VECTORS 2
#define DEPTH 2
typedef int16_t Quantum;
typedef __m256i Whole;
static inline Whole weight_at(const int8_t *w) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w)); }
static inline Whole repeated(int32_t x) { return _mm256_set1_epi32(x); }
/* total + x · w, the two instructions next to each other: gcc would multiply all first, and run out of registers */
static inline Whole summed(Whole total, Whole x, Whole w) {
    Whole product;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(total), "=&x"(product) : "x"(x), "x"(w));
    return total;
}

#endif

#ifdef DEPTH
#define TILE (LANES * VECTORS) /* columns */
#else
#define TILE 0
#define DEPTH 0
#endif

/* How a weight is packed: columns of a tile, and neighbours that are together; 0: there is no instruction for it. */
int64_t tile_columns(void) { return TILE; }
int64_t tile_depth(void) { return DEPTH; }

#if DEPTH

typedef float Real __attribute__((vector_size(4 * LANES)));
typedef int32_t Counted __attribute__((vector_size(4 * LANES)));

static inline Real real_at(const float *x) {
    Real value;
    memcpy(&value, x, sizeof value);
    return value;
}

#if DEPTH == 4
static void quantize_row(const float *x, int64_t n, Quantum *q, float *scale, float *low) {
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
#else
static void quantize_row(const float *x, int64_t n, Quantum *q, float *scale, float *low) {
    const int64_t fits = INT32_MAX / (127 * n);
    const float limit = fits < 8191 ? (float)fits : 8191.0f;
    float most = 0.0f;
    for (int64_t i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    const float up = most > 0.0f ? limit / most : 0.0f;
    for (int64_t i = 0; i < n; i++) q[i] = (int16_t)(int32_t)nearbyintf(x[i] * up);
    *scale = most / limit;
    *low = 0.0f;
}
#endif

/* --- products --------------------------------------------------------------------------------------------------- */

#define NEAR 196608 /* bytes of rows that stay in a core's own cache while all tiles are multiplied with them */

/* R rows by the columns of one tile; q has `steps` groups of DEPTH numbers a row.
 *
 * Of bytes, Σ x w = scale · s · Σ (q - 128) w' + (low + 128 · scale) · s Σ w', where x = low + scale · q, w = s · w', and
 * the layer knows its Σ w' (sums) and s Σ w' (totals) beforehand. Of words, Σ x w = scale · s · Σ q w'.
 */
static inline __attribute__((always_inline)) void tile(const int R, const Quantum *q, int64_t steps, const int8_t *w,
                                                       const float *row_scales, const float *lows, const Linear *layer,
                                                       int64_t first, float *y) {
    Whole total[ROWS][VECTORS];
    UNROLLED for (int r = 0; r < R; r++)
        UNROLLED for (int c = 0; c < VECTORS; c++) total[r][c] = repeated(0);
    for (int64_t k = 0; k < steps; k++) {
        Whole weight[VECTORS];
        UNROLLED for (int c = 0; c < VECTORS; c++) weight[c] = weight_at(w + (k * VECTORS + c) * LANES * DEPTH);
        UNROLLED for (int r = 0; r < R; r++) {
            int32_t together;
            memcpy(&together, q + (r * steps + k) * DEPTH, 4);
            const Whole all = repeated(together);
            UNROLLED for (int c = 0; c < VECTORS; c++) total[r][c] = summed(total[r][c], all, weight[c]);
        }
    }
    float found[ROWS][TILE];
    UNROLLED for (int c = 0; c < VECTORS; c++) {
        const int64_t at = first + c * LANES;
        const Real scales = real_at(layer->scales + at), bias = layer->bias ? real_at(layer->bias + at) : (Real){0};
#if DEPTH == 4
        const Real totals = real_at(layer->totals + at);
        Counted sums;
        memcpy(&sums, layer->sums + at, sizeof sums);
        sums *= 128;
#endif
        UNROLLED for (int r = 0; r < R; r++) {
#if DEPTH == 4
            const Real sum = __builtin_convertvector((Counted)total[r][c] - sums, Real);
            const Real value = sum * (row_scales[r] * scales) + (lows[r] + 128.0f * row_scales[r]) * totals + bias;
#else
            const Real value = __builtin_convertvector((Counted)total[r][c], Real) * (row_scales[r] * scales) + bias;
#endif
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

static void tile_rows(int64_t R, const Quantum *q, int64_t steps, const int8_t *w, const float *row_scales,
                      const float *lows, const Linear *layer, int64_t first, float *y) {
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

/* The quantised rows, and two floats for each before them. */
int64_t linear_room(int64_t n_in, int64_t rows) {
#if DEPTH
    return rows * (8 + (n_in + DEPTH - 1) / DEPTH * DEPTH * (int64_t)sizeof(Quantum));
#else
    return 0;
#endif
}

void linear(const Linear *layer, const float *x, int64_t rows, float *y, void *room) {
#if DEPTH
    const int64_t n = layer->n_in, steps = (n + DEPTH - 1) / DEPTH, width = steps * DEPTH;
    const int64_t tiles = (layer->n_out + TILE - 1) / TILE;
    float *row_scales = (float *)room, *lows = row_scales + rows;
    Quantum *q = (Quantum *)(lows + rows);
    const int64_t fit = NEAR / (width * (int64_t)sizeof(Quantum)) / ROWS * ROWS, some = fit > ROWS ? fit : ROWS;
#pragma omp parallel if (rows * n > MANY || layer->n_out * n > MANY)
    {
#pragma omp for
        for (int64_t row = 0; row < rows; row++) {
            Quantum *to = q + row * width;
            quantize_row(x + row * n, n, to, row_scales + row, lows + row);
            for (int64_t i = n; i < width; i++) to[i] = 0;
        }
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
