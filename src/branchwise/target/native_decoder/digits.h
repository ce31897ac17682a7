/* Linear layers whose weights are read as the bytes they are: rows of numbers are rounded to 8 bits too, each with a scale
 * of its own, and the matrix unit adds up their products as whole numbers.
 *
 *     values  [strips, steps of 64 inputs, 2 blocks, 16 outputs, 64 inputs], q of (q - zero) * scale: zero a whole number,
 *             one zero and one scale per output, beside the values
 *     rows    [T / 16]: 16 scales (float), 16 sums (int32), and [steps, 16 quads, 16 rows, 4 inputs] (int8)
 *
 * For inputs that were normalised: one scale per row is little where a few numbers are far larger than the others. A row's
 * result never depends on what other rows there are.
 */
#pragma once

#include <math.h>

#include "broadcast.h"

enum { DIGITS = NIBBLES + 1 }; /* a format of `matrix`, beside linear.h's */

#if defined(HAS_AMX) && defined(__AMX_INT8__)
#define HAS_DIGITS 1
#endif

#define DIGIT_STEP 64
#define DIGITS_AHEAD 2048 /* bytes of weights that are asked for before they are needed */

/* of a tile of 16 rows */
static int64_t digits_bytes(int64_t numbers) { return 128 + 1024 * (padded(numbers, DIGIT_STEP) / DIGIT_STEP); }

#if defined(HAS_DIGITS)
/* a row of floats as int8, zeros behind its end */
static void round_row(const float *from, int64_t count, int8_t *to, float *scale, int32_t *total) {
    float largest = 0;
    vec most = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        vec x = *(const vec *)(from + i);
        most = max_vec(max_vec(x, -x), most);
    }
    for (int j = 0; j < LANES; j++) largest = most[j] > largest ? most[j] : largest;
    for (; i < count; i++) largest = fabsf(from[i]) > largest ? fabsf(from[i]) : largest;
    float by = largest > 0 ? 127 / largest : 0;
    *scale = largest / 127;
    __m512i sum = _mm512_setzero_si512();
    for (i = 0; i < padded(count, DIGIT_STEP); i += LANES) {
        __mmask16 there = i + LANES <= count ? 0xffff : i < count ? (1 << (count - i)) - 1 : 0;
        __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(there, from + i), _mm512_set1_ps(by)));
        sum = _mm512_add_epi32(sum, whole);
        _mm_storeu_si128((__m128i *)(to + i), _mm512_cvtsepi32_epi8(whole));
    }
    *total = _mm512_reduce_add_epi32(sum);
}

/* Puts rows of a tile in their places: count <= 16, the first a multiple of 16. some: 16 padded rows of int8. */
static void put_digits(char *numbers, int64_t first, int64_t rows, const float *from, int64_t count, int8_t *some) {
    int64_t width = padded(count, DIGIT_STEP);
    char *tile = numbers + first / 16 * digits_bytes(count);
    for (int64_t r = 0; r < rows; r++)
        round_row(from + r * count, count, some + r * width, (float *)tile + r, (int32_t *)tile + 16 + r);
    for (int64_t step = 0; step < width; step += DIGIT_STEP) {
        const float *each[16];
        for (int64_t r = 0; r < 16; r++) each[r] = (const float *)(some + (r < rows ? r : 0) * width + step);
        turn(each, (float *)(tile + 128 + 16 * step), 16);
    }
}

/* as multiply_strip, but for the scales of outputs */
static void multiply_digits(const matrix *w, int64_t strip, const char *x, int64_t rows, float *sums) {
    int64_t tile = digits_bytes(DIGIT_STEP * w->steps);
    for (int64_t row = 0; row < rows; row += CHUNK, x += 2 * tile, sums += STRIP * CHUNK) {
        int two = rows - row > 16;
        const char *weights = w->values + strip * w->steps * 2048, *numbers = x + 128;
        open_sums();
        for (int64_t step = 0; step < w->steps; step++, weights += 2048, numbers += 1024) {
            for (int at = 0; at < 2048; at += 64) __builtin_prefetch(weights + DIGITS_AHEAD + at, 0, 3);
            _tile_loadd(4, weights, 64);
            _tile_loadd(5, weights + 1024, 64);
            _tile_loadd(6, numbers, 64);
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 5, 6);
            if (!two) continue;
            _tile_loadd(7, numbers + tile, 64);
            _tile_dpbusd(2, 4, 7);
            _tile_dpbusd(3, 5, 7);
        }
        store_sums(sums, two); /* whole numbers so far */
        for (int half = 0; half <= two; half++) {
            vec scale = *(const vec *)(x + half * tile);
            __m512i total = _mm512_loadu_si512(x + half * tile + 64);
            for (int n = 0; n < STRIP; n++) {
                float *at = sums + CHUNK * n + 16 * half;
                __m512i zeros = _mm512_mullo_epi32(total, _mm512_set1_epi32((int)w->zero[STRIP * strip + n]));
                _mm512_storeu_ps(at, _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(at), zeros)) * (__m512)scale);
            }
        }
    }
}
#endif

/* whether weights may be DIGITS here */
int multiplies_digits(void) {
#if defined(HAS_DIGITS)
    return may_use_tiles();
#else
    return 0;
#endif
}

/* rows of a tile as what a matrix multiplies: count <= 16, the first a multiple of 16. mine: 16 rows' room behind them */
static void put_inputs(const matrix *m, char *numbers, int64_t first, int64_t rows, const float *from, int64_t count, int way,
                       float *mine) {
#if defined(HAS_DIGITS)
    if (m->format == DIGITS) {
        put_digits(numbers, first, rows, from, count, (int8_t *)mine);
        return;
    }
#endif
    put_rows(numbers, first, rows, padded(count, 32) / 32, from, count, way);
}

static void multiply_inputs(const matrix *m, int64_t strip, const char *x, int64_t rows, int way, float *panel, float *sums) {
#if defined(HAS_DIGITS)
    if (m->format == DIGITS) {
        multiply_digits(m, strip, x, rows, sums);
        return;
    }
#endif
    if (way == IN_FLOATS || way == IN_GROUPS) multiply_broadcast(m, strip, x, rows, way, panel, sums);
    else multiply_strip(m, strip, x, rows, way, panel, sums);
}
