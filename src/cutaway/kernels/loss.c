/* The loss over a vocabulary, in one pass where torch takes five passes through the logits. */

#include "kernels.h"

/* Each row of logits x [rows, n] becomes its gradient, softmax(x) - ((1 - smoothing) · label's one + smoothing / n).
 * of_label [rows] = log Σ eˣ - x[label], the cost of the label; of_all = log Σ eˣ - mean(x), the mean cost of all words,
 * not finite if a logit is not. */
void vocabulary_loss(float *x, const int64_t *labels, int64_t rows, int64_t n, float smoothing, float *of_label,
                     float *of_all) {
    const float even = smoothing / (float)n;
    for (int64_t row = 0; row < rows; row++, x += n) {
        float most = x[0], total = 0.0f, sum = 0.0f;
        for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
        const float right = x[labels[row]];
        for (int64_t i = 0; i < n; i++) {
            total += x[i];
            x[i] = exponential(x[i] - most);
            sum += x[i];
        }
        const float share = 1.0f / sum, log_sum = logf(sum) + most;
        for (int64_t i = 0; i < n; i++) x[i] = x[i] * share - even;
        x[labels[row]] -= 1.0f - smoothing;
        of_label[row] = log_sum - right;
        of_all[row] = log_sum - total / (float)n;
    }
}

/* The same of rows and their partners, row i and row i + rows / 2, plus `agreement` times what R-Drop adds: apart [rows / 2]
 * = ½ (KL(p‖q) + KL(q‖p)), of a row's probabilities p and its partner's q. By a row's logits, KL(p‖q) changes by
 * p (log p - log q - KL(p‖q)), and KL(q‖p) by p - q. */
void agreeing_loss(float *x, const int64_t *labels, int64_t rows, int64_t n, float smoothing, float agreement,
                   float *of_label, float *of_all, float *apart) {
    const float even = smoothing / (float)n, pull = 0.5f * agreement;
    const int64_t half = rows / 2;
    for (int64_t row = 0; row < half; row++) {
        float log_sum[2];
        for (int side = 0; side < 2; side++) {
            const int64_t at = row + side * half;
            const float *y = x + at * n;
            float most = y[0], total = 0.0f, sum = 0.0f;
            for (int64_t i = 0; i < n; i++) most = y[i] > most ? y[i] : most;
            for (int64_t i = 0; i < n; i++) total += y[i], sum += exponential(y[i] - most);
            log_sum[side] = logf(sum) + most;
            of_label[at] = log_sum[side] - y[labels[at]];
            of_all[at] = log_sum[side] - total / (float)n;
        }
        float *restrict a = x + row * n, *restrict b = x + (row + half) * n;
        float to_b = 0.0f, to_a = 0.0f;
        for (int64_t i = 0; i < n; i++) {
            const float log_p = a[i] - log_sum[0], log_q = b[i] - log_sum[1], further = log_p - log_q;
            to_b += exponential(log_p) * further;
            to_a -= exponential(log_q) * further;
        }
        for (int64_t i = 0; i < n; i++) {
            const float log_p = a[i] - log_sum[0], log_q = b[i] - log_sum[1], further = log_p - log_q;
            const float p = exponential(log_p), q = exponential(log_q);
            a[i] = p - even + pull * (p * (further - to_b) + p - q);
            b[i] = q - even + pull * (q * (-further - to_a) + q - p);
        }
        a[labels[row]] -= 1.0f - smoothing;
        b[labels[row + half]] -= 1.0f - smoothing;
        apart[row] = 0.5f * (to_b + to_a);
    }
}
