/* The few largest logits of a search step, and the log-sum-exp of all. */

#include "kernels.h"

#define BLOCK 64

static inline float largest(const float *x) {
    float most = x[0];
    for (int i = 1; i < BLOCK; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* Inserts a number among the k largest so far, after equal ones. */
static void insert(float value, int64_t id, int64_t k, float *values, int64_t *ids) {
    int64_t place = k - 1;
    for (; place > 0 && values[place - 1] < value; place--) {
        values[place] = values[place - 1];
        ids[place] = ids[place - 1];
    }
    values[place] = value;
    ids[place] = id;
}

/* The k largest of n numbers, largest first, and their indices. Few numbers are among the largest so far, so most blocks
 * are skipped by a comparison of their largest. */
static void top_row(const float *x, int64_t n, int64_t k, float *values, int64_t *ids) {
    for (int64_t i = 0; i < k; i++) {
        insert(x[i], i, i + 1, values, ids);
    }
    for (int64_t begin = k; begin < n; begin += BLOCK) {
        const int64_t end = begin + BLOCK < n ? begin + BLOCK : n;
        if (end - begin == BLOCK && !(largest(x + begin) > values[k - 1])) continue;
        for (int64_t i = begin; i < end; i++)
            if (x[i] > values[k - 1]) insert(x[i], i, k, values, ids);
    }
}

static float log_total(const float *x, int64_t n, float most) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum += exponential(x[i] - most);
    return logf(sum) + most;
}

/* x [rows, n]; values and ids [rows, k]; totals [rows], or NULL if not needed */
void top(const float *x, int64_t rows, int64_t n, int64_t k, float *values, int64_t *ids, float *totals) {
#pragma omp parallel for if (rows * n > MANY && rows > 1)
    for (int64_t row = 0; row < rows; row++) {
        top_row(x + row * n, n, k, values + row * k, ids + row * k);
        if (totals) totals[row] = log_total(x + row * n, n, values[row * k]);
    }
}
