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

/* c[R rows][V vectors] = (add ? c : 0) + a b, sums in registers */
static inline __attribute__((always_inline)) void tile(const product *p, const int R, const int V, const int add,
                                                       const int pairs) {
    const int32_t *a = p->a;
    const float *b = p->b;
    vec sum[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sum[r][v] = add ? *(const vec *)(p->c + r * p->c_row + v * LANES) : (vec){0};
    for (int64_t s = 0; s < p->steps; s++, a += p->a_step, b += p->b_step)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
                sum[r][v] = multiply_add(sum[r][v], a[r * p->a_row], *(const vec *)(b + v * LANES), pairs);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) *(vec *)(p->c + r * p->c_row + v * LANES) = sum[r][v];
}

static inline __attribute__((always_inline)) void multiply(product p, int64_t rows, int64_t columns, const int add,
                                                           const int pairs) {
    const product all = p;
    for (int64_t column = 0; column < columns; column += 4 * LANES)
        for (int64_t row = 0; row < rows; row += 4) {
            p.a = all.a + row * all.a_row;
            p.b = all.b + column;
            p.c = all.c + row * all.c_row + column;
            int64_t vectors = (columns - column) / LANES;
            if (p.ahead && column == 0) fetch(p.ahead, row, 4);
            if (rows - row >= 4) {
                if (vectors >= 4) tile(&p, 4, 4, add, pairs);
                else if (vectors == 3) tile(&p, 4, 3, add, pairs);
                else if (vectors == 2) tile(&p, 4, 2, add, pairs);
                else tile(&p, 4, 1, add, pairs);
            } else {
                for (int64_t left = rows - row; left > 0; left--, p.a += all.a_row, p.c += all.c_row)
                    for (int64_t v = 0; v < (vectors < 4 ? vectors : 4); v++) {
                        product one = p;
                        one.b += v * LANES;
                        one.c += v * LANES;
                        tile(&one, 1, 1, add, pairs);
                    }
            }
        }
}
