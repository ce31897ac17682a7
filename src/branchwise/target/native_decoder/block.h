/* Attention of as many queries as a vector has lanes to a block of rows, with running maximum and sum: the arithmetic of
 * attend.h.
 *
 * Lanes are queries (heads of a group slow, nodes fast) in everything that is kept:
 *
 *     scores  [rows, LANES]   = keys [rows, D] x queries^T [D, LANES]
 *     weights [rows, LANES]   = 2^(scores - running maximum); pairs of rows where numbers are bfloat16
 *     mixed   [D, LANES]     += values^T [D, rows] x weights
 *
 * so keys, and values, which the cache keeps turned ([D, rows] of a page), are used as they lie, and all of it stays in
 * the first-level cache, where keys and values wait for the next sixteen.
 *
 * The order of all sums is a matter of positions alone: rows count by their position, 32 positions are one step of the
 * matrix unit, and a row that a query does not see adds zero, which changes nothing. What lies behind the last whole
 * step of 32 in a tree with branches (its nodes, and up to 31 committed rows) has rows that are not in the order of
 * positions: the *tail*, which is summed row by row, in the order of positions, in just the way the matrix unit does.
 * So a node's result is, to the last bit, that of its path decoded token by token.
 */
#pragma once

#include "linear.h"
#include "products.h"

#define SPAN 128       /* positions of a block, rows of a page; a multiple of 32 */
#define LEAST (-1e30f) /* below every score, and -inf minus it is no NaN */

/* what all blocks of a forward have in common */
typedef struct {
    int64_t kv_heads, group, dim;
    float scale;      /* of scores, to base 2 */
    int way;          /* of multiplying, see linear.h; never in groups */
    int64_t row_item; /* bytes of a number in the cache: 2 for bfloat16, which may be multiplied as floats all the same */
} heads;

/* of LANES queries over some rows: [2 + D, LANES], D padded to 8 */
typedef struct {
    vec *largest, *total;
    float *mixed;
} sums;

/* rows of the tail in the order in which they are summed */
typedef struct {
    const float *values;   /* [D, row] */
    const int32_t *rows;   /* numbers in the tail */
    const int32_t *places; /* positions */
    int64_t count, row;
} tail;

/* memory of a thread */
typedef struct {
    float *queries; /* [M / LANES, words of D, LANES] */
    float *scores;  /* [SPAN, LANES]; as weights, if they are floats */
    float *behind;  /* [tail rows, LANES]: the same of the tail */
    int32_t *pairs; /* [SPAN / 2, LANES] weights of pairs of rows */
    float *values;  /* [D, tail rows] */
    float *keys;    /* [tail rows, D], as floats where the cache has them in bfloat16 */
    float *block;   /* [SPAN, D] keys and [D, SPAN] values, likewise */
} room;

/* A block that is read next, keys and then values. It is asked for in small shares, so that reading and multiplying go on
   side by side. */
#define SHARES 12 /* per group of queries */

typedef struct {
    const char *at, *then;
    int64_t left, lines, share; /* lines of 64 bytes: from `at` on, from `then` on, asked for at once */
} coming;

static inline void fetch_some(coming *c) {
    for (int64_t lines = c->share; lines > 0 && c->left > 0;) {
        int64_t some = c->left < lines ? c->left : lines;
        const char *at = c->at;
        for (int64_t i = 0; i < some; i++) __builtin_prefetch(at + 64 * i, 0, 2);
        lines -= some;
        c->at = at + 64 * some;
        c->left -= some;
        if (c->left) continue;
        c->at = c->then;
        c->left = c->lines;
        c->lines = 0;
    }
}

/* whether rows of the cache are made floats before they are multiplied */
static int widens(const heads *h) { return h->way == IN_FLOATS && h->row_item == 2; }

static int64_t words_of(const heads *h) { return h->way == IN_FLOATS ? h->dim : h->dim / 2; }
static int64_t sums_floats(const heads *h) { return LANES * (2 + padded(h->dim, 8)); }

static sums sums_at(float *at) { return (sums){(vec *)at, (vec *)(at + LANES), at + 2 * LANES}; }

static void clear_sums(const heads *h, float *at) {
    memset(at, 0, 4 * sums_floats(h));
    *(vec *)at = splat(LEAST);
}

#if defined(HAS_AMX)
/* out [rows, 16] (+)= a [rows, 32 steps] b [32 steps, 16]; rows of a lie a_bytes apart, b is in pairs; whole sixteens */
static inline void tile_product(const char *a, int64_t a_bytes, int64_t rows, const void *b, int64_t steps, int add, float *out) {
    for (; rows > 0; rows -= 64, a += 64 * a_bytes, out += 64 * LANES) {
        if (add) {
            _tile_loadd(0, out, 64);
            if (rows > 16) _tile_loadd(1, out + 256, 64);
            if (rows > 32) _tile_loadd(2, out + 512, 64);
            if (rows > 48) _tile_loadd(3, out + 768, 64);
        } else open_sums();
        for (int64_t step = 0; step < steps; step++) {
            const char *left = a + 64 * step;
            _tile_loadd(4, (const char *)b + 1024 * step, 64);
            _tile_loadd(5, left, a_bytes);
            _tile_dpbf16ps(0, 5, 4);
            if (rows > 16) {
                _tile_loadd(6, left + 16 * a_bytes, a_bytes);
                _tile_dpbf16ps(1, 6, 4);
            }
            if (rows > 32) {
                _tile_loadd(7, left + 32 * a_bytes, a_bytes);
                _tile_dpbf16ps(2, 7, 4);
            }
            if (rows > 48) {
                _tile_loadd(5, left + 48 * a_bytes, a_bytes);
                _tile_dpbf16ps(3, 5, 4);
            }
        }
        _tile_stored(0, out, 64);
        if (rows > 16) _tile_stored(1, out + 256, 64);
        if (rows > 32) _tile_stored(2, out + 512, 64);
        if (rows > 48) _tile_stored(3, out + 768, 64);
    }
}
#endif

/* scores of rows whose keys lie one after another, in whole sixteens */
static void score_rows(const heads *h, const float *queries, const char *keys, int64_t rows, float *scores, coming *next) {
    product p = {.b = queries, .a_row = words_of(h), .a_step = 1, .b_step = LANES, .c_row = LANES, .steps = words_of(h)};
    for (int64_t row = 0; row < rows; row += 64) {
        int64_t some = rows - row < 64 ? rows - row : 64;
        const char *at = keys + 4 * row * words_of(h);
        if (next) fetch_some(next);
#if defined(HAS_AMX)
        if (h->way == IN_TILES) {
            tile_product(at, 2 * h->dim, some, queries, h->dim / 32, 0, scores + row * LANES);
            continue;
        }
#endif
        p.a = (const int32_t *)at;
        p.c = scores + row * LANES;
        if (h->way == IN_FLOATS) multiply(p, padded(some, 16), LANES, 0, 0);
        else multiply(p, padded(some, 16), LANES, 0, 1);
    }
}

/* Scores -> weights, the running maximum and sum; what was mixed so far is scaled to the new maximum.
   rows: in the order of positions, the first at an even one. Weights of the tail stay floats, rounded to bfloat16 where
   numbers are pairs. */
static inline __attribute__((always_inline)) void weigh_as(const heads *h, const room *r, int64_t rows, const tail *t, sums s,
                                                           coming *next, const int pairs) {
    vec *scores = (vec *)r->scores, *behind = (vec *)r->behind, high[4] = {splat(LEAST), splat(LEAST), splat(LEAST), splat(LEAST)};
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4)
        for (int j = 0; j < 4; j++) high[j] = max_vec(scores[i + j], high[j]);
    for (; i < rows; i++) high[0] = max_vec(scores[i], high[0]);
    for (i = 0; i < t->count; i++) high[0] = max_vec(behind[t->rows[i]], high[0]);
    vec before = *s.largest, sum[2] = {{0}, {0}}, weight[2];
    vec largest = max_vec(max_vec(max_vec(high[0], high[1]), max_vec(high[2], high[3])) * h->scale, before);
    for (i = 0; i + 1 < rows; i += 2) {
        if (i % 16 == 0) fetch_some(next);
        for (int j = 0; j < 2; j++) {
            weight[j] = exp2_vec(scores[i + j] * h->scale - largest, pairs);
            sum[j] += weight[j];
            if (!pairs) scores[i + j] = weight[j];
        }
        if (pairs) ((ivec *)r->pairs)[i / 2] = pair_up(weight[0], weight[1]);
    }
    if (i < rows) {
        weight[0] = exp2_vec(scores[i] * h->scale - largest, pairs);
        sum[0] += weight[0];
        if (pairs) ((ivec *)r->pairs)[i / 2] = pair_up(weight[0], splat(0));
        else scores[i] = weight[0];
        i += 2;
    }
    for (; pairs && i < padded(rows, 32); i += 2) ((ivec *)r->pairs)[i / 2] = (ivec){0};
    for (i = 0; i < t->count; i++) {
        vec *at = behind + t->rows[i], one = exp2_vec(*at * h->scale - largest, pairs);
        sum[t->places[i] & 1] += one;
        *at = pairs ? (vec)pair_up(splat(0), one) : one;
    }
    vec shrink = exp2_vec(before - largest, 0);
    *s.total = *s.total * shrink + sum[0] + sum[1];
    *s.largest = largest;
    if (memcmp(&before, &largest, sizeof largest))
        for (int64_t d = 0; d < h->dim; d++) ((vec *)s.mixed)[d] *= shrink;
}

/* mixed += weights x values: those of whole steps, whose turned rows are in a page */
static void mix_values(const heads *h, const room *r, const char *values, int64_t rows, float *mixed) {
#if defined(HAS_AMX)
    if (h->way == IN_TILES) {
        tile_product(values, 2 * SPAN, h->dim, r->pairs, padded(rows, 32) / 32, 1, mixed);
        return;
    }
#endif
    product p = {.a = (const int32_t *)values, .c = mixed, .a_row = h->way == IN_FLOATS ? SPAN : SPAN / 2, .a_step = 1,
                 .b_step = LANES, .c_row = LANES};
    p.b = h->way == IN_FLOATS ? r->scores : (const float *)r->pairs;
    p.steps = h->way == IN_FLOATS ? rows : padded(rows, 2) / 2;
    if (h->way == IN_FLOATS) multiply(p, h->dim, LANES, 1, 0);
    else multiply(p, h->dim, LANES, 1, 1);
}

static void mix_rows(const heads *h, const room *r, const char *values, int64_t rows, float *mixed, coming *next) {
    fetch_some(next);
    mix_values(h, r, values, rows, mixed);
    fetch_some(next);
}

/* rows of the tail that any of these queries sees; how many */
static int64_t seen_rows(const room *r, const tail *t, int32_t *seen) {
    int64_t count = 0;
    for (int64_t i = 0; i < t->count; i++) {
        const float *at = r->behind + t->rows[i] * LANES;
        int any = 0;
        for (int lane = 0; lane < LANES; lane++) any |= at[lane] != 0;
        if (any) seen[count++] = i;
    }
    return count;
}

/* As the matrix unit does it: even and odd positions of a step apart, from zero, then both, then to what there is. */
static void mix_tail_in_steps(const heads *h, const room *r, const tail *t, const int32_t *seen, int64_t count, float *mixed) {
    for (int64_t d = 0; d < h->dim; d += 8) {
        const float *values = t->values + d * t->row;
        vec *to = (vec *)mixed + d, even[8] = {{0}}, odd[8] = {{0}};
        for (int64_t i = 0; i < count; i++) {
            int64_t row = t->rows[seen[i]], place = t->places[seen[i]];
            vec weight = ((const vec *)r->behind)[row];
            if (place & 1)
                for (int v = 0; v < 8; v++) odd[v] += weight * values[v * t->row + row];
            else
                for (int v = 0; v < 8; v++) even[v] += weight * values[v * t->row + row];
            if (i + 1 < count && t->places[seen[i + 1]] / 32 == place / 32) continue;
            for (int v = 0; v < 8; v++) {
                to[v] += even[v] + odd[v];
                even[v] = odd[v] = (vec){0};
            }
        }
    }
}

/* As the other instructions do it: one after another. */
static void mix_tail_in_order(const heads *h, const room *r, const tail *t, const int32_t *seen, int64_t count, float *mixed) {
    for (int64_t d = 0; d < h->dim; d += 8) {
        const float *values = t->values + d * t->row;
        vec *to = (vec *)mixed + d, sum[8];
        memcpy(sum, to, sizeof sum);
        for (int64_t i = 0; i < count; i++) {
            int64_t row = t->rows[seen[i]];
            vec weight = ((const vec *)r->behind)[row];
            for (int v = 0; v < 8; v++) sum[v] += weight * values[v * t->row + row];
        }
        memcpy(to, sum, sizeof sum);
    }
}

/* the same for the tail */
static void mix_tail(const heads *h, const room *r, const tail *t, float *mixed) {
    int32_t seen[t->count + 1];
    int64_t count = seen_rows(r, t, seen);
    if (h->way == IN_TILES) {
        mix_tail_in_steps(h, r, t, seen, count, mixed);
        return;
    }
    /* The dot-product instruction adds the odd one of a pair first. A query sees one row of a position at most: only the
       order of positions matters. */
    for (int64_t i = 1; h->way == IN_PAIRS && i < count; i++)
        for (int64_t j = i; j > 0 && (t->places[seen[j]] ^ 1) < (t->places[seen[j - 1]] ^ 1); j--) {
            int32_t other = seen[j];
            seen[j] = seen[j - 1];
            seen[j - 1] = other;
        }
    mix_tail_in_order(h, r, t, seen, count, mixed);
}

/* The sums over some rows and over others. Kept out of line: it must round in one way wherever it is called. */
static __attribute__((noinline)) void add_sums(const heads *h, sums to, sums more) {
    vec largest = max_vec(*to.largest, *more.largest);
    vec one = exp2_vec(*to.largest - largest, 0), two = exp2_vec(*more.largest - largest, 0);
    *to.largest = largest;
    *to.total = *to.total * one + *more.total * two;
    for (int64_t d = 0; d < h->dim; d++) ((vec *)to.mixed)[d] = ((vec *)to.mixed)[d] * one + ((vec *)more.mixed)[d] * two;
}
