/* Phases over the strips of a matrix: each is entered by all threads of a parallel region, and left together.
 *
 * A strip is one thread's, with all rows; `mine` is the thread's own memory: a panel of 512 floats per step, and behind it
 * the sums of all rows with one strip. Knows matrices and gates; knows no decoder.
 */
#pragma once

#include "digits.h"
#include "rows.h"

enum { STORE, ADD };

/* The largest of a strip's sums, [outputs, 32 rows], of every row; NaN where one is: to[row * stride]. */
static inline void strip_maxima(const float *sums, int64_t outputs, int64_t rows, float *to, int64_t stride) {
    for (int64_t row = 0; row < rows; row += LANES) {
        const float *at = sums + row / CHUNK * STRIP * CHUNK + row % CHUNK;
        vec most = *(const vec *)at, first = most;
        ivec strange = (ivec)(first != first);
        for (int64_t n = 1; n < outputs; n++) {
            vec x = *(const vec *)(at + CHUNK * n);
            strange |= (ivec)(x != x);
            most = max_vec(x, most);
        }
        for (int64_t r = 0; r < LANES && row + r < rows; r++) to[(row + r) * stride] = strange[r] ? __builtin_nanf("") : most[r];
    }
}

/* to [rows, outputs] = or += x W; maxima [rows, strips], if it is wanted: the largest output of every strip */
static void strip_phase_and_maxima(int way, const matrix *m, const char *x, int64_t rows, int then, float *to, float *maxima,
                                   float *mine) {
    float *sums = mine + 512 * m->steps;
#pragma omp for schedule(static) /* what a thread reads should lie in one piece */
    for (int64_t strip = 0; strip < m->strips; strip++) {
        multiply_inputs(m, strip, x, rows, way, mine, sums);
        finish_strip(m, strip, rows, sums);
        int64_t left = m->outputs - STRIP * strip;
        if (maxima) strip_maxima(sums, left < STRIP ? left : STRIP, rows, maxima + strip, m->strips);
        for (int64_t first = STRIP * strip; first < STRIP * (strip + 1) && first < m->outputs; first += 16)
            for (int64_t row = 0; row < rows; row += 16) {
                float turned[256];
                int64_t some = rows - row < 16 ? rows - row : 16, count = m->outputs - first < 16 ? m->outputs - first : 16;
                columns(sums + row / CHUNK * STRIP * CHUNK + first % STRIP * CHUNK + row % CHUNK, some, turned);
                for (int64_t r = 0; r < some; r++) {
                    float *out = to + (row + r) * m->outputs + first;
                    if (then == STORE) memcpy(out, turned + 16 * r, 4 * count);
                    else
                        for (int64_t i = 0; i < count; i++) out[i] += turned[16 * r + i];
                }
            }
    }
}

static void strip_phase(int way, const matrix *m, const char *x, int64_t rows, int then, float *to, float *mine) {
    strip_phase_and_maxima(way, m, x, rows, then, to, NULL, mine);
}

/* gated [rows, inner], as numbers, from a matrix in whose strips 16 gates come before the 16 numbers that they let
   through: half of a step of what is read next. Both halves of a step are one thread's; `mine` has room for two strips. */
static void gate_phase(int way, const matrix *m, const char *x, int64_t rows, int64_t inner, int64_t activation, char *gated,
                       float *mine) {
    static const float nothing[16 * CHUNK];
    int64_t steps = padded(inner, 32) / 32, strip_floats = STRIP * padded(rows, CHUNK);
    float *all = mine + 512 * m->steps;
#pragma omp for schedule(static)
    for (int64_t step = 0; step < steps; step++) {
        int64_t strips = m->strips - 2 * step < 2 ? 1 : 2;
        for (int64_t half = 0; half < strips; half++) {
            float *sums = all + half * strip_floats;
            multiply_inputs(m, 2 * step + half, x, rows, way, mine, sums);
            finish_strip(m, 2 * step + half, rows, sums);
            for (int64_t row = 0; row < rows; row += LANES)
                for (int64_t n = 0; n < 16; n++) {
                    vec *at = (vec *)(sums + row / CHUNK * STRIP * CHUNK + row % CHUNK + CHUNK * n);
                    *at = gate(*at, activation) * *(const vec *)((float *)at + 16 * CHUNK);
                }
        }
        for (int64_t row = 0; row < rows; row += 16) {
            const float *first = all + row / CHUNK * STRIP * CHUNK + row % CHUNK;
            const float *halves[2] = {first, strips == 2 ? first + strip_floats : nothing};
            put_step(gated, row, steps, step, halves, rows - row < 16 ? rows - row : 16, way);
        }
    }
}
