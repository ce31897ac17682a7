/* The k largest of rows of numbers, as they are or as log-probabilities: what is done with one part of one row, and how
 * the parts of a row become one.
 *
 * Within a part:
 *
 *     piece        | vector 0 | vector 1 | ... | vector 31 |
 *     column       lane j of all 32 vectors; most[j] is its largest entry
 *     floor        the k-th largest of all columns: at least k entries are as large, so no column below it holds any of
 *                  the k, and no more than k columns are read again (unless there are ties)
 *     sum          of exp(entry - largest of the part), float32 within a piece, double across
 */
#pragma once

#include <math.h>

#include "largest.h"
#include "vectors.h"

#define VECTORS 32
#define PIECE (VECTORS * LANES)
#define PIECES 16 /* of a part */
#define PART (PIECES * PIECE)
#define LOG2_E 1.44269504f
#define INFINITE __builtin_inff()

typedef double dvec __attribute__((vector_size(8 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

typedef struct {
    largest top;
    double sum;
    int strange; /* holds a NaN */
} top_part;

static inline __attribute__((always_inline)) float entry(const char *row, int64_t at, const int64_t dtype) {
    return dtype == FLOAT32 ? ((const float *)row)[at] : from_half(row + 2 * at, dtype);
}

/* entries [at, at + LANES) of a row of width entries, those beyond it as -inf */
static inline __attribute__((always_inline)) vec load(const char *row, int64_t at, int64_t width, const int64_t dtype) {
    vec out = splat(-INFINITE);
    if (at + LANES > width) {
        for (int64_t i = 0; at + i < width; i++) out[i] = entry(row, at + i, dtype);
        return out;
    }
    if (dtype == FLOAT32) return *(const vec *)(row + 4 * at);
    const halves *from = (const halves *)(row + 2 * at);
    if (dtype == BFLOAT16) return (vec)(__builtin_convertvector(*from, uvec) << 16);
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps((__m256i)*from);
#else
    for (int64_t i = 0; i < LANES; i++) out[i] = entry(row, at + i, dtype);
    return out;
#endif
}

/* entries [first, last) of a row of width entries */
static inline __attribute__((always_inline)) void do_part(top_part *p, const char *row, int64_t first, int64_t last,
                                                          int64_t width, int64_t k, int sums, const int64_t dtype) {
    float columns[PIECES * LANES];
    int64_t pieces = (last - first + PIECE - 1) / PIECE;
    ivec strange = {0};
    for (int64_t c = 0; c < pieces; c++) {
        vec most = splat(-INFINITE);
        for (int64_t i = 0; i < VECTORS; i++) {
            vec x = load(row, first + c * PIECE + i * LANES, width, dtype);
            strange |= (ivec)(x != x);
            most = max_vec(x, most);
        }
        *(vec *)(columns + c * LANES) = most;
    }
    p->strange = 0;
    for (int i = 0; i < LANES; i++) p->strange |= strange[i];
    p->top.count = 0;
    float floor = -INFINITE;
    for (int64_t j = 0; j < pieces * LANES; j++) {
        if (p->top.count == k && !(columns[j] > floor)) continue;
        insert(&p->top, k, columns[j], j);
        if (p->top.count == k) floor = p->top.values[k - 1];
    }
    float largest = p->top.values[0];
    p->top.count = 0;
    for (int64_t j = 0; j < pieces * LANES; j++) {
        if (!(columns[j] >= floor)) continue;
        for (int64_t at = first + j / LANES * PIECE + j % LANES, i = 0; i < VECTORS && at < last; i++, at += LANES) {
            float value = entry(row, at, dtype);
            if (!(value >= floor)) continue;
            insert(&p->top, k, value, at);
            if (p->top.count == k) floor = p->top.values[k - 1];
        }
    }
    p->sum = 0;
    if (!sums || largest == -INFINITE) return;
    dvec total = {0};
    for (int64_t c = 0; c < pieces; c++) {
        vec sum = {0};
        for (int64_t i = 0; i < VECTORS; i++)
            sum += exp2_vec((load(row, first + c * PIECE + i * LANES, width, dtype) - largest) * LOG2_E, 0);
        total += __builtin_convertvector(sum, dvec);
    }
    for (int i = 0; i < LANES; i++) p->sum += total[i];
}

/* the parts of a row into one; 0 if all went well, 1 if there is a NaN or log-probabilities are asked of infinity */
static int merge_parts(const top_part *parts, int64_t count, int64_t step, int64_t k, int sums, float *values, int64_t *tokens) {
    top_part all = {0};
    for (int64_t n = 0; n < count; n++) {
        const top_part *p = parts + n * step;
        all.strange |= p->strange;
        for (int64_t i = 0; i < p->top.count; i++) insert(&all.top, k, p->top.values[i], p->top.tokens[i]);
    }
    float largest = all.top.values[0];
    if (all.strange || (sums && (largest == INFINITE || largest == -INFINITE))) return 1;
    for (int64_t n = 0; n < count && sums; n++) {
        const top_part *p = parts + n * step;
        if (p->sum > 0) all.sum += p->sum * exp((double)p->top.values[0] - largest);
    }
    double log_sum = sums ? log(all.sum) : 0;
    for (int64_t i = 0; i < k; i++) {
        tokens[i] = all.top.tokens[i];
        values[i] = sums ? (float)((double)all.top.values[i] - largest - log_sum) : all.top.values[i];
        if (sums && values[i] > 0) values[i] = 0; /* rounding must not make a child likelier than its parent */
    }
    return 0;
}
