/* The loops of cutaway's engines and of training: built on first use by the machine's own compiler (see __init__.py);
 * without one, torch does the same in more steps. Numbers are float32; tensors are
 * contiguous unless their strides are given. */

#include <math.h>
#include <stdint.h>

#define MANY 32768 /* numbers that make a second thread worthwhile */
#define UNROLLED _Pragma("GCC unroll 8") /* loops over variables meant for registers */

/* WIDE numbers are a vector; attention pads keys, values and weights to whole ones */
#ifdef __AVX512F__
#define WIDE 16
#else
#define WIDE 8 /* gcc makes poor code of vectors that are wider than the processor's */
#endif
#define PADDED(n) (((n) + WIDE - 1) / WIDE * WIDE)
#define HIDDEN -3e38f /* less than any score; -ffinite-math-only knows no infinity */

/* products.c: y = activation(x Wᵀ + b), with W in 8 bits */

enum { NONE, RELU, GELU, GELU_TANH, SILU }; /* activations, as int8_layers.py numbers them */

typedef struct {
    const int8_t *weight;                /* packed: see products.c */
    const uint8_t *multipliers;          /* of each tile, group and output */
    const float *scales, *totals, *bias; /* of each output, up to the last tile's end; bias may be NULL */
    int64_t n_in, n_out, activation;
} Linear;

void linear(const Linear *layer, const float *x, int64_t rows, float *y, void *room);
int64_t linear_room(int64_t n_in, int64_t rows); /* the bytes of `room` */
void activate(int64_t activation, float *y, int64_t n);

/* attention.c: softmax(q kᵀ · scale + bias) v. Functions that allocate memory return 0, or 1 if there was none. */

typedef struct {
    const float *at;
    int64_t row, head, token; /* strides; 0: the same for all */
} Axes;

typedef struct {
    int64_t rows, heads, kv_heads, queries, keys, width, repeats;
} Sizes;

int64_t attend(const Axes *q, const Axes *k, const Axes *v, const Axes *bias, const int64_t *row_index, float *y,
            const Sizes *sizes, float scale);
void softmax(float *x, int64_t n); /* of the first n numbers; there is room up to a whole vector, which becomes 0 */

/* norms.c */

typedef struct {
    const float *weight, *bias; /* no bias: RMS norm */
    double epsilon;
} Norm;

typedef struct {
    const float *cosines, *sines; /* [row, token, width] */
    int64_t row;                  /* stride */
} Rotation;

void norm(const Norm *norm, const float *x, int64_t rows, int64_t n, float *y);
void rotate(const Rotation *rotation, const Axes *x, const Axes *y, const Sizes *sizes);

/* top.c */

void top(const float *x, int64_t rows, int64_t n, int64_t k, float *values, int64_t *ids, float *totals);

/* Training: each thread has a micro-batch of its own, so none of these starts a second one */

typedef struct {
    uint64_t seed;
    int64_t level; /* of 256 numbers, this many become 0 */
} Dropout;

/* attention_training.c: attend(), and its gradients */

int64_t padded(int64_t n);
int64_t attend_forward(const Axes *q, const Axes *k, const Axes *v, const Axes *bias, float *weights, const Axes *y,
                    const Sizes *sizes, float scale, const Dropout *dropout);
int64_t attend_backward(const Axes *q, const Axes *k, const Axes *v, const float *weights, const Axes *dy, const Axes *dq,
                     const Axes *dk, const Axes *dv, const Sizes *sizes, float scale, const Dropout *dropout);

/* norms_training.c: norm(x + dropout(f)), and its gradients */

void add_dropped(const float *x, const float *f, int64_t n, const Dropout *dropout, float *y);
void add_norm_forward(const float *x, const float *f, const Norm *norm, int64_t rows, int64_t n, const Dropout *dropout,
                      float *y, float *normalized, float *shares);
void add_norm_backward(const float *dy, const float *normalized, const float *shares, const Norm *norm, int64_t rows,
                       int64_t n, const Dropout *dropout, float *dx, float *df, float *dweight, float *dbias);

/* loss.c */

void vocabulary_loss(float *x, const int64_t *labels, int64_t rows, int64_t n, float smoothing, float *of_label,
                     float *of_all);
void agreeing_loss(float *x, const int64_t *labels, int64_t rows, int64_t n, float smoothing, float agreement,
                   float *of_label, float *of_all, float *apart);

/* Random bytes for n numbers, one each: those of word `place` and after of all that a seed stands for (splitmix64).
 * There is room up to a whole word. */
static inline void draw(uint64_t seed, uint64_t place, int64_t n, uint8_t *bytes) {
    for (int64_t i = 0; i < n; i += 8, place++) {
        uint64_t z = seed + (place + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        __builtin_memcpy(bytes + i, &z, 8);
    }
}

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
