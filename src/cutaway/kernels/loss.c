/* The loss over a vocabulary, in one go where torch takes five passes through the logits. */

#include "kernels.h"

/* Each row of logits x [rows, n] becomes its gradient, softmax(x) - ((1 - smoothing) · label's one + smoothing / n).
 * of_label [rows] = log Σ eˣ - x[label], what the right answer costs; of_all = log Σ eˣ - mean(x), the mean over all
 * answers, which is lost if a number is. */
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
