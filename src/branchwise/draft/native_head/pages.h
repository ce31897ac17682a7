/* Attention over rows in pages, by the tasks of branchwise's own tree attention (kernel.c).
 *
 * Work comes in units: up to 64 tokens of a chain, for which the earlier ones are committed (they lie in the cache
 * already), or one level of a tree, whose columns are all nodes in flight, its own last. A task is a unit, a key/value
 * head and a part of the committed rows.
 *
 * Not native_decoder/attend.h: that one sums in the order of positions and keeps values turned for it; a draft need not.
 */
#pragma once

#include "kernel.c"

#define UNIT 64        /* tokens of a chain */
#define LEAST_PART 128 /* committed rows that are worth a task of their own */

typedef struct {
    call c;               /* of one sequence; keys and values are found by page */
    const int32_t *pages; /* of the lane, in row order */
    int64_t first_row;    /* of its queries among those of the forward */
    int64_t first_task;
    float *bias;          /* [columns, queries] of a level; NULL for a chain */
    int32_t committed, columns, queries;
} unit;

/* a layer's rows: keys and values [pages, K, rows, D] */
typedef struct {
    const char *keys, *values;
    int64_t page_rows, page_bytes;
} paged_rows;

/* Parts of the committed rows, so that threads get equal shares. */
static int64_t parts_of(int64_t kv_heads, int64_t committed, int64_t threads) {
    int64_t most = committed / LEAST_PART > 1 ? committed / LEAST_PART : 1;
    for (int64_t parts = 1; parts <= most; parts++)
        if (kv_heads * parts % threads == 0 || kv_heads * parts >= 4 * threads) return parts;
    return most;
}

/* column by column, 0 where a query sees it: itself and its ancestors. parents: of all columns, by number */
static void fill_level(const unit *u, const int32_t *parents) {
    int64_t n = u->queries, first = u->columns - n;
    for (int64_t i = 0; i < u->columns * n; i++) u->bias[i] = -__builtin_inff();
    for (int64_t query = 0; query < n; query++)
        for (int64_t column = first + query; column >= 0; column = parents[column]) u->bias[column * n + query] = 0;
}

static void walk(task *t, const unit *u, const paged_rows *rows, int64_t from, int64_t to, int in_tree) {
    int64_t block = block_of(t), head_bytes = rows->page_rows * u->c.dim * item_size(&u->c) * t->kv_head;
    while (from < to) {
        int64_t page = from / rows->page_rows, end = (page + 1) * rows->page_rows;
        if (end > to) end = to;
        if (end > from + block) end = from + block;
        int64_t at = u->pages[page] * rows->page_bytes + head_bytes;
        t->key = rows->keys + at;
        t->value = rows->values + at;
        t->coming = NULL;
        if (end % rows->page_rows == 0 && end < u->committed + u->columns)
            t->coming = rows->keys + u->pages[page + 1] * rows->page_bytes + head_bytes;
        absorb(t, from - page * rows->page_rows, from, in_tree ? from - u->committed : -1, end - from);
        from = end;
    }
}

/* tiles are open; 1 when there is no memory */
static int attend_part(const unit *u, const paged_rows *rows, int64_t number, int tiles) {
    task t = task_of(&u->c, number, tiles);
    if (!begin_task(&t)) return 1;
    int64_t part = number % u->c.parts;
    span committed = span_of(&t, part);
    walk(&t, u, rows, committed.begin, committed.end, 0);
    if (part == u->c.parts - 1) walk(&t, u, rows, u->committed, u->committed + u->columns, 1);
    return 0;
}
