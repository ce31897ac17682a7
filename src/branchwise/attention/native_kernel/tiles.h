/* Products of attention on the matrix unit, with sums in float32. */
#pragma once

#include "matrix_unit.h"
#include "task.h"

#if defined(HAS_AMX)
/* scores [16, M] of 16 keys whose rows lie key_bytes apart; words per key is a multiple of 16 */
static void tile_scores(const task *t, const char *keys, int64_t key_bytes, float *scores) {
    int64_t row = 4 * t->queries;
    for (int64_t m = 0; m < t->queries; m += 64) {
        int64_t tiles = (t->queries - m) / 16;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t d = 0; d < t->depth_words; d += 16) {
            const float *queries = t->s.queries + d * t->queries + m;
            _tile_loadd(4, keys + 4 * d, key_bytes);
            _tile_loadd(5, queries, row);
            _tile_dpbf16ps(0, 4, 5);
            if (tiles > 1) {
                _tile_loadd(6, queries + 16, row);
                _tile_dpbf16ps(1, 4, 6);
            }
            if (tiles > 2) {
                _tile_loadd(7, queries + 32, row);
                _tile_dpbf16ps(2, 4, 7);
            }
            if (tiles > 3) {
                _tile_loadd(5, queries + 48, row);
                _tile_dpbf16ps(3, 4, 5);
            }
        }
        _tile_stored(0, scores + m, row);
        if (tiles > 1) _tile_stored(1, scores + m + 16, row);
        if (tiles > 2) _tile_stored(2, scores + m + 32, row);
        if (tiles > 3) _tile_stored(3, scores + m + 48, row);
    }
}

/* mixed [M, Dv] += turned weights [M, pairs] x values [pairs, Dv] */
static void tile_mix(const task *t, int64_t keys) {
    int64_t row = 4 * t->value_width, turned = 4 * (BLOCK / 2);
    for (int64_t m = 0; m < t->queries; m += 32)
        for (int64_t v = 0; v < t->value_width; v += 32) {
            int low = m + 16 < t->queries, right = v + 16 < t->value_width;
            float *out = t->mixed + m * t->value_width + v;
            _tile_loadd(0, out, row);
            if (right) _tile_loadd(1, out + 16, row);
            if (low) _tile_loadd(2, out + 16 * t->value_width, row);
            if (low && right) _tile_loadd(3, out + 16 * t->value_width + 16, row);
            for (int64_t pair = 0; pair < keys / 2; pair += 16) {
                _tile_loadd(4, t->s.turned + m * (BLOCK / 2) + pair, turned);
                _tile_loadd(6, t->s.values + pair * t->value_width + v, row);
                _tile_dpbf16ps(0, 4, 6);
                if (low) {
                    _tile_loadd(5, t->s.turned + (m + 16) * (BLOCK / 2) + pair, turned);
                    _tile_dpbf16ps(2, 5, 6);
                }
                if (right) {
                    _tile_loadd(7, t->s.values + pair * t->value_width + v + 16, row);
                    _tile_dpbf16ps(1, 4, 7);
                    if (low) _tile_dpbf16ps(3, 5, 7);
                }
            }
            _tile_stored(0, out, row);
            if (right) _tile_stored(1, out + 16, row);
            if (low) _tile_stored(2, out + 16 * t->value_width, row);
            if (low && right) _tile_stored(3, out + 16 * t->value_width + 16, row);
        }
}
#endif
