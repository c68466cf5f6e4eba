/* Products with weights of 8 bits, as fast as the processor multiplies bytes.
 *
 * A weight is quantised once: each output channel has a scale, and each GROUP of its numbers a multiplier of it from 1 to
 * 255. A row of x is quantised on the fly, x ≈ low + scale · q. Outliers would make all steps wide: q is from
 * 0 to 255 within FAR times the mean magnitude, and an outlier has a second digit, q = low digit + 256 ·
 * high digit, which is multiplied by itself. Products within a group are whole numbers, exact; groups are added in one
 * order whichever rows are computed together, so a row does not depend on its neighbours.
 *
 * The weight is packed into tiles of some columns, in each of them four neighbours together, as the instruction takes
 * them. It is read from memory once and in order, so that one row is as fast as memory; many rows share it from the
 * nearest cache.
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

/* --- instructions ----------------------------------------------------------------------------------------------- */

/* ROWS are computed at once, as many as the registers hold with their sums. `added` takes STEP numbers of a row by as many
 * weights of each column; after SPAN numbers, whole sums become floats. */

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

#define ROWS 3
#define LANES 16
#define VECTORS 4 /* of a tile */
#define GROUP 64
#define SPAN GROUP
#define STEP 4
#define FEW 48     /* of so many numbers one may be an outlier; if more are, the range is made wider */
#define NEARBY 0   /* bytes of a weight that one row does not prefetch */
#define LARGEST_FOUR 0
typedef __m512i Whole;
typedef __m512 Real;
typedef Whole Numbers;
typedef struct {
    char none;
} Factor;
static inline Whole repeated(int32_t x) { return _mm512_set1_epi32(x); }
static inline Numbers numbers(const uint8_t *q, int64_t next) {
    int32_t four;
    (void)next;
    memcpy(&four, q, 4);
    return repeated(four);
}
static inline Factor factor_of(const uint8_t *multipliers) {
    (void)multipliers;
    return (Factor){0};
}
static inline Factor negated(Factor factor) { return factor; }
static inline Whole added_four(Whole total, Whole x, const int8_t *w, Factor factor) {
    (void)factor;
    return _mm512_dpbusd_epi32(total, x, _mm512_loadu_si512(w));
}
static inline Whole added(Whole total, Numbers x, const int8_t *w, Factor factor) {
    return added_four(total, x, w, factor);
}
static inline Real real(Whole x) { return _mm512_cvtepi32_ps(x); }
static inline Real filled(float x) { return _mm512_set1_ps(x); }
static inline Real floats(const float *x) { return _mm512_loadu_ps(x); }
static inline Real bytes(const uint8_t *x) {
    return real(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)x)));
}
static inline Real sum_of_product(Real a, Real b, Real c) { return _mm512_fmadd_ps(a, b, c); }
static inline Real product(Real a, Real b) { return _mm512_mul_ps(a, b); }
static inline void put(float *y, Real x) { _mm512_storeu_ps(y, x); }
static inline uint32_t above(const float *x, float bound) { /* a bit for each number */
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(x), filled(bound), _CMP_GT_OQ);
}
static inline uint32_t below(const float *x, float bound) {
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(x), filled(bound), _CMP_LT_OQ);
}
static inline Whole plus_digits(Whole total, Whole high, int negative) {
    const Whole digits = _mm512_slli_epi32(high, 8);
    return negative ? _mm512_sub_epi32(total, digits) : _mm512_add_epi32(total, digits);
}
static inline Real with_whole(Real sum, Whole total, const uint8_t *multipliers) {
    return sum_of_product(real(total), bytes(multipliers), sum);
}

#elif defined(__AVX2__) && defined(__FMA__)

/* Four products are first added in 16 bits, so 255 · (w₀ + w₁ + w₄ + w₅) of eight weights of one sign must fit them, and
 * the same of the other four. Groups are as small to make up for the wider steps that this costs; the instruction that
 * adds what is in 16 bits multiplies by the group's multiplier too. Sums of SPAN numbers fit 32 bits. */
#define ROWS 4
#define LANES 8
#define VECTORS 2
#define GROUP 8
#define SPAN 1024
#define STEP 8
#define FEW 96
#define NEARBY 1048576
#define LARGEST_FOUR 128
typedef __m256i Whole;
typedef __m256 Real;
typedef struct {
    Whole first, second;
} Numbers;
typedef Whole Factor;
static inline Whole repeated(int32_t x) { return _mm256_set1_epi32(x); }
static inline Numbers numbers(const uint8_t *q, int64_t next) {
    int32_t first, second;
    memcpy(&first, q, 4);
    memcpy(&second, q + next, 4);
    return (Numbers){repeated(first), repeated(second)};
}
static inline Factor factor_of(const uint8_t *multipliers) { /* each byte twice, as 16 bits */
    int64_t eight;
    memcpy(&eight, multipliers, 8);
    const Whole twice = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1, 5,
                                         -1, 6, -1, 6, -1, 7, -1, 7, -1);
    return _mm256_shuffle_epi8(_mm256_set1_epi64x(eight), twice);
}
static inline Factor negated(Factor factor) { return _mm256_sub_epi16(_mm256_setzero_si256(), factor); }
static inline Whole added_four(Whole total, Whole x, const int8_t *w, Factor factor) {
    const Whole pairs = _mm256_maddubs_epi16(x, _mm256_loadu_si256((const Whole *)w));
    return _mm256_add_epi32(total, _mm256_madd_epi16(pairs, factor));
}
/* The instructions stand next to each other: gcc would multiply all first, and run out of registers. */
static inline Whole added(Whole total, Numbers x, const int8_t *w, Factor factor) {
    Whole pairs, others;
    __asm__("vpmaddubsw %[w], %[x], %[pairs]\n\t"
            "vpmaddubsw %[w_], %[x_], %[others]\n\t"
            "vpaddw %[others], %[pairs], %[pairs]\n\t"
            "vpmaddwd %[factor], %[pairs], %[pairs]\n\t"
            "vpaddd %[pairs], %[total], %[total]"
            : [total] "+x"(total), [pairs] "=&x"(pairs), [others] "=&x"(others)
            : [x] "x"(x.first), [w] "m"(*(const Whole *)w), [x_] "x"(x.second),
              [w_] "m"(*(const Whole *)(w + VECTORS * LANES * 4)), [factor] "x"(factor));
    return total;
}
static inline Real real(Whole x) { return _mm256_cvtepi32_ps(x); }
static inline Real filled(float x) { return _mm256_set1_ps(x); }
static inline Real floats(const float *x) { return _mm256_loadu_ps(x); }
static inline Real bytes(const uint8_t *x) {
    return real(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)x)));
}
static inline Real sum_of_product(Real a, Real b, Real c) { return _mm256_fmadd_ps(a, b, c); }
static inline Real product(Real a, Real b) { return _mm256_mul_ps(a, b); }
static inline void put(float *y, Real x) { _mm256_storeu_ps(y, x); }
static inline uint32_t above(const float *x, float bound) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), filled(bound), _CMP_GT_OQ));
}
static inline uint32_t below(const float *x, float bound) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), filled(bound), _CMP_LT_OQ));
}
static inline Whole plus_digits(Whole total, Whole high, int negative) { return (void)high, (void)negative, total; }
static inline Real with_whole(Real sum, Whole total, const uint8_t *multipliers) {
    (void)multipliers;
    return _mm256_add_ps(sum, real(total));
}

#endif

#ifdef LANES
#define TILE (LANES * VECTORS) /* columns */
#else
#define TILE 0
#define GROUP 64
#define FEW 48
#define LARGEST_FOUR 0
#endif

/* The layout of a weight: columns of a tile (0: there is no instruction for it), numbers that share a multiplier, and
 * the largest sum of four of one sign that are added in 16 bits (0: none are). */
int64_t tile_columns(void) { return TILE; }
int64_t group_size(void) { return GROUP; }
int64_t largest_four(void) { return LARGEST_FOUR; }

/* --- rows ------------------------------------------------------------------------------------------------------- */

#define FAR 5.0f        /* times the mean magnitude of a row: beyond it, a number is an outlier */
#define WIDER 1.25f
#define FARTHEST 200.0f /* times the range: two digits reach as far */
#define CHUNK 512       /* numbers of a row that are quantised at a time */

typedef struct {
    int32_t key;   /* 2 · group, and 1 more if the high digit is negative: in rising order, and then NO_MORE */
    int32_t place; /* of its four */
    int32_t four;  /* the high digit where it stands among the four, without its sign */
} Outlier;

#define NO_MORE -1

typedef struct {
    float scale, low;
} Row;

static inline int64_t most_outliers(int64_t n) { return n / FEW; }
static inline int64_t padded_width(int64_t n) { return (n + 7) / 8 * 8; }

/* The scratch space of `linear`: for each row its Row, its outliers, and the quantised numbers. */
int64_t linear_room(int64_t n_in, int64_t rows) {
#if TILE
    return rows * (int64_t)(sizeof(Row) + (most_outliers(n_in) + 1) * sizeof(Outlier) + padded_width(n_in));
#else
    (void)n_in, (void)rows;
    return 0;
#endif
}

#if TILE

static inline int64_t count_beyond(const float *x, int64_t n, float far) {
    int32_t found = 0; /* as wide as the numbers, so that this becomes vectors */
    for (int64_t i = 0; i < n; i++) found += fabsf(x[i]) > far;
    return found;
}

/* Row r of R that lie side by side: the first four numbers of each, then the next four of each. */
static inline int64_t place_of(int64_t i, int64_t r, int64_t R) { return (i / 4 * R + r) * 4 + i % 4; }

/* Gives outliers their low digits, which the others have already, and lists their high ones. */
static void find_outliers(const float *x, int64_t n, int64_t r, int64_t R, float far, float low, float up, uint8_t *q,
                          Outlier *outliers) {
    float last[LANES] = {0};
    memcpy(last, x + n / LANES * LANES, (size_t)(n % LANES) * 4);
    int64_t found = 0;
    for (int64_t begin = 0; begin < n; begin += GROUP)
        for (int32_t negative = 0; negative < 2; negative++)
            for (int64_t some = begin; some < begin + GROUP && some < n; some += LANES) {
                const float *const these = some + LANES <= n ? x + some : last;
                for (uint32_t bits = negative ? below(these, -far) : above(these, far); bits; bits &= bits - 1) {
                    const int64_t i = some + __builtin_ctz(bits);
                    const int32_t both = (int32_t)floorf((x[i] - low) * up + 0.5f), high = both >> 8;
                    const int32_t digit = high < -255 ? 255 : high < 0 ? -high : high > 255 ? 255 : high;
                    q[place_of(i, r, R)] = (uint8_t)(both & 255);
                    if (digit && found < most_outliers(n))
                        outliers[found++] = (Outlier){(int32_t)(2 * (begin / GROUP)) + negative, (int32_t)(i / 4 * 4),
                                                      (int32_t)((uint32_t)digit << 8 * (i % 4))};
                }
            }
    outliers[found].key = NO_MORE;
}

static void quantize_row(const float *x, int64_t n, int64_t r, int64_t R, uint8_t *q, Row *row, Outlier *outliers) {
    float low = x[0], high = x[0], magnitudes = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        magnitudes += fabsf(x[i]);
    }
    const float farthest = (high > -low ? high : -low) / FARTHEST;
    float far = FAR * magnitudes / (float)n;
    far = far > farthest ? far : farthest;
    const int64_t any = high > far || low < -far;
    if (any) {
        while (count_beyond(x, n, far) > most_outliers(n)) far *= WIDER;
        high = high > far ? far : high;
        low = low < -far ? -far : low;
    }
    const float span = high - low, up = span > 1e-30f ? 255.0f / span : 0.0f;
    uint8_t some[CHUNK] __attribute__((aligned(64)));
    for (int64_t begin = 0; begin < n; begin += CHUNK) {
        const int64_t m = n - begin < CHUNK ? n - begin : CHUNK, whole = padded_width(m);
        for (int64_t i = 0; i < m; i++) {
            const float value = x[begin + i], near = value > high ? high : value < low ? low : value;
            some[i] = (uint8_t)(int32_t)((near - low) * up + 0.5f);
        }
        for (int64_t i = m; i < whole; i++) some[i] = 0;
        for (int64_t k = 0; k < whole / 4; k++) memcpy(q + ((begin / 4 + k) * R + r) * 4, some + k * 4, 4);
    }
    *row = (Row){up > 0.0f ? span / 255.0f : 0.0f, low};
    if (any)
        find_outliers(x, n, r, R, far, low, up, q, outliers);
    else
        outliers[0].key = NO_MORE;
}

/* --- products --------------------------------------------------------------------------------------------------- */

#define NEAR 196608 /* bytes of rows that stay in a core's own cache while all tiles are multiplied with them */
#define AHEAD 16384 /* bytes of a weight that are prefetched while one row is multiplied */

/* Where integer sums end with the group: adds the high digits of one key by the weights of a tile to those of the
 * others; returns the first outlier of the next key. */
static inline const Outlier *add_to_group(const Outlier *outlier, const int8_t *weight, Whole total[VECTORS]) {
    Whole high[VECTORS];
    UNROLLED for (int c = 0; c < VECTORS; c++) high[c] = repeated(0);
    const int32_t key = outlier->key;
    do {
        const Whole x = repeated(outlier->four);
        const int8_t *const w = weight + outlier->place * TILE;
        UNROLLED for (int c = 0; c < VECTORS; c++) high[c] = added_four(high[c], x, w + c * LANES * 4, factor_of(0));
    } while ((++outlier)->key == key);
    UNROLLED for (int c = 0; c < VECTORS; c++) total[c] = plus_digits(total[c], high[c], key & 1);
    return outlier;
}

#define LONGEST_RUN 256 /* outliers whose products surely fit 32 bits together */

/* Where they go on over groups: adds the high digits of all of a row's outliers. */
static inline void add_to_row(const Outlier *outlier, const int8_t *weight, const uint8_t *multipliers,
                              Real sum[VECTORS]) {
    while (outlier->key != NO_MORE) {
        Whole high[VECTORS];
        UNROLLED for (int c = 0; c < VECTORS; c++) high[c] = repeated(0);
        for (int n = 0; n < LONGEST_RUN && outlier->key != NO_MORE; n++, outlier++) {
            const Whole x = repeated(outlier->four);
            const int8_t *const w = weight + outlier->place * TILE;
            UNROLLED for (int c = 0; c < VECTORS; c++) {
                const Factor factor = factor_of(multipliers + outlier->key / 2 * TILE + c * LANES);
                high[c] = added_four(high[c], x, w + c * LANES * 4, outlier->key & 1 ? negated(factor) : factor);
            }
        }
        UNROLLED for (int c = 0; c < VECTORS; c++) sum[c] = sum_of_product(real(high[c]), filled(256.0f), sum[c]);
    }
}

/* R rows by the columns of one tile; q has the first four numbers of all rows side by side, then their next four.
 *
 * Σ x w = s · scale · Σ_groups m · Σ q w' + low · s Σ m w', where w = s · m · w' and the layer knows s Σ m w' (totals)
 * beforehand.
 */
static inline __attribute__((always_inline)) void tile(const int R, const int ahead, const uint8_t *q, int64_t width,
                                                       const Row *rows, const Outlier *outliers, const Linear *layer,
                                                       int64_t t, float *y) {
    const int64_t groups = (width + GROUP - 1) / GROUP, first = t * TILE, left = layer->n_out - first;
    const int8_t *const weight = layer->weight + t * TILE * width, *w = weight;
    const uint8_t *const multipliers = layer->multipliers + t * TILE * groups;
    const int64_t most = most_outliers(layer->n_in) + 1;
    const Outlier *next[ROWS];
    Real sum[ROWS][VECTORS];
    Whole total[ROWS][VECTORS];
    UNROLLED for (int r = 0; r < R; r++) next[r] = outliers + r * most;
    UNROLLED for (int r = 0; r < R; r++)
        UNROLLED for (int c = 0; c < VECTORS; c++) sum[r][c] = filled(0.0f);
    for (int64_t g = 0; g < groups; g++) {
        const int64_t n = width - g * GROUP < GROUP ? width - g * GROUP : GROUP;
        const uint8_t *const of_group = multipliers + g * TILE;
        if (SPAN == GROUP || g % (SPAN / GROUP) == 0)
            UNROLLED for (int r = 0; r < R; r++)
                UNROLLED for (int c = 0; c < VECTORS; c++) total[r][c] = repeated(0);
        Factor factor[VECTORS];
        UNROLLED for (int c = 0; c < VECTORS; c++) factor[c] = factor_of(of_group + c * LANES);
        /* Not unrolled: the processor's prefetcher goes by the instruction that loads. */
        _Pragma("GCC unroll 1") for (int64_t k = 0; k < n; k += STEP, w += STEP * TILE, q += STEP * R) {
            if (ahead)
                UNROLLED for (int c = 0; c < STEP * TILE; c += 64) __builtin_prefetch(w + c + AHEAD);
            UNROLLED for (int r = 0; r < R; r++) {
                const Numbers x = numbers(q + r * 4, 4 * R);
                UNROLLED for (int c = 0; c < VECTORS; c++)
                    total[r][c] = added(total[r][c], x, w + c * LANES * 4, factor[c]);
            }
        }
        if (SPAN == GROUP)
            UNROLLED for (int r = 0; r < R; r++) {
                if (next[r]->key == 2 * g) next[r] = add_to_group(next[r], weight, total[r]);
                if (next[r]->key == 2 * g + 1) next[r] = add_to_group(next[r], weight, total[r]);
            }
        if (SPAN == GROUP || (g + 1) % (SPAN / GROUP) == 0 || g + 1 == groups)
            UNROLLED for (int c = 0; c < VECTORS; c++)
                UNROLLED for (int r = 0; r < R; r++)
                    sum[r][c] = with_whole(sum[r][c], total[r][c], of_group + c * LANES);
    }
    if (SPAN > GROUP)
        UNROLLED for (int r = 0; r < R; r++) add_to_row(next[r], weight, multipliers, sum[r]);
    float found[ROWS][TILE];
    UNROLLED for (int c = 0; c < VECTORS; c++) {
        const int64_t at = first + c * LANES;
        const Real scales = floats(layer->scales + at), totals = floats(layer->totals + at);
        const Real bias = layer->bias ? floats(layer->bias + at) : filled(0.0f);
        UNROLLED for (int r = 0; r < R; r++) {
            const Real value = product(sum[r][c], filled(rows[r].scale));
            put(&found[r][c * LANES],
                sum_of_product(value, scales, sum_of_product(filled(rows[r].low), totals, bias)));
        }
    }
    if (layer->activation) activate(layer->activation, found[0], R * TILE);
    UNROLLED for (int r = 0; r < R; r++)
        memcpy(y + r * layer->n_out + first, found[r], left >= TILE ? sizeof found[r] : 4 * (size_t)left);
}

static void tile_rows(int64_t R, const uint8_t *q, int64_t width, const Row *rows, const Outlier *outliers,
                      const Linear *layer, int64_t t, float *y) {
    switch (R) {
    case 1:
        if (width * layer->n_out > NEARBY)
            tile(1, 1, q, width, rows, outliers, layer, t, y);
        else
            tile(1, 0, q, width, rows, outliers, layer, t, y);
        break;
    case 2: tile(2, 0, q, width, rows, outliers, layer, t, y); break;
#if ROWS > 3
    case 3: tile(3, 0, q, width, rows, outliers, layer, t, y); break;
#endif
    default: tile(ROWS, 0, q, width, rows, outliers, layer, t, y);
    }
}
#endif

void linear(const Linear *layer, const float *x, int64_t rows, float *y, void *room) {
#if TILE
    const int64_t n = layer->n_in, width = padded_width(n), most = most_outliers(n) + 1;
    const int64_t tiles = (layer->n_out + TILE - 1) / TILE;
    Row *found = (Row *)room;
    Outlier *outliers = (Outlier *)(found + rows);
    uint8_t *q = (uint8_t *)(outliers + rows * most);
    const int64_t fit = NEAR / width / ROWS * ROWS, some = fit > ROWS ? fit : ROWS;
#pragma omp parallel if (rows * n * layer->n_out > 8 * MANY)
    {
#pragma omp for
        for (int64_t row = 0; row < rows; row++) {
            const int64_t begin = row / ROWS * ROWS, R = rows - begin < ROWS ? rows - begin : ROWS;
            quantize_row(x + row * n, n, row - begin, R, q + begin * width, found + row, outliers + row * most);
        }
#pragma omp for collapse(2)
        for (int64_t begin = 0; begin < rows; begin += some)
            for (int64_t t = 0; t < tiles; t++) {
                const int64_t end = begin + some < rows ? begin + some : rows;
                for (int64_t row = begin; row < end; row += ROWS)
                    tile_rows(end - row, q + row * width, width, found + row, outliers + row * most, layer, t,
                              y + row * layer->n_out);
            }
    }
#endif
}
