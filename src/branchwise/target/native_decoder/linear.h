/* Linear layers of few rows: every weight is read once, unpacked next to the arithmetic, and multiplied with all rows.
 *
 * A matrix [O, I] comes in strips of 32 outputs, which are two blocks of 16; a strip is a run of steps of 32 inputs:
 *
 *     values  [strips, steps, 2 blocks, record]    read from front to end, once
 *     record  16 outputs x 32 inputs; for pairs of bfloat16 (broadcast.h has another order, for the other ways)
 *         HALVES    bfloat16 [16][32]
 *         BYTES     q of (q - zero) * scale, one zero and one scale per output, beside the values;
 *                   [8][16][2][2]: outputs 2 g and 2 g + 1, inputs 2 i and 2 i + 1
 *         NIBBLES   q * scale + offset; words [4][32], of which nibble j is output 4 g + j; behind them
 *                   16 scales and 16 offsets in float16
 *
 * Where rows are bfloat16, so are unpacked weights; q - zero is exact in it. Sums are float32. A row's result never
 * depends on what other rows there are.
 *
 * Rows of numbers, to be multiplied, lie one after another. For the matrix unit they lie in tiles of 16 rows, a pair of
 * inputs after another, so that a tile of weights times a tile of numbers is 16 outputs of 16 rows; rounded to 8 bits, with a
 * scale for 32 of them, they lie step by step:
 *
 *     tiles   [T / 16, steps, 16 pairs, 16 rows, 2]
 *     groups  [T / 32, steps, 32 rows]
 *
 * Knows matrices; knows no decoder.
 */
#pragma once

#include "matrix_unit.h"
#include "memory.h"

enum { FLOATS, HALVES, BYTES, NIBBLES };

/* native_engine.py's _Matrix, field by field */
typedef struct {
    const char *values;
    const float *scale, *zero, *bias; /* [32 strips]; NULL where there is none */
    int64_t format, strips, steps, outputs;
} matrix;

/* how numbers are multiplied: as floats, as pairs of bfloat16, as pairs by the matrix unit, or in groups of whole numbers */
enum { IN_FLOATS, IN_PAIRS, IN_TILES, IN_GROUPS };

/* what a decoder or a head says that numbers are multiplied in; native_parts.py's PRODUCTS, in that order */
enum { FLOAT_PRODUCTS, HALF_PRODUCTS, GROUP_PRODUCTS };

static int way_of(int64_t products) {
    if (products != HALF_PRODUCTS) return products == GROUP_PRODUCTS ? IN_GROUPS : IN_FLOATS;
#if defined(HAS_AMX)
    if (may_use_tiles()) return IN_TILES;
#endif
    return IN_PAIRS;
}

/* numbers of a row and a step, each of which stands for itself times the scale */
typedef struct {
    float scale, total; /* total: of what they stand for */
    int8_t numbers[32];
} group;

#define STRIP 32
#define CHUNK 32 /* rows that are multiplied at once */
#ifndef AHEAD
#define AHEAD 4096 /* bytes of weights that are asked for before they are needed */
#endif

/* bytes of rows of so many numbers */
static int64_t numbers_bytes(int way, int64_t rows, int64_t count) {
    int64_t steps = padded(count, 32) / 32;
    return rows * steps * (way == IN_FLOATS ? 128 : way == IN_GROUPS ? (int64_t)sizeof(group) : 64);
}

static int64_t record_bytes(int64_t format) {
    return format == FLOATS ? 2048 : format == HALVES ? 1024 : format == BYTES ? 512 : 320;
}

static const char *record_of(const matrix *w, int64_t strip, int64_t step, int64_t half) {
    return w->values + ((strip * w->steps + step) * 2 + half) * record_bytes(w->format);
}

typedef int8_t bytes_vec __attribute__((vector_size(LANES)));

static float sum_of(vec x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

/* rows of numbers */

static inline group *group_at(char *numbers, int64_t row, int64_t step, int64_t steps) {
    return (group *)numbers + (row / CHUNK * steps + step) * CHUNK + row % CHUNK;
}

/* 32 floats as whole numbers: the largest becomes 127; NaN if one is */
static inline void round_group(group *to, const float *from) {
    const vec magic = splat(12582912.f); /* 1.5 * 2^23: adding it rounds to an integer */
    vec most = {0};
    ivec strange = {0};
    for (int i = 0; i < 32; i += LANES) {
        vec x = *(const vec *)(from + i);
        most = max_vec(max_vec(x, -x), most);
        strange |= (ivec)(x != x);
    }
    float largest = 0;
    for (int i = 0; i < LANES; i++) largest = strange[i] ? __builtin_nanf("") : most[i] > largest ? most[i] : largest;
    float by = largest > 0 ? 127 / largest : 0;
    ivec sum = {0};
    for (int i = 0; i < 32; i += LANES) {
        ivec whole = (ivec)(*(const vec *)(from + i) * by + magic) - (ivec)magic;
        bytes_vec few = __builtin_convertvector(whole, bytes_vec);
        memcpy(to->numbers + i, &few, LANES);
        sum += whole;
    }
    int32_t total = 0;
    for (int i = 0; i < LANES; i++) total += sum[i];
    to->scale = largest / 127;
    to->total = to->scale * total;
}

/* Puts a row of floats in its place; what lies between its end and that of its last step becomes zeros. */
static void put_row(char *numbers, int64_t row, int64_t steps, const float *from, int64_t count, int way) {
    if (way == IN_FLOATS) {
        float *to = (float *)numbers + row * 32 * steps;
        memcpy(to, from, 4 * count);
        memset(to + count, 0, 4 * (32 * steps - count));
        return;
    }
    if (way == IN_GROUPS) {
        for (int64_t i = 0; i + 32 <= count; i += 32) round_group(group_at(numbers, row, i / 32, steps), from + i);
        if (count % 32) {
            float some[32] = {0};
            memcpy(some, from + count / 32 * 32, 4 * (count % 32));
            round_group(group_at(numbers, row, count / 32, steps), some);
        }
        return;
    }
    uint16_t *halves = (uint16_t *)numbers + row * 32 * steps;
    uint32_t *pairs = (uint32_t *)numbers + row / 16 * 256 * steps + row % 16;
    for (int64_t i = 0; i < 32 * steps; i += 32) {
        uint16_t some[32];
        int64_t j = 0, have = count - i < 32 ? count - i : 32;
#if defined(__AVX512BF16__)
        if (have == 32) {
            __m512 low = _mm512_loadu_ps(from + i), high = _mm512_loadu_ps(from + i + 16);
            _mm512_storeu_si512(some, (__m512i)_mm512_cvtne2ps_pbh(high, low));
            j = 32;
        }
#endif
        for (; j < 32; j++) some[j] = j < have ? (uint16_t)to_bfloat16(from[i + j]) : 0;
        if (way == IN_PAIRS) memcpy(halves + i, some, sizeof some);
        else
            for (int64_t pair = 0; pair < 16; pair++) memcpy(pairs + (i / 2 + pair) * 16, some + 2 * pair, 4);
    }
}

/* rows that one thread makes numbers of: a tile should be one's */
static int64_t rows_at_once(int way) { return way == IN_TILES ? 16 : 4; }

static int64_t rows_from(int64_t first, int64_t rows, int way) {
    int64_t most = rows_at_once(way);
    return rows - first < most ? rows - first : most;
}

/* Puts rows of a tile in their places: count <= 16, the first a multiple of 16. */
static void put_rows(char *numbers, int64_t first, int64_t rows, int64_t steps, const float *from, int64_t count, int way) {
#if defined(HAS_AMX)
    if (way == IN_TILES && rows > 2 && count == 32 * steps) {
        for (int64_t step = 0; step < steps; step++) {
            float halves[16][16] __attribute__((aligned(64)));
            const float *each[16];
            for (int64_t r = 0; r < 16; r++) {
                each[r] = halves[r < rows ? r : 0];
                if (r >= rows) continue;
                const float *at = from + r * count + 32 * step;
                _mm512_store_si512(halves[r], (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(at + 16), _mm512_loadu_ps(at)));
            }
            turn(each, (float *)numbers + (first / 16 * steps + step) * 256, 16);
        }
        return;
    }
#endif
    for (int64_t r = 0; r < rows; r++) put_row(numbers, first + r, steps, from + r * count, count, way);
}

/* unpacked records */

#if defined(__AVX512BF16__)
static inline void unpack_bytes(const char *from, const float *zero, uint16_t *to) {
    const __m512i low = _mm512_set1_epi32(255), magic = _mm512_set1_epi32(0x4b000000); /* 2^23 */
    for (int g = 0; g < 8; g++) {
        __m512i bytes = _mm512_loadu_si512(from + 64 * g);
        for (int j = 0; j < 2; j++) {
            __m512 shift = _mm512_set1_ps(8388608.f + zero[2 * g + j]);
            /* (byte | magic) as a float is 2^23 + byte; what is left is exact, and its lower half is zero */
            __m512i even = j ? _mm512_srli_epi32(bytes, 16) : bytes, odd = _mm512_srli_epi32(bytes, j ? 24 : 8);
            even = (__m512i)_mm512_sub_ps((__m512)_mm512_ternarylogic_epi32(even, low, magic, 0xea), shift);
            odd = (__m512i)_mm512_sub_ps((__m512)_mm512_ternarylogic_epi32(odd, low, magic, 0xea), shift);
            _mm512_storeu_si512(to + 32 * (2 * g + j), _mm512_or_si512(_mm512_srli_epi32(even, 16), odd));
        }
    }
}

static inline void unpack_nibbles(const char *from, uint16_t *to) {
    const __m512 steps = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i half = _mm512_set1_epi32(0x8000), one = _mm512_set1_epi16(1);
    float scale[16], offset[16];
    _mm512_storeu_ps(scale, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + 256))));
    _mm512_storeu_ps(offset, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + 288))));
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        __m512i words = _mm512_loadu_si512(from + 64 * g);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            /* all sixteen numbers that a nibble may stand for; the upper half of each is it in bfloat16 */
            __m512 all = _mm512_fmadd_ps(steps, _mm512_set1_ps(scale[4 * g + j]), _mm512_set1_ps(offset[4 * g + j]));
            __m512i table = _mm512_add_epi32((__m512i)all, half);
            __m512i at = _mm512_or_si512(j ? _mm512_srli_epi16(words, 4 * j - 1) : _mm512_slli_epi16(words, 1), one);
            _mm512_storeu_si512(to + 32 * (4 * g + j), _mm512_permutexvar_epi16(at, table)); /* looks at 5 bits */
        }
    }
}

/* both blocks of a step as bfloat16 [32][32], unpacked into `to` if they have to be */
static inline const uint16_t *halves_of(const matrix *w, int64_t strip, int64_t step, uint16_t *to) {
    /* strips, and matrices, lie one after another: what is asked for early is what comes next */
    for (int64_t at = 0; at < 2 * record_bytes(w->format); at += 64)
        __builtin_prefetch(record_of(w, strip, step, 0) + AHEAD + at, 0, 3);
    if (w->format == HALVES) return (const uint16_t *)record_of(w, strip, step, 0);
    for (int half = 0; half < 2; half++) {
        const char *from = record_of(w, strip, step, half);
        if (w->format == BYTES) unpack_bytes(from, w->zero + 32 * strip + 16 * half, to + 512 * half);
        else unpack_nibbles(from, to + 512 * half);
    }
    return to;
}

/* sums [4, 32] of 4 outputs with R rows; a step of an output is 1024 numbers from its last one */
static inline __attribute__((always_inline)) void dots(const uint16_t *weights, const uint16_t *x, int64_t steps, const int R,
                                                       float *sums) {
    __m512 sum[4][4];
    for (int n = 0; n < 4; n++)
        for (int r = 0; r < R; r++) sum[n][r] = _mm512_setzero_ps();
    for (int64_t step = 0; step < steps; step++)
        for (int n = 0; n < 4; n++) {
            __m512bh left = (__m512bh)_mm512_loadu_si512(weights + 1024 * step + 32 * n);
            for (int r = 0; r < R; r++)
                sum[n][r] = _mm512_dpbf16_ps(sum[n][r], left, (__m512bh)_mm512_loadu_si512(x + (r * steps + step) * 32));
        }
    for (int n = 0; n < 4; n++)
        for (int r = 0; r < R; r++) sums[CHUNK * n + r] = _mm512_reduce_add_ps(sum[n][r]);
}
#endif

#if defined(HAS_AMX)
/* weights: both blocks of a step; x: the same step of one or two tiles of rows */
static inline void tile_step(const uint16_t *weights, const uint16_t *x, int64_t next_tile, int two) {
    _tile_loadd(4, weights, 64);
    _tile_loadd(5, weights + 512, 64);
    _tile_loadd(6, x, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    if (!two) return;
    _tile_loadd(7, x + next_tile, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
}

static inline void open_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static inline void store_sums(float *sums, int two) {
    _tile_stored(0, sums, 4 * CHUNK);
    _tile_stored(1, sums + 16 * CHUNK, 4 * CHUNK);
    if (!two) return;
    _tile_stored(2, sums + 16, 4 * CHUNK);
    _tile_stored(3, sums + 16 * CHUNK + 16, 4 * CHUNK);
}
#endif

/* Sums of all rows with one strip, of pairs: [chunks, 32 outputs, 32 rows]. panel: 1024 numbers per step. */
static void multiply_strip(const matrix *w, int64_t strip, const char *x, int64_t rows, int way, float *panel, float *sums) {
#if defined(__AVX512BF16__)
    const uint16_t *numbers = (const uint16_t *)x;
    uint16_t *unpacked = (uint16_t *)panel;
#if defined(HAS_AMX)
    if (way == IN_TILES) {
        int64_t next_tile = 512 * w->steps, ring = rows > CHUNK ? w->steps : 2; /* a panel is kept only if used again */
        for (int64_t row = 0; row < rows; row += CHUNK, numbers += 2 * next_tile, sums += STRIP * CHUNK) {
            int two = rows - row > 16, packed = w->format != HALVES && row == 0;
            open_sums();
            const uint16_t *now = halves_of(w, strip, 0, unpacked), *next = now;
            for (int64_t step = 0; step < w->steps; step++, now = next) {
                /* the next step is unpacked while the matrix unit works */
                if (step + 1 < w->steps) {
                    next = unpacked + (step + 1) % ring * 1024;
                    if (packed || w->format == HALVES) next = halves_of(w, strip, step + 1, (uint16_t *)next);
                }
                tile_step(now, numbers + 512 * step, next_tile, two);
            }
            store_sums(sums, two);
        }
        return;
    }
#endif
    const uint16_t *weights = w->format == HALVES ? (const uint16_t *)record_of(w, strip, 0, 0) : unpacked;
    if (w->format != HALVES)
        for (int64_t step = 0; step < w->steps; step++) halves_of(w, strip, step, unpacked + 1024 * step);
    for (int64_t row = 0; row < rows;) {
        int64_t left = rows - row;
        for (int64_t n = 0; n < STRIP; n += 4) {
            float *to = sums + row / CHUNK * STRIP * CHUNK + n * CHUNK + row % CHUNK;
            const uint16_t *from = numbers + row * 32 * w->steps;
            if (left >= 4) dots(weights + 32 * n, from, w->steps, 4, to);
            else if (left >= 2) dots(weights + 32 * n, from, w->steps, 2, to);
            else dots(weights + 32 * n, from, w->steps, 1, to);
        }
        row += left >= 4 ? 4 : left >= 2 ? 2 : 1;
    }
#endif
}

/* scales and biases of a strip's sums */
static void finish_strip(const matrix *w, int64_t strip, int64_t rows, float *sums) {
    if (!w->scale && !w->bias) return;
    for (int64_t row = 0; row < rows; row += CHUNK, sums += STRIP * CHUNK)
        for (int64_t n = 0; n < STRIP; n++) {
            float scale = w->scale ? w->scale[STRIP * strip + n] : 1, bias = w->bias ? w->bias[STRIP * strip + n] : 0;
            for (int64_t i = 0; i < CHUNK && row + i < rows; i += LANES) {
                vec *at = (vec *)(sums + CHUNK * n + i);
                *at = *at * scale + bias;
            }
        }
}

/* a row's sums of 16 outputs, from [outputs, 32 rows] */
static inline void column(const float *sums, float *to) {
    for (int n = 0; n < 16; n++) to[n] = sums[CHUNK * n];
}

/* of 16 rows: to [16 rows, 16 outputs] */
static inline void columns(const float *sums, int64_t rows, float *to) {
#if defined(HAS_TURN)
    if (rows > 4) {
        const float *from[16];
        for (int n = 0; n < 16; n++) from[n] = sums + CHUNK * n;
        turn(from, to, 16);
        return;
    }
#endif
    for (int64_t row = 0; row < rows; row++) column(sums + row, to + 16 * row);
}

/* Sums [16 outputs, 32 rows] as numbers: half `half` of their steps. The rows are those of one tile. */
static void put_block(char *numbers, int64_t row, int64_t steps, int64_t half, const float *sums, int64_t rows, int way) {
#if defined(HAS_AMX)
    if (way == IN_TILES) {
        uint32_t *to = (uint32_t *)numbers + row / 16 * 256 * steps + 128 * half;
        for (int pair = 0; pair < 8; pair++) {
            __m512 even = _mm512_loadu_ps(sums + CHUNK * 2 * pair), odd = _mm512_loadu_ps(sums + CHUNK * (2 * pair + 1));
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even); /* rows of one, then rows of the other */
            const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                                   21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
            _mm512_storeu_si512(to + 16 * pair, _mm512_permutexvar_epi16(order, both));
        }
        return;
    }
#endif
    for (int64_t r = 0; r < rows; r++) {
        float some[16];
        column(sums + r, some);
        int64_t at = (row + r) * 32 * steps + 16 * half;
        if (way == IN_FLOATS) memcpy((float *)numbers + at, some, sizeof some);
        else
            for (int n = 0; n < 16; n++) ((uint16_t *)numbers)[at + n] = (uint16_t)to_bfloat16(some[n]);
    }
}

/* The same of a whole step; the halves are twice [16 outputs, 32 rows]. */
static void put_step(char *numbers, int64_t row, int64_t steps, int64_t step, const float *const *halves, int64_t rows, int way) {
    if (way != IN_GROUPS) {
        for (int half = 0; half < 2; half++) put_block(numbers, row, steps, 2 * step + half, halves[half], rows, way);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        float some[32];
        for (int half = 0; half < 2; half++) column(halves[half] + r, some + 16 * half);
        round_group(group_at(numbers, row + r, step, steps), some);
    }
}
