/* The residual connection in training, x + dropout(f) and its norm, forward and backward: one pass through memory each,
 * where torch takes six. The random bytes are made again in the backward pass instead of being kept. */

#include "kernels.h"

#include <string.h>

#define BLOCK 1024 /* numbers whose random bytes are made at once */

/* y = x + dropout(f), or without x dropout(f), of n numbers; their random bytes begin with the word `place`. */
static void drop(const float *restrict x, const float *restrict f, int64_t n, const Dropout *dropout, int64_t place,
                 float *restrict y) {
    const int32_t level = (int32_t)dropout->level;
    const float kept = 256.0f / (256.0f - (float)level);
    uint8_t bytes[BLOCK];
    for (; n > 0; n -= BLOCK, place += BLOCK / 8, f += BLOCK, y += BLOCK, x += x ? BLOCK : 0) {
        const int64_t some = n < BLOCK ? n : BLOCK;
        if (level) draw(dropout->seed, place, some, bytes);
        else memset(bytes, 0, some);
        if (x)
            for (int64_t i = 0; i < some; i++) y[i] = x[i] + (bytes[i] >= level ? f[i] * kept : 0.0f);
        else
            for (int64_t i = 0; i < some; i++) y[i] = bytes[i] >= level ? f[i] * kept : 0.0f;
    }
}

/* Backward, df = dropout(dy): the same without x. */
void add_dropped(const float *x, const float *f, int64_t n, const Dropout *dropout, float *y) {
    drop(x, f, n, dropout, 0, y);
}

/* y = norm(x + dropout(f)) of each row; f may be NULL. (x - μ) / √(σ² + epsilon) and the shares 1 / √(σ² + epsilon) are
 * kept for the backward pass. */
void add_norm_forward(const float *x, const float *f, const Norm *norm, int64_t rows, int64_t n, const Dropout *dropout,
                      float *y, float *normalized, float *shares) {
    const int64_t words = (n + 7) / 8;
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * n;
        float *restrict to = y + row * n, *restrict z = normalized + row * n, mean = 0.0f, square = 0.0f;
        if (f) drop(from, f + row * n, n, dropout, row * words, z), from = z;
        if (norm->bias) {
            for (int64_t i = 0; i < n; i++) mean += from[i];
            mean /= (float)n;
        }
        for (int64_t i = 0; i < n; i++) square += (from[i] - mean) * (from[i] - mean);
        const float share = shares[row] = 1.0f / sqrtf(square / (float)n + (float)norm->epsilon);
        for (int64_t i = 0; i < n; i++) z[i] = (from[i] - mean) * share;
        if (norm->bias)
            for (int64_t i = 0; i < n; i++) to[i] = norm->weight[i] * z[i] + norm->bias[i];
        else
            for (int64_t i = 0; i < n; i++) to[i] = norm->weight[i] * z[i];
    }
}

/* With z = normalized and g = dy · weight:
 *   dx = (g - mean(g) - z · mean(g z)) · share;  df = dropout(dx);  dweight = Σ dy z;  dbias = Σ dy
 * where RMS norm, without bias, has no mean(g). df may be NULL; dweight and dbias are added to. */
void add_norm_backward(const float *dy, const float *normalized, const float *shares, const Norm *norm, int64_t rows,
                       int64_t n, const Dropout *dropout, float *dx, float *df, float *restrict dweight,
                       float *restrict dbias) {
    const int64_t words = (n + 7) / 8;
    const float *weight = norm->weight;
    for (int64_t row = 0; row < rows; row++) {
        const float *d = dy + row * n, *z = normalized + row * n;
        float *restrict to = dx + row * n, mean = 0.0f, slope = 0.0f;
        for (int64_t i = 0; i < n; i++) {
            to[i] = d[i] * weight[i];
            slope += to[i] * z[i];
            dweight[i] += d[i] * z[i];
        }
        if (norm->bias)
            for (int64_t i = 0; i < n; i++) {
                mean += to[i];
                dbias[i] += d[i];
            }
        mean /= (float)n, slope /= (float)n;
        for (int64_t i = 0; i < n; i++) to[i] = (to[i] - mean - z[i] * slope) * shares[row];
        if (df) drop(0, to, n, dropout, row * words, df + row * n);
    }
}
