/* Vectors of floats, the exponential, and the two half-precision formats. Knows no attention. */
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

/* floats in a vector */
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

enum { FLOAT32, BFLOAT16, FLOAT16 };

static vec splat(float x) { return (vec){0} + x; }

static inline vec max_vec(vec a, vec b) {
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
    ivec greater = (ivec)(a > b);
    return (vec)(((ivec)a & greater) | ((ivec)b & ~greater));
#endif
}

/* 2^x for x <= 0 (or within +-126); 0 below 2^-126, or 2^-149 roughly. Relative error 1e-7, or 8e-5 if that is enough. */
static inline __attribute__((always_inline)) vec exp2_vec(vec x, const int roughly) {
#if defined(__AVX512DQ__)
    if (roughly) {
        vec f = (vec)_mm512_reduce_ps((__m512)x, 1 /* x - floor(x) */);
        vec p = 7.80242756e-2f * f + 2.26067275e-1f;
        p = p * f + 6.95833623e-1f;
        p = p * f + 9.99925196e-1f;
        return (vec)_mm512_scalef_ps((__m512)p, (__m512)x); /* p * 2^floor(x) */
    }
#endif
    const float magic = 12582912.f; /* 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold */
    vec shifted = x + magic;
    vec f = x - (shifted - magic);
    vec p = splat(roughly ? 9.61812911e-3f : 1.54035304e-4f);
    if (!roughly) {
        p = p * f + 1.33335581e-3f;
        p = p * f + 9.61812911e-3f;
    }
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    p = p * f + 1.f;
    ivec raised = (ivec)shifted << 23;
#if defined(__AVX512F__)
    __mmask16 counts = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.f), _CMP_GE_OQ);
    return (vec)_mm512_maskz_add_epi32(counts, (__m512i)p, (__m512i)raised);
#else
    return (vec)(((ivec)p + raised) & (ivec)(x >= -126.f));
#endif
}

static inline float from_half(const char *at, int64_t dtype) {
    uint16_t bits;
    memcpy(&bits, at, 2);
    if (dtype == BFLOAT16) {
        uint32_t wide = (uint32_t)bits << 16;
        float out;
        memcpy(&out, &wide, 4);
        return out;
    }
    _Float16 half;
    memcpy(&half, &bits, 2);
    return (float)half;
}

static inline uint32_t to_bfloat16(float x) { /* round to nearest even, in the low 16 bits */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (bits >> 16) | 0x40; /* NaN stays one */
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

/* count floats, divided, as numbers of a format */
static void store_row(char *to, const float *from, float by, int64_t count, int64_t dtype) {
    if (dtype == FLOAT32) {
        for (int64_t i = 0; i < count; i++) ((float *)to)[i] = from[i] / by;
    } else if (dtype == BFLOAT16) {
        for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[i] = (uint16_t)to_bfloat16(from[i] / by);
    } else {
        for (int64_t i = 0; i < count; i++) ((_Float16 *)to)[i] = (_Float16)(from[i] / by);
    }
}

/* weights of two keys, rounded to bfloat16, in one word: the first in the low half. Both are >= 0 */
static inline ivec pair_up(vec first, vec second) {
    uvec low = (uvec)first + 0x8000u, high = (uvec)second + 0x8000u;
    return (ivec)(low >> 16 | (high & 0xffff0000u));
}

static void widen_row(float *to, const char *from, int64_t count, int64_t dtype) {
    if (dtype == FLOAT32) {
        memcpy(to, from, 4 * count);
    } else if (dtype == BFLOAT16) {
        for (int64_t i = 0; i < count; i++) to[i] = from_half(from + 2 * i, BFLOAT16);
    } else {
        for (int64_t i = 0; i < count; i++) to[i] = from_half(from + 2 * i, FLOAT16);
    }
}

#if defined(__AVX512F__)
#define HAS_TURN 1
/* 16 x 16 words: to[i][j] = from[j][i] */
static inline void turn(const float *const *from, float *to, int64_t to_row) {
    __m512i r[16], s[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(from[i]);
    for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        s[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        s[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        s[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        s[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(to + i * to_row, _mm512_shuffle_i32x4(s[i], s[i + 8], 0x88));
        _mm512_storeu_si512(to + (i + 8) * to_row, _mm512_shuffle_i32x4(s[i], s[i + 8], 0xdd));
        _mm512_storeu_si512(to + (i + 4) * to_row, _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0x88));
        _mm512_storeu_si512(to + (i + 12) * to_row, _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0xdd));
    }
}
#elif defined(__AVX2__)
#define HAS_TURN 1
/* 16 x 16 words: to[i][j] = from[j][i] */
static inline void turn(const float *const *from, float *to, int64_t to_row) {
    for (int left = 0; left < 16; left += 8)
        for (int top = 0; top < 16; top += 8) {
            __m256 r[8], s[8];
            for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(from[top + i] + left);
            for (int i = 0; i < 8; i += 2) {
                s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
                s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
            }
            for (int i = 0; i < 8; i += 4) {
                r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
                r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
                r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
                r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
            }
            for (int i = 0; i < 4; i++) {
                _mm256_storeu_ps(to + (left + i) * to_row + top, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
                _mm256_storeu_ps(to + (left + i + 4) * to_row + top, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
            }
        }
}
#endif

/* rows of 16 words, of which there may be fewer than 16, as columns: to[i][j] = from[j][i] */
static inline void turn_some(const float *from, int64_t from_row, int64_t rows, float *to, int64_t to_row) {
#if defined(HAS_TURN)
    if (rows > 4) {
        const float *each[16];
        for (int i = 0; i < 16; i++) each[i] = from + i * from_row;
        turn(each, to, to_row);
        return;
    }
#endif
    for (int64_t row = 0; row < rows && row < 16; row++)
        for (int i = 0; i < 16; i++) to[i * to_row + row] = from[row * from_row + i];
}
