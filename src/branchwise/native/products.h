/* Small matrix products out of registers. Operands are 32-bit words: floats, or pairs of bfloat16 that are multiplied
 * and added as pairs. Knows no attention. */
#pragma once

#include "vectors.h"

static inline __attribute__((always_inline)) vec multiply_add(vec sum, int32_t left, vec right, const int pairs) {
    ivec lefts = (ivec){0} + left;
#if defined(__AVX512BF16__)
    if (pairs) return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)lefts, (__m512bh)right);
#endif
    return sum + (vec)lefts * right;
}

/* rows that will be read soon, to be asked for from memory in time */
typedef struct {
    const char *at;
    int64_t row_bytes, bytes; /* from row to row, and wanted of each */
} ahead;

/* past the end of a buffer this does nothing */
static inline void fetch(const ahead *rows, int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; r++)
        for (int64_t i = 0; i < rows->bytes; i += 64) __builtin_prefetch(rows->at + r * rows->row_bytes + i, 0, 2);
}

typedef struct {
    const int32_t *a;           /* a word of row r at step s: a[r * a_row + s * a_step] */
    const float *b;             /* the columns at step s: b[s * b_step ...] */
    float *c;                   /* row r: c[r * c_row ...] */
    int64_t a_row, a_step, b_step, c_row, steps;
    const ahead *ahead;         /* fetched row by row along with those of a; NULL for none */
} product;

#if LANES == 16
#define MOST_VECTORS 4 /* columns of a tile; its sums are to fit into the registers */
#else
#define MOST_VECTORS 2
#endif
#define MOST_ROWS 8

/* c[R rows][V vectors] = (add ? c : 0) + a b, sums in registers */
static inline __attribute__((always_inline)) void tile(const product *p, const int R, const int V, const int add,
                                                       const int pairs) {
    const int32_t *a = p->a;
    const float *b = p->b;
    vec sum[MOST_ROWS][MOST_VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sum[r][v] = add ? *(const vec *)(p->c + r * p->c_row + v * LANES) : (vec){0};
    for (int64_t s = 0; s < p->steps; s++, a += p->a_step, b += p->b_step)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
                sum[r][v] = multiply_add(sum[r][v], a[r * p->a_row], *(const vec *)(b + v * LANES), pairs);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) *(vec *)(p->c + r * p->c_row + v * LANES) = sum[r][v];
}

/* R rows and up to MOST_VECTORS columns of vectors */
static inline __attribute__((always_inline)) void tile_of(const product *p, const int R, int64_t vectors, const int add,
                                                          const int pairs) {
    if (vectors == 1) tile(p, R, 1, add, pairs);
    else if (vectors == 2) tile(p, R, 2, add, pairs);
#if MOST_VECTORS == 4
    else if (vectors == 3) tile(p, R, 3, add, pairs);
    else tile(p, R, 4, add, pairs);
#endif
}

/* rows x columns, whole vectors */
static inline __attribute__((always_inline)) void multiply(product p, int64_t rows, int64_t columns, const int add,
                                                           const int pairs) {
    const product all = p;
    for (int64_t column = 0; column < columns; column += MOST_VECTORS * LANES) {
        int64_t vectors = (columns - column) / LANES, row = 0;
        if (vectors > MOST_VECTORS) vectors = MOST_VECTORS;
        while (row < rows) {
            int64_t left = rows - row;
            p.a = all.a + row * all.a_row;
            p.b = all.b + column;
            p.c = all.c + row * all.c_row + column;
            int64_t some = vectors == 1 && left >= 8 ? 8 : MOST_VECTORS == 2 && left >= 6 ? 6 : left >= 4 ? 4 : 1;
            if (p.ahead && column == 0) fetch(p.ahead, row, some);
            if (some == 8) tile(&p, 8, 1, add, pairs);
            else if (some == 6) tile_of(&p, 6, vectors, add, pairs);
            else if (some == 4) tile_of(&p, 4, vectors, add, pairs);
            else tile_of(&p, 1, vectors, add, pairs);
            row += some;
        }
    }
}
