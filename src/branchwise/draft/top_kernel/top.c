/* The k largest logits of rows of logits, as logits or as log-probabilities.
 *
 * Knows addresses and formats; shapes and errors are top_native.py's. A task is one part of one row, and a thread takes
 * the same parts of all rows, which are those it has in its cache when it computed them.
 */
#include <stdlib.h>

#include "top.h"

/* logits [rows, width], rows stride bytes apart; sums: whether values shall be log-probabilities */
int top_tokens(const char *logits, int64_t rows, int64_t width, int64_t stride, int64_t k, int64_t dtype,
               int64_t threads, int64_t sums, float *values, int64_t *tokens) {
    int64_t count = (width + PART - 1) / PART;
    top_part *parts = malloc(rows * count * sizeof(top_part));
    if (!parts) return 1;
    int failed = 0;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * count > 1)
    for (int64_t n = 0; n < rows * count; n++) {
        const char *row = logits + n % rows * stride;
        int64_t first = n / rows * PART, last = first + PART < width ? first + PART : width;
        if (dtype == FLOAT32) do_part(parts + n, row, first, last, width, k, sums, FLOAT32);
        else if (dtype == BFLOAT16) do_part(parts + n, row, first, last, width, k, sums, BFLOAT16);
        else do_part(parts + n, row, first, last, width, k, sums, FLOAT16);
    }
    for (int64_t n = 0; n < rows; n++)
        failed |= merge_parts(parts + n, count, rows, k, sums, values + n * k, tokens + n * k);
    free(parts);
    return failed;
}
