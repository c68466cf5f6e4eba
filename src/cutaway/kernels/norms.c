/* Operations on single tokens: norms and rotation, one call each instead of torch's six to eight. */

#include "kernels.h"

/* y = gamma · (x - μ) / √(σ² + epsilon) + beta, or without beta gamma · x / √(mean(x²) + epsilon), for each row */
void norm(const Norm *norm, const float *x, int64_t rows, int64_t n, float *y) {
#pragma omp parallel for if (rows * n > MANY)
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * n;
        float *to = y + row * n, mean = 0.0f, square = 0.0f;
        if (norm->bias) {
            for (int64_t i = 0; i < n; i++) mean += from[i];
            mean /= (float)n;
        }
        for (int64_t i = 0; i < n; i++) square += (from[i] - mean) * (from[i] - mean);
        const float share = 1.0f / sqrtf(square / (float)n + (float)norm->epsilon);
        if (norm->bias)
            for (int64_t i = 0; i < n; i++) to[i] = norm->weight[i] * ((from[i] - mean) * share) + norm->bias[i];
        else
            for (int64_t i = 0; i < n; i++) to[i] = norm->weight[i] * (from[i] * share);
    }
}

/* y = x · cos + (-second half, first half) · sin, for `heads` heads of `queries` tokens of `rows` rows; x and y have no
 * gaps in a head. */
void rotate(const Rotation *rotation, const Axes *x, const Axes *y, const Sizes *sizes) {
    const int64_t H = sizes->heads, T = sizes->queries, K = sizes->width, half = K / 2;
#pragma omp parallel for collapse(2) if (sizes->rows * H * T * K > MANY)
    for (int64_t b = 0; b < sizes->rows; b++)
        for (int64_t t = 0; t < T; t++) {
            const int64_t place = b * rotation->row + t * K;
            const float *c = rotation->cosines + place, *s = rotation->sines + place;
            for (int64_t h = 0; h < H; h++) {
                const float *from = x->at + b * x->row + h * x->head + t * x->token;
                float *to = (float *)y->at + b * y->row + h * y->head + t * y->token;
                for (int64_t i = 0; i < half; i++) {
                    const float first = from[i], second = from[i + half]; /* x may be y */
                    to[i] = first * c[i] - second * s[i];
                    to[i + half] = second * c[i + half] + first * s[i + half];
                }
            }
        }
}
