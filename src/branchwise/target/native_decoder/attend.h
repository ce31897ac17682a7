/* Attention of a whole forward over rows in pages.
 *
 * Work comes in units: a tree with branches, or up to 64 tokens of a chain, for which the earlier tokens of the chain are
 * committed ones (they lie in the cache already). Positions are cut into parts, short ones at first, longer ones later,
 * always at the same positions; a part is summed block by block, and parts are added up from first to last. A task is a
 * unit, a key/value head and a part; or all parts, where there are tasks enough, so that no part's sums need be kept.
 */
#pragma once

#include "block.h"

#define UNIT 64 /* tokens of a chain */

typedef struct {
    const char *query;    /* numbers [nodes, H, D] */
    const int32_t *pages; /* of the lane, in row order */
    const int32_t *parents, *depth; /* of a whole tree, the nodes of earlier forwards first; depth of a chain's nodes */
    int32_t *order;       /* the columns of a tree by depth; NULL for a chain */
    float *bias;          /* of a tree [columns, groups, LANES]: 0 where a query sees a column, else -inf */
    float *sums;          /* [K, kept, groups] of `sums` */
    int64_t committed, nodes, groups, first_row, first_task, first_merge; /* groups of LANES queries of a key/value head */
    int64_t parts, kept;  /* parts in all, and whose sums are kept: all, or one */
    int64_t earlier, columns; /* of a tree: nodes of earlier forwards, and with these; a chain's earlier ones are committed */
} unit;

/* a layer's rows: keys [pages, K, rows, D], values [pages, K, D, rows] */
typedef struct {
    const char *keys, *values;
    int64_t page_bytes, window; /* window 0: none */
} paged_rows;

static int64_t part_end(int64_t begin) {
    int64_t size = SPAN;
    while (8 * size <= begin) size *= 2; /* at most a quarter of what is before it */
    return begin + size;
}

static int64_t parts_of(int64_t positions) {
    int64_t parts = 0;
    for (int64_t at = 0; at < positions; at = part_end(at)) parts++;
    return parts;
}

/* one behind the last position of a unit */
static int64_t end_of(const unit *u) {
    return u->committed + (u->order ? u->depth[u->order[u->columns - 1]] + 1 : u->nodes);
}

/* once per forward */
static void sort_nodes(unit *u) {
    for (int64_t depth = 0, count = 0; count < u->columns; depth++)
        for (int64_t column = 0; column < u->columns; column++)
            if (u->depth[column] == depth) u->order[count++] = column;
}

static int64_t queries_of(const unit *u, const heads *h) { return h->group * u->nodes; }

/* what its queries see: ancestors within the window */
static void fill_bias(const unit *u, const heads *h, int64_t window) {
    int64_t width = LANES * u->groups;
    for (int64_t i = 0; i < u->columns * width; i++) u->bias[i] = -__builtin_inff();
    for (int64_t m = 0; m < queries_of(u, h); m++)
        for (int64_t own = u->earlier + m % u->nodes, column = own; column >= 0; column = u->parents[column])
            if (!window || u->depth[own] - u->depth[column] < window) u->bias[column * width + m] = 0;
}

static const char *row_at(const unit *u, const heads *h, const paged_rows *rows, int64_t head, int64_t row, int values) {
    int64_t item = h->row_item, within = row % SPAN * (values ? 1 : h->dim);
    const char *page = (values ? rows->values : rows->keys) + u->pages[row / SPAN] * rows->page_bytes;
    return page + item * (head * SPAN * h->dim + within);
}

/* queries of a head, lanes fast: [groups, words, LANES] */
static void turn_queries(const unit *u, const heads *h, int64_t head, float *to) {
    static const float zeros[16];
    int64_t words = words_of(h);
    const float *query = (const float *)u->query + head * h->group * words;
    for (int64_t first = 0; first < LANES * u->groups; first += LANES, to += LANES * words) {
        const float *rows[LANES];
        for (int64_t i = 0, m = first; i < LANES; i++, m++)
            rows[i] = m < queries_of(u, h) ? query + (m % u->nodes * h->kv_heads * h->group + m / u->nodes) * words : NULL;
        int64_t word = 0;
#if LANES == 16
        for (; word + 16 <= words; word += 16) {
            const float *from[16];
            for (int i = 0; i < 16; i++) from[i] = rows[i] ? rows[i] + word : zeros;
            turn(from, to + word * LANES, LANES);
        }
#endif
        for (; word < words; word++)
            for (int i = 0; i < LANES; i++) memcpy(to + word * LANES + i, rows[i] ? rows[i] + word : zeros, 4);
    }
}

/* hides rows of the positions [first, first + count) that lie behind a query, or before its window */
static void hide(const unit *u, const heads *h, int64_t group, int64_t window, int64_t first, int64_t count, float *scores) {
    for (int64_t lane = 0, m = LANES * group; lane < LANES && m < queries_of(u, h); lane++, m++) {
        int64_t own = u->committed + u->depth[u->earlier + m % u->nodes] - first;
        int64_t nearest = window ? own - window + 1 : 0; /* the rows that are seen: [nearest, own] */
        for (int64_t i = 0; i < count && i < nearest; i++) scores[i * LANES + lane] = -__builtin_inff();
        for (int64_t i = own < -1 ? 0 : own + 1; i < count; i++) scores[i * LANES + lane] = -__builtin_inff();
    }
}

/* where the tail of a tree begins; a chain has none */
static int64_t tail_begin(const unit *u) { return u->committed / 32 * 32; }

/* values of the tail as floats [D, row]; its keys too, if floats are what is multiplied */
static void unpack_tail(const unit *u, const heads *h, const room *r, const paged_rows *rows, int64_t head, int64_t row) {
    float *to = r->values;
    int64_t begin = tail_begin(u), end = u->committed + u->columns, page_bytes = h->row_item * SPAN;
    memset(to + h->dim * row, 0, 4 * row * (padded(h->dim, 8) - h->dim));
    for (int64_t at = begin; at < end; at += 16) { /* within a page; what lies behind the end is never used */
        const char *values = row_at(u, h, rows, head, at, 1), *keys = row_at(u, h, rows, head, at, 0);
        if (widens(h)) widen_row(r->keys + (at - begin) * h->dim, keys, 16 * h->dim, BFLOAT16);
        for (int64_t d = 0; d < h->dim; d++, values += page_bytes)
            widen_row(to + d * row + at - begin, values, 16, h->row_item == 4 ? FLOAT32 : BFLOAT16);
    }
}

/* of the tail those rows whose positions are in a block, in their order */
static void sort_tail(const unit *u, int64_t block, tail *t, int32_t *numbers, int32_t *places) {
    int64_t begin = tail_begin(u), end = u->committed + u->columns;
    t->rows = numbers;
    t->places = places;
    for (int64_t at = begin; at < end; at++) {
        int64_t column = at < u->committed ? -1 : u->order[at - u->committed];
        int64_t place = column < 0 ? at : u->committed + u->depth[column];
        if (place < block || place >= block + SPAN) continue;
        places[t->count] = place;
        numbers[t->count++] = column < 0 ? at - begin : u->committed - begin + column;
    }
}

static void score_tail(const unit *u, const heads *h, const room *r, const paged_rows *rows, int64_t head, int64_t group) {
    int64_t begin = tail_begin(u), end = u->committed + u->columns;
    const float *queries = r->queries + group * LANES * words_of(h);
    for (int64_t at = begin; at < end; at += 16) {
        const char *keys = widens(h) ? (const char *)(r->keys + (at - begin) * h->dim) : row_at(u, h, rows, head, at, 0);
        score_rows(h, queries, keys, 16, r->behind + (at - begin) * LANES, NULL);
    }
    if (rows->window) hide(u, h, group, rows->window, begin, u->committed - begin, r->behind);
    vec *scores = (vec *)r->behind + u->committed - begin;
    for (int64_t column = 0; column < u->columns; column++) scores[column] += ((const vec *)u->bias)[column * u->groups + group];
}

/* A task: its head, and its first part or -1 for all. Late parts are the long ones: they go first. */
typedef struct {
    int64_t head, part;
} work_item;

static work_item item_at(const unit *u, const heads *h, int64_t number) {
    return (work_item){number % h->kv_heads, u->kept == 1 ? -1 : u->kept - 1 - number / h->kv_heads};
}

static int64_t part_begin(int64_t part) {
    int64_t begin = 0;
    while (part-- > 0) begin = part_end(begin);
    return begin;
}

static coming coming_from(const unit *u, const heads *h, const paged_rows *rows, int64_t head, int64_t block) {
    if (!u || block >= u->committed) return (coming){0}; /* little, and still at hand */
    int64_t lines = h->row_item * SPAN * h->dim / 64;
    return (coming){row_at(u, h, rows, head, block, 0), row_at(u, h, rows, head, block, 1), lines, lines, 0};
}

/* adds the rows whose positions are in [block, block + SPAN) to the sums of all groups */
static void absorb_block(const unit *u, const heads *h, const room *r, const paged_rows *rows, int64_t head, int64_t block,
                         float *kept, coming *next) {
    int64_t end = u->order ? tail_begin(u) : u->committed + u->nodes, count = end - block < SPAN ? end - block : SPAN;
    int64_t most = u->order && block + SPAN > end ? u->committed + u->columns - end : 0;
    int32_t numbers[most + 1], places[most + 1];
    tail t = {.values = r->values, .row = padded(most, 16)};
    if (most) sort_tail(u, block, &t, numbers, places);
    if (t.count) unpack_tail(u, h, r, rows, head, t.row);
    if (count < 0) count = 0;
    const char *keys = row_at(u, h, rows, head, block, 0), *values = row_at(u, h, rows, head, block, 1);
    if (count && widens(h)) {
        widen_row(r->block, keys, padded(count, 16) * h->dim, BFLOAT16);
        for (int64_t d = 0; d < h->dim; d++)
            widen_row(r->block + (h->dim + d) * SPAN, values + 2 * d * SPAN, count, BFLOAT16);
        keys = (const char *)r->block;
        values = (const char *)(r->block + h->dim * SPAN);
    }
    next->share = 2 * next->lines / (SHARES * u->groups) + 1;
    for (int64_t group = 0; group < u->groups; group++, kept += sums_floats(h)) {
        sums s = sums_at(kept);
        if (count) {
            const float *queries = r->queries + group * LANES * words_of(h);
            score_rows(h, queries, keys, count, r->scores, next);
            if (rows->window || block + count > u->committed) hide(u, h, group, rows->window, block, count, r->scores);
        }
        if (t.count) score_tail(u, h, r, rows, head, group);
        if (h->way == IN_FLOATS) weigh_as(h, r, count, &t, s, next, 0);
        else weigh_as(h, r, count, &t, s, next, 1);
        if (count) mix_rows(h, r, values, count, s.mixed, next);
        if (t.count) mix_tail(h, r, &t, s.mixed);
    }
}

/* memory of this thread, kept for the next task; more: sums of a part. 0 when there is none */
static int make_room(const unit *u, const heads *h, room *r, float **more) {
    int64_t tail_rows = u->order ? padded(u->columns + 31, 16) : 0;
    int64_t tail_numbers = padded(h->dim, 8) * tail_rows, wide = widens(h);
    int64_t sizes[] = {LANES * u->groups * words_of(h), LANES * SPAN,        LANES * tail_rows,          LANES * SPAN / 2,
                       tail_numbers,                    wide * tail_numbers, wide * 2 * SPAN * h->dim, u->groups * sums_floats(h)};
    float *places[8];
    if (!reserve_places(sizes, 8, places)) return 0;
    *r = (room){places[0], places[1], places[2], (int32_t *)places[3], places[4], places[5], places[6]};
    *more = places[7];
    return 1;
}

static float *kept_sums(const unit *u, const heads *h, int64_t head, int64_t part) {
    return u->sums + (head * u->kept + part) * u->groups * sums_floats(h);
}

/* the number-th task of a unit; what is read next is that of another, if there is one. 1 when there is no memory */
static int attend(const unit *u, int64_t number, const unit *after, int64_t then, const heads *h, const paged_rows *rows) {
    work_item item = item_at(u, h, number), other = after ? item_at(after, h, then) : item;
    room r;
    float *more;
    if (!make_room(u, h, &r, &more)) return 1;
    turn_queries(u, h, item.head, r.queries);
    int64_t end = end_of(u), seen = rows->window ? u->committed - rows->window + 1 : 0; /* the root looks furthest back */
    int all = item.part < 0;
    for (int64_t part = all ? 0 : item.part, begin = part_begin(part); part < u->parts; part++, begin = part_end(begin)) {
        int64_t most = part_end(begin) < end ? part_end(begin) : end;
        float *kept = kept_sums(u, h, item.head, all ? 0 : part), *to = all && part ? more : kept;
        for (int64_t group = 0; group < u->groups; group++) clear_sums(h, to + group * sums_floats(h));
        for (int64_t block = begin; block < most; block += SPAN) {
            if (block + SPAN <= seen) continue;
            coming next = block + SPAN < most || all ? coming_from(u, h, rows, item.head, block + SPAN)
                                                     : coming_from(after, h, rows, other.head, part_begin(other.part));
            absorb_block(u, h, &r, rows, item.head, block, to, &next);
        }
        if (!all) break;
        for (int64_t group = 0; part && group < u->groups; group++)
            add_sums(h, sums_at(kept + group * sums_floats(h)), sums_at(more + group * sums_floats(h)));
    }
    return 0;
}

/* what a group of a head has seen, all parts together, as rows of floats [nodes, H D] */
static void merge(const unit *u, const heads *h, int64_t head, int64_t group, float *attended) {
    sums all = sums_at(kept_sums(u, h, head, 0) + group * sums_floats(h));
    for (int64_t part = 1; part < u->kept; part++)
        add_sums(h, all, sums_at(kept_sums(u, h, head, part) + group * sums_floats(h)));
    int64_t first = LANES * group, count = queries_of(u, h) - first < LANES ? queries_of(u, h) - first : LANES;
    float *to[LANES];
    for (int64_t i = 0, m = first; i < count; i++, m++)
        to[i] = attended + ((m % u->nodes * h->kv_heads + head) * h->group + m / u->nodes) * h->dim;
    for (int64_t d = 0; d < h->dim; d += 16) {
        float shares[16 * CHUNK] = {0}, turned[256];
        int64_t wide = h->dim - d < 16 ? h->dim - d : 16;
        for (int64_t i = 0; i < wide; i++) *(vec *)(shares + CHUNK * i) = ((vec *)all.mixed)[d + i] / *all.total;
        columns(shares, count, turned);
        for (int64_t i = 0; i < count; i++) memcpy(to[i] + d, turned + 16 * i, 4 * wide);
    }
}
