/* Linear layers where nothing multiplies pairs of bfloat16: outputs lie side by side in a vector, and a number of a row is
 * multiplied with all of them, as a float, or as a whole number of 8 bits among four.
 *
 * Of linear.h's records this is the order:
 *
 *     FLOATS    float [32 inputs][16 outputs]
 *     HALVES    bfloat16 [32][16]
 *     BYTES     [2][8 quads][8][4]: output 8 h + o and input 4 i + j
 *     NIBBLES   [2][4][8][4], the same of the quads 2 i in the lower and 2 i + 1 in the upper half of a byte; behind them
 *               16 scales and 16 offsets in float16
 *
 * A row's result never depends on what other rows there are: steps are added from first to last, products of whole numbers
 * are exact.
 */
#pragma once

#include "linear.h"
#include "products.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define HAS_QUADS 1 /* what multiplies whole numbers four by four */
#endif

/* whether rows in groups are multiplied faster than as floats */
int multiplies_groups(void) {
#if defined(HAS_QUADS)
    return 1;
#else
    return 0;
#endif
}

/* to [32 inputs][16 outputs] of a record; zero: of the 16 outputs, for BYTES */
static void spread(const matrix *w, const char *from, const float *zero, float *to) {
    if (w->format == HALVES) {
        widen_row(to, from, 512, BFLOAT16);
        return;
    }
    float scale[16], offset[16];
    int nibbles = w->format == NIBBLES;
    for (int n = 0; n < 16; n++) {
        scale[n] = nibbles ? from_half(from + 256 + 2 * n, FLOAT16) : 1;
        offset[n] = nibbles ? from_half(from + 288 + 2 * n, FLOAT16) : -zero[n];
    }
    for (int input = 0; input < 32; input++) {
        int quad = input / 4, shift = 8 * (input % 4) + (nibbles ? quad % 2 * 4 : 0);
        const uint32_t *words = (const uint32_t *)(from + 32 * (nibbles ? quad / 2 : quad));
        for (int n = 0; n < 16; n++) {
            uint32_t word = words[n % 8 + n / 8 * (nibbles ? 32 : 64)] >> shift;
            to[16 * input + n] = (float)(int32_t)(word & (nibbles ? 15 : 255)) * scale[n] + offset[n];
        }
    }
}

/* a record as floats, where it lies or spread into a panel of 512 */
static const float *floats_of(const matrix *w, int64_t strip, int64_t step, int half, float *panel) {
    const char *from = record_of(w, strip, step, half);
    if (w->format == FLOATS) return (const float *)from;
    spread(w, from, w->zero ? w->zero + STRIP * strip + 16 * half : NULL, panel);
    return panel;
}

/* all [rows][32] += a step of a strip times rows of floats [rows, 32 steps] */
static void add_floats(const matrix *w, int64_t strip, int64_t step, const float *x, int64_t rows, float *panel, float *all) {
    for (int half = 0; half < 2; half++) {
        product p = {.a = (const int32_t *)x + 32 * step, .b = floats_of(w, strip, step, half, panel), .c = all + 16 * half,
                     .a_row = 32 * w->steps, .a_step = 1, .b_step = 16, .c_row = STRIP, .steps = 32};
        multiply(p, rows, 16, 1, 0);
    }
}

#if defined(HAS_QUADS)
/* a record: quads of 8 outputs and of the next 8, and what each output is multiplied by, and added */
typedef struct {
    __m256i quads[8][2];
    __m256 scale[2], offset[2];
} block;

static inline void unpack_quads(const matrix *w, int64_t strip, int64_t step, int half, block *to) {
    const char *from = record_of(w, strip, step, half);
    const __m256i low = _mm256_set1_epi8(15), middle = _mm256_set1_epi8(-128);
    for (int h = 0; h < 2; h++) {
        if (w->format == NIBBLES) {
            for (int i = 0; i < 4; i++) {
                __m256i both = _mm256_loadu_si256((const __m256i *)(from + 128 * h) + i);
                to->quads[2 * i][h] = _mm256_and_si256(both, low);
                to->quads[2 * i + 1][h] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
            }
            to->scale[h] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + 256) + h));
            to->offset[h] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + 288) + h));
        } else { /* around zero: what is added up below is to stay small */
            for (int i = 0; i < 8; i++)
                to->quads[i][h] = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(from + 256 * h) + i), middle);
            to->offset[h] = _mm256_sub_ps(_mm256_set1_ps(128), _mm256_loadu_ps(w->zero + STRIP * strip + 16 * half + 8 * h));
        }
    }
}

/* four numbers for all outputs */
static inline __m256i quad_at(const group *x, int number) {
    int32_t four;
    memcpy(&four, x->numbers + 4 * number, 4);
    return _mm256_set1_epi32(four);
}

/* to [R][32] += 16 outputs times R rows */
static inline __attribute__((always_inline)) void add_block(const block *b, const group *x, const int R, float *to,
                                                            const int nibbles) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[4][2];
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            __m256i four = quad_at(x + r, i);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                __m256i quad = b->quads[i][h];
                /* 8 times 2 * 15 * 127, and 2 * 128 * 127, are less than 2^15 */
                if (nibbles) sum[r][h] = _mm256_add_epi16(sum[r][h], _mm256_maddubs_epi16(quad, four));
                else {
                    __m256i two = _mm256_maddubs_epi16(_mm256_abs_epi8(quad), _mm256_sign_epi8(four, quad));
                    sum[r][h] = _mm256_add_epi32(sum[r][h], _mm256_madd_epi16(two, ones));
                }
                /* or all products would come first, and then all sums: more than there are registers */
                __asm__("" : "+x"(sum[r][h]));
            }
        }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            float *at = to + STRIP * r + 8 * h;
            __m256 whole = _mm256_cvtepi32_ps(nibbles ? _mm256_madd_epi16(sum[r][h], ones) : sum[r][h]);
            if (nibbles) whole = _mm256_mul_ps(whole, b->scale[h]);
            __m256 before = _mm256_fmadd_ps(b->offset[h], _mm256_set1_ps(x[r].total), _mm256_loadu_ps(at));
            _mm256_storeu_ps(at, _mm256_fmadd_ps(whole, _mm256_set1_ps(x[r].scale), before));
        }
}

static inline __attribute__((always_inline)) void add_blocks(const block *b, const group *x, int64_t rows, float *to,
                                                             const int nibbles) {
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) add_block(b, x + row, 4, to + STRIP * row, nibbles);
    for (; row < rows; row++) add_block(b, x + row, 1, to + STRIP * row, nibbles);
}
#endif

/* all [rows][32] += a step of a strip times the groups of rows */
static void add_groups(const matrix *w, int64_t strip, int64_t step, const group *x, int64_t rows, float *panel, float *all) {
#if defined(HAS_QUADS)
    if (w->format == BYTES || w->format == NIBBLES) {
        for (int half = 0; half < 2; half++) {
            block b;
            unpack_quads(w, strip, step, half, &b);
            if (w->format == NIBBLES) add_blocks(&b, x, rows, all + 16 * half, 1);
            else add_blocks(&b, x, rows, all + 16 * half, 0);
        }
        return;
    }
#endif
    for (int half = 0; half < 2; half++) {
        const float *numbers = floats_of(w, strip, step, half, panel);
        for (int64_t row = 0; row < rows; row++) {
            const group *g = x + row;
            float sum[16] = {0};
            for (int input = 0; input < 32; input++)
                for (int n = 0; n < 16; n++) sum[n] += numbers[16 * input + n] * g->numbers[input];
            for (int n = 0; n < 16; n++) all[STRIP * row + 16 * half + n] += sum[n] * g->scale;
        }
    }
}

/* as multiply_strip, for IN_FLOATS and IN_GROUPS; panel: 512 floats */
static void multiply_broadcast(const matrix *w, int64_t strip, const char *x, int64_t rows, int way, float *panel, float *sums) {
    for (int64_t row = 0; row < rows; row += CHUNK, sums += STRIP * CHUNK) {
        int64_t some = rows - row < CHUNK ? rows - row : CHUNK;
        float all[CHUNK * STRIP] __attribute__((aligned(64)));
        memset(all, 0, 4 * STRIP * padded(some, 16));
        const char *from = x + numbers_bytes(way, row, 32 * w->steps);
        for (int64_t step = 0; step < w->steps; step++) {
            if (row == 0)
                for (int64_t at = 0; at < 2 * record_bytes(w->format); at += 64)
                    __builtin_prefetch(record_of(w, strip, step, 0) + AHEAD + at, 0, 3);
            if (way == IN_FLOATS) add_floats(w, strip, step, (const float *)from, some, panel, all);
            else add_groups(w, strip, step, group_at((char *)x, row, step, w->steps), some, panel, all);
        }
        /* [rows][32 outputs] turned */
        for (int64_t at = 0; at < some; at += 16)
            for (int64_t n = 0; n < STRIP; n += 16) turn_some(all + STRIP * at + n, STRIP, some - at, sums + CHUNK * n + at, CHUNK);
    }
}
