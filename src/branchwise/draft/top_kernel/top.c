/* The k largest entries of rows of logits, and the logarithm of the sum of each row's exponentials.
 *
 * Knows addresses and formats; shapes and errors are top_native.py's. A row is cut into blocks of neighbours:
 *
 *     largest[b]   the largest entry of block b, one pass over the row
 *     floor        the k-th largest of these: at least k entries are as large, so no block below it holds any of the k
 *     values       the k largest entries of the other blocks (k of them, unless there are ties), kept in order
 *     total        largest + log(sum exp(entry - largest)), a second pass: float32 within a block, double across
 *
 * Of entries that tie, those with smaller numbers are larger.
 */
#include <math.h>

#include "vectors.h"

#define BLOCK 256
#define VECTORS (BLOCK / LANES)
#define LOG2_E 1.44269504f
#define INFINITE __builtin_inff()

typedef double dvec __attribute__((vector_size(8 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

static inline __attribute__((always_inline)) vec load(const char *row, int64_t at, const int64_t dtype) {
    if (dtype == FLOAT32) return *(const vec *)(row + 4 * at);
    const halves *from = (const halves *)(row + 2 * at);
    if (dtype == BFLOAT16) return (vec)(__builtin_convertvector(*from, uvec) << 16);
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps((__m256i)*from);
#else
    vec out;
    for (int i = 0; i < LANES; i++) out[i] = from_half((const char *)from + 2 * i, FLOAT16);
    return out;
#endif
}

/* entries [first, first + BLOCK) of a row of width entries, those beyond it as -inf */
static inline __attribute__((always_inline)) void load_block(vec *to, const char *row, int64_t first, int64_t width,
                                                             const int64_t dtype) {
    if (first + BLOCK <= width) {
        for (int64_t i = 0; i < VECTORS; i++) to[i] = load(row, first + i * LANES, dtype);
        return;
    }
    float *entry = (float *)to;
    for (int64_t i = 0; i < BLOCK; i++)
        if (first + i >= width) entry[i] = -INFINITE;
        else if (dtype == FLOAT32) memcpy(entry + i, row + 4 * (first + i), 4);
        else entry[i] = from_half(row + 2 * (first + i), dtype);
}

/* puts an entry among the count <= k largest so far, which fall; returns how many there are now */
static int64_t insert(float *values, int64_t *tokens, int64_t count, int64_t k, float value, int64_t token) {
    if (count == k && !(value > values[k - 1])) return count;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && value > values[at - 1]; at--) values[at] = values[at - 1], tokens[at] = tokens[at - 1];
    values[at] = value, tokens[at] = token;
    return count;
}

/* the largest entry of every block; whether there is a NaN */
static inline __attribute__((always_inline)) int find_largest(const char *row, int64_t width, float *largest,
                                                              const int64_t dtype) {
    ivec strange = {0};
    for (int64_t first = 0; first < width; first += BLOCK) {
        vec block[VECTORS], most = splat(-INFINITE);
        load_block(block, row, first, width, dtype);
        for (int64_t i = 0; i < VECTORS; i++) {
            strange |= (ivec)(block[i] != block[i]);
            most = max_vec(block[i], most);
        }
        float best = most[0];
        for (int i = 1; i < LANES; i++) best = most[i] > best ? most[i] : best;
        largest[first / BLOCK] = best;
    }
    int any = 0;
    for (int i = 0; i < LANES; i++) any |= strange[i];
    return any != 0;
}

static inline __attribute__((always_inline)) float log_total(const char *row, int64_t width, float largest,
                                                             const int64_t dtype) {
    dvec total = {0};
    for (int64_t first = 0; first < width; first += BLOCK) {
        vec block[VECTORS], sum = {0};
        load_block(block, row, first, width, dtype);
        for (int64_t i = 0; i < VECTORS; i++) sum += exp2_vec((block[i] - largest) * LOG2_E, 0);
        total += __builtin_convertvector(sum, dvec);
    }
    double all = 0;
    for (int i = 0; i < LANES; i++) all += total[i];
    return (float)(largest + log(all));
}

/* one row; 0 if all went well, 1 if it holds a NaN, or a total is wanted and is infinite */
static inline __attribute__((always_inline)) int do_row(const char *row, int64_t width, int64_t k, float *values,
                                                        int64_t *tokens, float *total, float *largest,
                                                        const int64_t dtype) {
    int64_t blocks = (width + BLOCK - 1) / BLOCK, count = 0;
    if (find_largest(row, width, largest, dtype)) return 1;
    for (int64_t b = 0; b < blocks; b++) count = insert(values, tokens, count, k, largest[b], b);
    float floor = count == k ? values[k - 1] : -INFINITE;
    float most = values[0];
    count = 0;
    for (int64_t b = 0; b < blocks; b++) {
        if (!(largest[b] >= floor)) continue;
        vec block[VECTORS];
        const float *entry = (const float *)block;
        load_block(block, row, b * BLOCK, width, dtype);
        int64_t end = width - b * BLOCK < BLOCK ? width - b * BLOCK : BLOCK;
        for (int64_t i = 0; i < end; i++)
            if (entry[i] >= floor) count = insert(values, tokens, count, k, entry[i], b * BLOCK + i);
    }
    if (!total) return 0;
    if (most == INFINITE || most == -INFINITE) return 1;
    *total = log_total(row, width, most, dtype);
    return 0;
}

/* logits [rows, width], rows stride bytes apart; largest [rows, blocks] to work in; totals [rows] or NULL */
int top_tokens(const char *logits, int64_t rows, int64_t width, int64_t stride, int64_t k, int64_t dtype,
               int64_t threads, float *values, int64_t *tokens, float *totals, float *largest) {
    int64_t blocks = (width + BLOCK - 1) / BLOCK;
    int failed = 0;
#pragma omp parallel for num_threads(threads) if (rows > 1) reduction(| : failed)
    for (int64_t n = 0; n < rows; n++) {
        const char *row = logits + n * stride;
        float *total = totals ? totals + n : 0;
        if (dtype == FLOAT32)
            failed |= do_row(row, width, k, values + n * k, tokens + n * k, total, largest + n * blocks, FLOAT32);
        else if (dtype == BFLOAT16)
            failed |= do_row(row, width, k, values + n * k, tokens + n * k, total, largest + n * blocks, BFLOAT16);
        else failed |= do_row(row, width, k, values + n * k, tokens + n * k, total, largest + n * blocks, FLOAT16);
    }
    return failed;
}
