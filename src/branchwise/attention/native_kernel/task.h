/* What a call is, what a task of it is, and the memory that a task works in. */
#pragma once

#include <stdint.h>

#include "memory.h"
#include "vectors.h"

#define BLOCK 256 /* most keys per step: scores should stay in the first-level cache, with the values if they are floats */

/* native.py's _Call, field by field */
typedef struct {
    const char *query, *key, *value;
    char *output;            /* [rows, H, Dv]: B x N rows, or those of the real nodes alone */
    float *mixed;            /* [tasks, M, Dv padded] */
    float *largest, *total;  /* [tasks, M], base 2 */
    const float *bias;       /* [B, T, N]: 0 for a column that a node sees, else -inf; NULL for chains */
    const int32_t *nodes, *depth, *committed; /* [B], [B, N], [B] */
    const int32_t *starts;   /* [B]: row of each sequence's root in queries and output that hold real nodes alone, or NULL */
    const float *sinks;      /* [H] or NULL */
    int64_t query_strides[3], key_strides[3], value_strides[3]; /* batch, head, row; in elements */
    int64_t batch, kv_heads, group, width, columns, column_row, dim, value_dim, window, parts, dtype, threads;
    float factor, cap;       /* scores to base 2; cap 0 is none */
} call;

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

typedef struct {
    const call *c;
    int64_t b, kv_head, nodes, queries, value_width, depth_words; /* queries: M = group x nodes, padded; value_width Dv padded */
    int pairs, tiles;
    const char *key, *value;
    const char *coming; /* keys of the next block, where they do not lie behind those of this one */
    float *mixed, *largest, *total;
    scratch s;
} task;

static const char *query_row(const task *t, int64_t m) {
    const call *c = t->c;
    int64_t head = t->kv_head * c->group + m / t->nodes, node = m % t->nodes;
    int64_t first = c->starts ? c->starts[t->b] * c->query_strides[2] : t->b * c->query_strides[0];
    return c->query + item_size(c) * (first + head * c->query_strides[1] + node * c->query_strides[2]);
}

static void pack_queries(task *t) {
    const call *c = t->c;
    int64_t rows = c->group * t->nodes, words = t->depth_words;
#if defined(__AVX512F__)
    if (words % 16 == 0 && c->dim * item_size(c) == 4 * words && (t->pairs || c->dtype == FLOAT32)) {
        static const float zeros[16];
        for (int64_t m = 0; m < t->queries; m += 16)
            for (int64_t word = 0; word < words; word += 16) {
                const float *from[16];
                for (int64_t i = 0; i < 16; i++)
                    from[i] = m + i < rows ? (const float *)query_row(t, m + i) + word : zeros;
                turn(from, t->s.queries + word * t->queries + m, t->queries);
            }
        return;
    }
#endif
    memset(t->s.queries, 0, 4 * words * t->queries);
    for (int64_t m = 0; m < rows; m++) {
        const char *row = query_row(t, m);
        for (int64_t d = 0; d < c->dim; d++) {
            float *at = t->s.queries + (t->pairs ? d / 2 : d) * t->queries + m;
            if (t->pairs) memcpy((char *)at + 2 * (d % 2), row + 2 * d, 2);
            else if (c->dtype == FLOAT32) memcpy(at, row + 4 * d, 4);
            else *at = from_half(row + 2 * d, c->dtype);
        }
    }
}
