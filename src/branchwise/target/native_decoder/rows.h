/* What a decoder does to one row at a time: norms, rotary positions, gates, and rows in the numbers of the cache; and
 * whose row it is. */
#pragma once

#include <math.h>

#include "linear.h"

enum { SILU, GELU_TANH };

/* native_engine.py's _Norm, field by field */
typedef struct {
    const float *weight; /* NULL for no norm */
    float epsilon;
} norm;

/* the lane of a row; begins [B + 1]: of the rows of each lane */
static int64_t lane_of(const int32_t *begins, int64_t row) {
    int64_t lane = 0;
    while (begins[lane + 1] <= row) lane++;
    return lane;
}

/* count floats as numbers one after another */
static void store_numbers(char *to, const float *from, int64_t count, int64_t pairs) {
    if (!pairs) {
        memcpy(to, from, 4 * count);
        return;
    }
    uint16_t *halves = (uint16_t *)to;
    int64_t i = 0;
#if defined(__AVX512BF16__)
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((__m256i *)(halves + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + i)));
#endif
    for (; i < count; i++) halves[i] = (uint16_t)to_bfloat16(from[i]);
}

/* to = from / sqrt(mean(from^2) + epsilon) * weight; to may be from */
static void norm_row(float *to, const float *from, const float *weight, float epsilon, int64_t count) {
    vec squares = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) squares += *(const vec *)(from + i) * *(const vec *)(from + i);
    float sum = sum_of(squares);
    for (; i < count; i++) sum += from[i] * from[i];
    float by = 1.f / sqrtf(sum / count + epsilon);
    for (i = 0; i + LANES <= count; i += LANES) *(vec *)(to + i) = *(const vec *)(from + i) * by * *(const vec *)(weight + i);
    for (; i < count; i++) to[i] = from[i] * by * weight[i];
}

/* halves of a head are the two coordinates of a rotation */
static void turn_row(float *row, const float *cosine, const float *sine, int64_t dim) {
    for (int64_t i = 0; i < dim / 2; i++) {
        float one = row[i], other = row[i + dim / 2];
        row[i] = one * cosine[i] - other * sine[i];
        row[i + dim / 2] = other * cosine[i + dim / 2] + one * sine[i + dim / 2];
    }
}

static vec gate(vec x, int64_t activation) {
    const float log2_e = 1.44269504f;
    vec z = x;
    if (activation == GELU_TANH) z = 1.59576912f * (x + 0.044715f * x * x * x);
    vec e = exp2_vec(-log2_e * max_vec(z, -z), 0); /* e^-|z| */
    vec low = e / (1.f + e);
    ivec negative = (ivec)(z < 0.f);
    return x * (vec)(((ivec)low & negative) | ((ivec)(1.f - low) & ~negative));
}
