/* Linear layers of few rows: every weight is read once, unpacked next to the arithmetic, and multiplied with all rows.
 *
 * A matrix [O, I] comes in strips of 32 outputs, which are two blocks of 16; a strip is a run of steps of 32 inputs:
 *
 *     values  [strips, steps, 2 blocks, record]    read from front to end, once
 *     record  32 inputs x 16 outputs in the order of a tile: pairs of inputs slow, outputs, the input of a pair fast
 *         FLOATS    float
 *         HALVES    bfloat16
 *         BYTES     q of (q - zero) * scale, one zero and one scale per output, beside the values
 *         NIBBLES   element i of a row of 32 in the low half of byte i, element 16 + i in its high half; behind them
 *                   16 scales and 16 offsets in float16: q * scale + offset
 *
 * Where rows are bfloat16, so are unpacked weights; q - zero is exact in it. Sums are float32. A row's result never
 * depends on what other rows there are. Knows matrices; knows no decoder.
 */
#pragma once

#include "tiles.h"

enum { FLOATS, HALVES, BYTES, NIBBLES };

/* native_engine.py's _Matrix, field by field */
typedef struct {
    const char *values;
    const float *scale, *zero, *bias; /* [32 strips]; NULL where there is none */
    int64_t format, strips, steps, outputs;
} matrix;

/* what is unpacked: 32 inputs x 16 outputs; floats [32][16], or pairs [16][16] in tile order */
typedef struct {
    float words[512] __attribute__((aligned(64)));
} block;

#define STRIP 32
#define ROW_CHUNK 32 /* rows that go through the arithmetic while a strip is unpacked only once */

static int64_t record_bytes(int64_t format) {
    return format == FLOATS ? 2048 : format == HALVES ? 1024 : format == BYTES ? 512 : 320;
}

/* zero: of the block's 16 outputs, for BYTES */
static void unpack_floats(const matrix *w, const char *from, const float *zero, block *to) {
    const uint8_t *bytes = (const uint8_t *)from;
    for (int pair = 0; pair < 16; pair++)
        for (int i = 0; i < 32; i++) {
            int output = i / 2, at = 32 * pair + i;
            float x;
            if (w->format == FLOATS) memcpy(&x, from + 4 * at, 4);
            else if (w->format == HALVES) x = from_half(from + 2 * at, BFLOAT16);
            else if (w->format == BYTES) x = bytes[at] - zero[output];
            else {
                int q = i < 16 ? bytes[16 * pair + i] & 15 : bytes[16 * pair + i - 16] >> 4;
                x = q * from_half(from + 256 + 2 * output, FLOAT16) + from_half(from + 288 + 2 * output, FLOAT16);
            }
            to->words[(2 * pair + i % 2) * 16 + output] = x;
        }
}

/* sums [rows, 2, 16] += rows [rows, 32] x two blocks */
static void add_floats(const float *x, int64_t x_row, int64_t rows, const block *blocks, float *sums) {
    for (int64_t row = 0; row < rows; row++) {
        vec *left = (vec *)(sums + 32 * row), *right = left + 1, one = *left, other = *right;
        for (int64_t k = 0; k < 32; k++) {
            one += x[row * x_row + k] * *(const vec *)(blocks[0].words + 16 * k);
            other += x[row * x_row + k] * *(const vec *)(blocks[1].words + 16 * k);
        }
        *left = one;
        *right = other;
    }
}

#if defined(__AVX512BF16__)
static inline __m512 twice(__m512 each, int upper) {
    const __m512i low = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return _mm512_permutexvar_ps(upper ? _mm512_add_epi32(low, _mm512_set1_epi32(8)) : low, each);
}

static inline void unpack_bytes(const char *from, const float *zero, block *to) {
    __m512i low = _mm512_cvtps_epi32(twice(_mm512_loadu_ps(zero), 0));
    __m512i high = _mm512_cvtps_epi32(twice(_mm512_loadu_ps(zero), 1));
    for (int pair = 0; pair < 16; pair++) {
        __m512i one = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(from + 32 * pair)));
        __m512i other = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(from + 32 * pair + 16)));
        __m512 a = _mm512_cvtepi32_ps(_mm512_sub_epi32(one, low)), b = _mm512_cvtepi32_ps(_mm512_sub_epi32(other, high));
        _mm512_store_si512(to->words + 16 * pair, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
}

static inline void unpack_nibbles(const char *from, block *to) {
    __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + 256)));
    __m512 offset = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + 288)));
    __m512 scale_low = twice(scale, 0), scale_high = twice(scale, 1);
    __m512 offset_low = twice(offset, 0), offset_high = twice(offset, 1);
    for (int pair = 0; pair < 16; pair++) {
        __m512i q = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(from + 16 * pair)));
        __m512 a = _mm512_cvtepi32_ps(_mm512_and_si512(q, _mm512_set1_epi32(15)));
        __m512 b = _mm512_cvtepi32_ps(_mm512_srli_epi32(q, 4));
        a = _mm512_fmadd_ps(a, scale_low, offset_low);
        b = _mm512_fmadd_ps(b, scale_high, offset_high);
        _mm512_store_si512(to->words + 16 * pair, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
}

/* where the pairs of a step are, unpacked into `to` if they have to be */
static inline const block *pairs_of(const matrix *w, int64_t strip, int64_t step, block *to) {
    const char *from = w->values + (strip * w->steps + step) * 2 * record_bytes(w->format);
    if (w->format == HALVES) return (const block *)from; /* 256 words each, see step_words */
    if (w->format == BYTES) {
        unpack_bytes(from, w->zero + 32 * strip, to);
        unpack_bytes(from + 512, w->zero + 32 * strip + 16, (block *)(to->words + 256));
    } else {
        unpack_nibbles(from, to);
        unpack_nibbles(from + 320, (block *)(to->words + 256));
    }
    return to;
}

/* sums [rows, 2, 16] += rows [rows, 32] x two blocks of pairs, without a matrix unit */
static inline __attribute__((always_inline)) void add_pairs_of(const uint16_t *x, int64_t x_row, const int rows,
                                                               const float *pairs, float *sums) {
    __m512 one[8], other[8];
    for (int r = 0; r < rows; r++) {
        one[r] = _mm512_loadu_ps(sums + 32 * r);
        other[r] = _mm512_loadu_ps(sums + 32 * r + 16);
    }
    for (int pair = 0; pair < 16; pair++) {
        __m512bh left = (__m512bh)_mm512_loadu_si512(pairs + 16 * pair);
        __m512bh right = (__m512bh)_mm512_loadu_si512(pairs + 256 + 16 * pair);
        for (int r = 0; r < rows; r++) {
            int32_t two;
            memcpy(&two, x + r * x_row + 2 * pair, 4);
            __m512bh both = (__m512bh)_mm512_set1_epi32(two);
            one[r] = _mm512_dpbf16_ps(one[r], both, left);
            other[r] = _mm512_dpbf16_ps(other[r], both, right);
        }
    }
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(sums + 32 * r, one[r]);
        _mm512_storeu_ps(sums + 32 * r + 16, other[r]);
    }
}

static void add_pairs(const uint16_t *x, int64_t x_row, int64_t rows, const float *pairs, float *sums) {
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8) add_pairs_of(x + r * x_row, x_row, 8, pairs, sums + 32 * r);
    for (; r + 2 <= rows; r += 2) add_pairs_of(x + r * x_row, x_row, 2, pairs, sums + 32 * r);
    for (; r < rows; r++) add_pairs_of(x + r * x_row, x_row, 1, pairs, sums + 32 * r);
}
#endif

#if defined(HAS_AMX)
static inline void tile_step(const uint16_t *x, int64_t x_row, int two, const float *pairs) {
    _tile_loadd(4, x, 2 * x_row);
    _tile_loadd(6, pairs, 64);
    _tile_loadd(7, pairs + 256, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!two) return;
    _tile_loadd(5, x + 16 * x_row, 2 * x_row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

static inline void open_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static inline void store_sums(int two, float *sums) {
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    if (!two) return;
    _tile_stored(2, sums + 16 * 32, 128);
    _tile_stored(3, sums + 16 * 32 + 16, 128);
}
#endif

/* Sums of all rows with one strip. sums [rows padded to 32, 32]; x has rows padded to 16 behind it. */
static void multiply_strip(const matrix *w, int64_t strip, const char *x, int64_t x_row, int64_t rows, int pairs, int tiles,
                           float *panel, float *sums) {
    if (!pairs) {
        block blocks[2];
        memset(sums, 0, 4 * 32 * rows);
        for (int64_t step = 0; step < w->steps; step++) {
            const char *from = w->values + (strip * w->steps + step) * 2 * record_bytes(w->format);
            for (int i = 0; i < 2; i++)
                unpack_floats(w, from + i * record_bytes(w->format), w->zero ? w->zero + 32 * strip + 16 * i : NULL, blocks + i);
            add_floats((const float *)x + 32 * step, x_row, rows, blocks, sums);
        }
        return;
    }
#if defined(__AVX512BF16__)
    const uint16_t *halves = (const uint16_t *)x;
    block buffer[2];
#if defined(HAS_AMX)
    if (tiles && rows <= ROW_CHUNK) {
        int two = rows > 16;
        open_sums();
        const float *now = pairs_of(w, strip, 0, buffer)->words, *next = now;
        for (int64_t step = 0; step < w->steps; step++, now = next) {
            /* the next step is unpacked while the matrix unit works */
            if (step + 1 < w->steps) next = pairs_of(w, strip, step + 1, buffer + (step + 1) % 2)->words;
            tile_step(halves + 32 * step, x_row, two, now);
        }
        store_sums(two, sums);
        return;
    }
#endif
    const float *strips = w->format == HALVES ? (const float *)(w->values + strip * w->steps * 2048) : panel;
    if (w->format != HALVES && rows > ROW_CHUNK)
        for (int64_t step = 0; step < w->steps; step++) pairs_of(w, strip, step, (block *)(panel + 512 * step));
#if defined(HAS_AMX)
    if (tiles) {
        for (int64_t row = 0; row < rows; row += ROW_CHUNK) {
            int two = rows - row > 16;
            open_sums();
            for (int64_t step = 0; step < w->steps; step++)
                tile_step(halves + row * x_row + 32 * step, x_row, two, strips + 512 * step);
            store_sums(two, sums + 32 * row);
        }
        return;
    }
#endif
    memset(sums, 0, 4 * 32 * rows);
    for (int64_t step = 0; step < w->steps; step++) {
        const float *at = rows > ROW_CHUNK || w->format == HALVES ? strips + 512 * step : pairs_of(w, strip, step, buffer)->words;
        add_pairs(halves + 32 * step, x_row, rows, at, sums);
    }
#endif
}

/* scales and biases of a strip's sums */
static void finish_strip(const matrix *w, int64_t strip, int64_t rows, float *sums) {
    for (int half = 0; half < 2; half++) {
        vec scale = w->scale ? *(const vec *)(w->scale + 32 * strip + 16 * half) : splat(1);
        vec bias = w->bias ? *(const vec *)(w->bias + 32 * strip + 16 * half) : splat(0);
        if (!w->scale && !w->bias) continue;
        for (int64_t row = 0; row < rows; row++) {
            vec *at = (vec *)(sums + 32 * row + 16 * half);
            *at = *at * scale + bias;
        }
    }
}
