/* Tree attention on a CPU in one pass over the keys.
 *
 * Knows addresses, strides and bits; the shapes, the errors and the number of parts are native.py's, which compiles this
 * file with the machine's own compiler. A task is one key/value head of one sequence and one part of its committed
 * tokens; the last part also takes the columns of the tree. A task walks over its keys in blocks:
 *
 *     scores [block, M]  = keys [block, D] x queries^T [D, M]      M: the queries of the group, heads slow, nodes fast
 *     weights            = 2^(scores - running maximum)            lanes are queries: no sum goes across a vector
 *     mixed [M, Dv]     += weights^T [M, block] x values [block, Dv]
 *
 * so keys and values are read once, and scores never leave the cache. Keys are used as they lie in memory. Arithmetic is
 * float32; bfloat16 products go to the matrix unit (AMX) or the dot-product instruction where the machine has them, with
 * sums in float32.
 */
#include "products.h"
#include "task.h"
#include "tiles.h"

#define LEAST (-1e30f) /* below every score, and -inf minus it is no NaN */

/* scores of keys [row, row + count) of the buffer, count <= BLOCK */
static void score(const task *t, int64_t row, int64_t count) {
    const call *c = t->c;
    int64_t item = item_size(c), key_bytes = item * c->key_strides[2];
    const char *keys = t->key + row * key_bytes;
    int64_t value_bytes = item * c->value_strides[2];
    ahead values = {t->value + row * value_bytes, value_bytes, item * c->value_dim}; /* of these keys */
    int64_t as_they_lie = count;
    if (c->dtype != FLOAT32 && !t->pairs) as_they_lie = 0; /* to be widened */
    else if (t->pairs && (c->dim % 2 || key_bytes % 4)) as_they_lie = 0;
#if defined(HAS_AMX)
    if (t->tiles) as_they_lie = 2 * t->depth_words == c->dim ? count / 16 * 16 : 0;
#endif
    int64_t words = t->depth_words;
    for (int64_t k = as_they_lie; k < padded(count, 16); k++) {
        float *to = t->s.keys + k * words;
        memset(to, 0, 4 * words);
        if (k >= count) continue;
        if (t->pairs) memcpy(to, keys + k * key_bytes, 2 * c->dim);
        else widen_row(to, keys + k * key_bytes, c->dim, c->dtype);
    }
#if defined(HAS_AMX)
    if (t->tiles) {
        for (int64_t k = 0; k < as_they_lie; k += 16) {
            fetch(&values, k, 16);
            tile_scores(t, keys + k * key_bytes, key_bytes, t->s.scores + k * t->queries);
        }
        for (int64_t k = as_they_lie; k < count; k += 16)
            tile_scores(t, (const char *)(t->s.keys + k * words), 4 * words, t->s.scores + k * t->queries);
        return;
    }
#endif
    product p = {.b = t->s.queries, .b_step = t->queries, .c = t->s.scores, .c_row = t->queries, .a_step = 1};
    p.steps = words;
    p.ahead = &values;
    p.a = as_they_lie ? (const int32_t *)keys : (const int32_t *)t->s.keys;
    p.a_row = as_they_lie ? key_bytes / 4 : words;
    if (t->pairs) multiply(p, count, t->queries, 0, 1);
    else multiply(p, count, t->queries, 0, 0);
}

/* scores to base 2, capped if asked for */
static void scale_scores(const task *t, int64_t count) {
    const call *c = t->c;
    for (int64_t i = 0; i < count * t->queries; i += LANES) {
        vec *at = (vec *)(t->s.scores + i), y = *at * c->factor;
        if (c->cap != 0) {
            /* cap * tanh(x), 2^y = e^(2x); beyond +-60 it is the cap itself */
            y = max_vec(-max_vec(-y, splat(-60.f)), splat(-60.f));
            y = c->cap * (1.f - 2.f / (1.f + exp2_vec(y, 0)));
        }
        *at = y;
    }
}

/* hides committed tokens that are out of the window: key i has position first + i */
static void hide_far(const task *t, int64_t first, int64_t count) {
    const call *c = t->c;
    int64_t length = c->committed[t->b];
    for (int64_t m = 0; m < c->group * t->nodes; m++) {
        int64_t nearest = length + c->depth[t->b * c->width + m % t->nodes] - c->window + 1; /* least visible position */
        for (int64_t i = 0; i < count && first + i < nearest; i++) t->s.scores[i * t->queries + m] = -__builtin_inff();
    }
}

/* hides columns that are not ancestors, or out of the window */
static void hide_strangers(const task *t, int64_t first, int64_t count) {
    const call *c = t->c;
    for (int64_t i = 0; i < count; i++)
        for (int64_t g = 0; g < c->group; g++) {
            float *scores = t->s.scores + i * t->queries + g * t->nodes;
            int64_t column = first + i;
            if (c->bias) {
                const float *bias = c->bias + (t->b * c->columns + column) * c->width;
                for (int64_t n = 0; n < t->nodes; n++) scores[n] += bias[n];
            } else {
                for (int64_t n = 0; n < t->nodes; n++)
                    if (n < column || (c->window && n - column >= c->window)) scores[n] = -__builtin_inff();
            }
        }
}

/* scores -> weights, the running maximum and sum; what was mixed so far is scaled to the new maximum */
static inline __attribute__((always_inline)) void weigh_as(const task *t, int64_t count, int64_t padded_count,
                                                           const float factor, const ahead *next, const int pairs) {
    int64_t columns = t->queries / LANES;
    for (int64_t column = 0; column < columns; column++) {
        float *scores = t->s.scores + column * LANES;
        vec *largest_at = (vec *)(t->largest + column * LANES), *total_at = (vec *)(t->total + column * LANES);
        vec high[4] = {splat(LEAST), splat(LEAST), splat(LEAST), splat(LEAST)};
        int64_t i = 0;
        for (; i + 4 <= count; i += 4)
            for (int j = 0; j < 4; j++) high[j] = max_vec(*(vec *)(scores + (i + j) * t->queries), high[j]);
        for (; i < count; i++) high[0] = max_vec(*(vec *)(scores + i * t->queries), high[0]);
        vec before = *largest_at;
        vec largest = max_vec(max_vec(max_vec(high[0], high[1]), max_vec(high[2], high[3])) * factor, before);
        vec sum[2] = {{0}, {0}}, weight[2];
        int64_t turn = column; /* the columns take turns in asking for the next keys */
        for (i = 0; i + 1 < count; i += 2) {
            if (turn-- == 0) {
                fetch(next, i, 2);
                turn = columns - 1;
            }
            for (int j = 0; j < 2; j++) {
                weight[j] = exp2_vec(*(vec *)(scores + (i + j) * t->queries) * factor - largest, pairs);
                sum[j] += weight[j];
                if (!pairs) *(vec *)(scores + (i + j) * t->queries) = weight[j];
            }
            if (pairs) *(ivec *)(t->s.weights + i / 2 * t->queries + column * LANES) = pair_up(weight[0], weight[1]);
        }
        for (; i < padded_count; i += 2) {
            weight[0] = i < count ? exp2_vec(*(vec *)(scores + i * t->queries) * factor - largest, pairs) : splat(0);
            sum[0] += weight[0];
            if (pairs) *(ivec *)(t->s.weights + i / 2 * t->queries + column * LANES) = pair_up(weight[0], splat(0));
            else *(vec *)(scores + i * t->queries) = weight[0];
        }
        vec shrink = exp2_vec(before - largest, 0);
        *total_at = *total_at * shrink + sum[0] + sum[1];
        *largest_at = largest;
        if (!memcmp(&before, &largest, sizeof largest)) continue;
        for (int j = 0; j < LANES; j++)
            if (shrink[j] != 1.f) {
                vec *row = (vec *)(t->mixed + (column * LANES + j) * t->value_width);
                for (int64_t v = 0; v < t->value_width / LANES; v++) row[v] *= shrink[j];
            }
    }
}

static void weigh(const task *t, int64_t row, int64_t count, int64_t padded_count, float factor) {
    int64_t key_bytes = item_size(t->c) * t->c->key_strides[2];
    const char *coming = t->coming ? t->coming : t->key + (row + count) * key_bytes;
    ahead next = {coming, key_bytes, item_size(t->c) * t->c->dim};
    if (t->pairs) weigh_as(t, count, padded_count, factor, &next, 1);
    else weigh_as(t, count, padded_count, factor, &next, 0);
}

/* mixed += weights x values of rows [row, row + count) */
static void mix(const task *t, int64_t row, int64_t count, int64_t padded_count) {
    const call *c = t->c;
    int64_t item = item_size(c), value_bytes = item * c->value_strides[2], width = t->value_width;
    const char *values = t->value + row * value_bytes;
    product p = {.c = t->mixed, .c_row = width, .a_row = 1, .a_step = t->queries, .b_step = width, .b = t->s.values};
    if (t->pairs) {
        for (int64_t k = 0; k < padded_count; k += 2) {
            uint32_t *to = (uint32_t *)(t->s.values + k / 2 * width);
            const uint16_t *low = (const uint16_t *)(values + k * value_bytes);
            const uint16_t *high = (const uint16_t *)(values + (k + 1) * value_bytes);
            if (k + 1 < count)
                for (int64_t v = 0; v < c->value_dim; v++) to[v] = low[v] | (uint32_t)high[v] << 16;
            else
                for (int64_t v = 0; v < c->value_dim; v++) to[v] = k < count ? low[v] : 0;
            for (int64_t v = c->value_dim; v < width; v++) to[v] = 0;
        }
#if defined(HAS_AMX)
        if (t->tiles) {
            for (int64_t m = 0; m < t->queries; m += 16)
                for (int64_t pair = 0; pair < padded_count / 2; pair += 16) {
                    const float *from[16];
                    for (int64_t i = 0; i < 16; i++) from[i] = t->s.weights + (pair + i) * t->queries + m;
                    turn(from, t->s.turned + m * (BLOCK / 2) + pair, BLOCK / 2);
                }
            tile_mix(t, padded_count);
            return;
        }
#endif
        p.a = (const int32_t *)t->s.weights;
        p.steps = padded_count / 2;
        multiply(p, c->group * t->nodes, width, 1, 1);
        return;
    }
    if (c->dtype == FLOAT32 && c->value_dim == width) {
        p.b = (const float *)values;
        p.b_step = c->value_strides[2];
    } else {
        for (int64_t k = 0; k < count; k++) {
            widen_row(t->s.values + k * width, values + k * value_bytes, c->value_dim, c->dtype);
            for (int64_t v = c->value_dim; v < width; v++) t->s.values[k * width + v] = 0;
        }
    }
    p.a = (const int32_t *)t->s.scores;
    p.steps = count;
    multiply(p, c->group * t->nodes, width, 1, 0);
}

static void absorb(const task *t, int64_t row, int64_t position, int64_t column, int64_t count) {
    const call *c = t->c;
    int64_t padded_count = padded(count, t->tiles ? 32 : 2);
    score(t, row, count);
    /* a cap comes before hiding; with a factor below 0 the largest score would be the least */
    int scaled = c->cap != 0 || c->factor < 0;
    if (scaled) scale_scores(t, count);
    if (column >= 0) hide_strangers(t, column, count);
    else if (c->window) hide_far(t, position, count);
    weigh(t, row, count, padded_count, scaled ? 1.f : c->factor);
    mix(t, row, count, padded_count);
}

/* how a task multiplies, and its sizes */
static task task_of(const call *c, int64_t number, int tiles) {
    int64_t pair = number / c->parts, most = padded(c->group * c->width, 16);
    task t = {.c = c, .b = pair / c->kv_heads, .kv_head = pair % c->kv_heads};
    t.nodes = c->nodes[t.b]; /* padding is not computed */
    t.queries = padded(c->group * t.nodes, 16);
    t.value_width = padded(c->value_dim, 16);
#if defined(__AVX512BF16__)
    t.pairs = c->dtype == BFLOAT16;
#endif
    t.tiles = t.pairs && tiles;
    t.depth_words = t.pairs ? padded(c->dim, t.tiles ? 32 : 2) / 2 : c->dim;
    t.mixed = c->mixed + number * most * t.value_width;
    t.largest = c->largest + number * most;
    t.total = c->total + number * most;
    return t;
}

/* gives a task its memory and its queries; 0 when there is no memory */
static int begin_task(task *t) {
    int64_t sizes[6] = {t->depth_words * t->queries, BLOCK * t->queries,      BLOCK / 2 * t->queries,
                        BLOCK / 2 * t->queries,      BLOCK * t->depth_words, BLOCK * t->value_width};
    float *places[6];
    if (!reserve_places(sizes, 6, places)) return 0;
    t->s = (scratch){places[0], places[1], places[2], places[3], places[4], places[5]};
    memset(t->mixed, 0, 4 * t->queries * t->value_width);
    for (int64_t m = 0; m < t->queries; m++) {
        t->largest[m] = LEAST;
        t->total[m] = 0;
    }
    pack_queries(t);
    return 1;
}

/* most keys at once */
static int64_t block_of(const task *t) { return t->pairs && t->queries <= 96 ? BLOCK : t->pairs ? BLOCK / 2 : BLOCK / 4; }

/* the committed rows [begin, end) of a part */
typedef struct {
    int64_t begin, end;
} span;

static span span_of(const task *t, int64_t part) {
    const call *c = t->c;
    int64_t length = c->committed[t->b];
    int64_t first = c->window && length + 1 > c->window ? length + 1 - c->window : 0; /* the root looks furthest back */
    int64_t share = padded((length - first + c->parts - 1) / c->parts, 32), begin = first + part * share;
    return (span){begin, begin + share < length ? begin + share : length};
}

static int run_task(const call *c, int64_t number, int tiles) {
    task t = task_of(c, number, tiles);
    int64_t item = item_size(c), part = number % c->parts;
    t.key = c->key + item * (t.b * c->key_strides[0] + t.kv_head * c->key_strides[1]);
    t.value = c->value + item * (t.b * c->value_strides[0] + t.kv_head * c->value_strides[1]);
    if (!begin_task(&t)) return 1;
#if defined(HAS_AMX)
    if (t.tiles) open_tiles();
#endif
    span rows = span_of(&t, part);
    int64_t block = block_of(&t);
    for (int64_t at = rows.begin; at < rows.end; at += block) absorb(&t, at, at, -1, rows.end - at < block ? rows.end - at : block);
    int64_t columns = c->columns - c->width + t.nodes; /* those behind are padding */
    if (part == c->parts - 1)
        for (int64_t at = 0; at < columns; at += block)
            absorb(&t, c->column_row + at, 0, at, columns - at < block ? columns - at : block);
#if defined(HAS_AMX)
    if (t.tiles) _tile_release();
#endif
    return 0;
}

/* the parts of query m of one key/value head of one sequence, weighed and written as numbers of a format */
static void merge_row(const call *c, int64_t pair, int64_t m, char *out, int64_t dtype) {
    int64_t queries = padded(c->group * c->width, 16), value_width = padded(c->value_dim, 16);
    int64_t head = pair % c->kv_heads * c->group + m / c->nodes[pair / c->kv_heads];
    float largest = c->sinks ? c->sinks[head] : LEAST, total = 0;
    for (int64_t part = 0; part < c->parts; part++) {
        float one = c->largest[(pair * c->parts + part) * queries + m];
        if (one > largest) largest = one;
    }
    if (c->sinks) total = exp2_vec(splat(c->sinks[head] - largest), 0)[0];
    float *sum = c->mixed + (pair * c->parts * queries + m) * value_width;
    for (int64_t part = 0; part < c->parts; part++) {
        int64_t at = (pair * c->parts + part) * queries + m;
        float weight = c->largest[at] <= LEAST ? 0 : exp2_vec(splat(c->largest[at] - largest), 0)[0];
        total += weight * c->total[at];
        for (int64_t v = 0; v < c->value_dim; v++)
            sum[v] = weight * c->mixed[at * value_width + v] + (part ? sum[v] : 0);
    }
    store_row(out, sum, total, c->value_dim, dtype);
}

static void merge(const call *c, int64_t pair) {
    int64_t b = pair / c->kv_heads, heads = c->kv_heads * c->group, first_head = pair % c->kv_heads * c->group;
    int64_t nodes = c->nodes[b], first = c->starts ? c->starts[b] : b * c->width;
    int64_t bytes = item_size(c) * c->value_dim;
    for (int64_t node = nodes; !c->starts && node < c->width; node++) /* padding */
        memset(c->output + ((first + node) * heads + first_head) * bytes, 0, c->group * bytes);
    for (int64_t m = 0; m < c->group * nodes; m++)
        merge_row(c, pair, m, c->output + ((first + m % nodes) * heads + first_head + m / nodes) * bytes, c->dtype);
}

/* 0, or 1 when there is no memory for a task */
int tree_attention(const call *c) {
    int64_t pairs = c->batch * c->kv_heads;
    int failed = 0, tiles = 0;
#if defined(HAS_AMX)
    tiles = may_use_tiles();
#endif
#pragma omp parallel for num_threads(c->threads) schedule(dynamic) reduction(| : failed)
    for (int64_t number = 0; number < pairs * c->parts; number++) failed |= run_task(c, number, tiles);
    if (failed) return 1;
#pragma omp parallel for num_threads(c->threads)
    for (int64_t pair = 0; pair < pairs; pair++) merge(c, pair);
    return 0;
}
