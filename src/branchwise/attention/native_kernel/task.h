/* What a call is, what a task of it is, and the memory that a task works in. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include "vectors.h"

#define BLOCK 128 /* keys per step, a multiple of 32 */

/* native.py's _Call, field by field */
typedef struct {
    const char *query, *key, *value;
    char *output;            /* [B, H, N, Dv] */
    float *mixed;            /* [tasks, M, Dv padded] */
    float *largest, *total;  /* [tasks, M], base 2 */
    const int64_t *words;    /* [B, N, W], NULL for chains */
    const int32_t *nodes, *depth, *column_depth, *committed; /* [B], [B, N], [B, T], [B] */
    const float *sinks;      /* [H] or NULL */
    int64_t query_strides[3], key_strides[3], value_strides[3]; /* batch, head, row; in elements */
    int64_t batch, kv_heads, group, width, columns, word_count, column_row, dim, value_dim, window, parts, dtype, threads;
    float factor, cap;       /* scores to base 2; cap 0 is none */
} call;

static int64_t padded(int64_t size, int64_t to) { return (size + to - 1) / to * to; }
static int64_t item_size(const call *c) { return c->dtype == FLOAT32 ? 4 : 2; }

/* A task's memory, kept per thread. */

typedef struct {
    float *queries; /* [D or D / 2 pairs, M] */
    float *scores;  /* [BLOCK, M]; weights as floats */
    float *weights; /* [BLOCK / 2, M] pairs */
    float *turned;  /* [M, BLOCK / 2] pairs, for the matrix unit */
    float *keys;    /* [BLOCK, D padded], when keys cannot be used as they lie */
    float *values;  /* [BLOCK, Dv padded], or pairs of rows */
} scratch;

static float *reserve(size_t floats) {
    static __thread float *memory;
    static __thread size_t size;
    if (floats > size) {
        free(memory);
        if (posix_memalign((void **)&memory, 64, 4 * floats)) memory = NULL;
        size = memory ? floats : 0;
    }
    return memory;
}

typedef struct {
    const call *c;
    int64_t b, kv_head, queries, value_width, depth_words; /* queries M padded; value_width Dv padded */
    int pairs, tiles;
    float hidden; /* a score that weighs nothing, before scaling */
    const char *key, *value;
    float *mixed, *largest, *total;
    scratch s;
} task;

static void pack_queries(task *t) {
    const call *c = t->c;
    int64_t item = item_size(c);
    memset(t->s.queries, 0, 4 * t->depth_words * t->queries);
    for (int64_t m = 0; m < c->group * c->width; m++) {
        const char *row = c->query + item * (t->b * c->query_strides[0] +
                                             (t->kv_head * c->group + m / c->width) * c->query_strides[1] +
                                             (m % c->width) * c->query_strides[2]);
        if (t->pairs) {
            for (int64_t d = 0; d < c->dim; d++)
                memcpy((char *)(t->s.queries + d / 2 * t->queries + m) + 2 * (d % 2), row + 2 * d, 2);
        } else {
            for (int64_t d = 0; d < c->dim; d++) {
                if (c->dtype == FLOAT32) memcpy(t->s.queries + d * t->queries + m, row + 4 * d, 4);
                else t->s.queries[d * t->queries + m] = from_half(row + 2 * d, c->dtype);
            }
        }
    }
}
