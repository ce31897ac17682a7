/* Attention of a whole forward over rows in pages, by the tasks of branchwise's own tree attention (kernel.c).
 *
 * Work comes in units: a tree, or up to 64 tokens of a chain, for which the earlier tokens of the chain are committed
 * ones (they lie in the cache already). A task is a unit, a key/value head and a part of the committed rows.
 */
#pragma once

#include "kernel.c"

#define UNIT 64        /* tokens of a chain */
#define LEAST_PART 128 /* committed rows that are worth a task of their own */

typedef struct {
    call c;               /* of one sequence; keys and values are found by page */
    const int32_t *pages; /* of the lane, in row order */
    int64_t first_row;    /* of its nodes among those of the forward */
    int64_t first_task;
    float *bias;          /* [columns, nodes] of a tree; NULL for a chain */
    const int32_t *parents, *depth; /* of the whole tree */
    int32_t committed, nodes, columns; /* columns: nodes of earlier forwards, and these */
} unit;

/* a layer's rows: keys and values [pages, K, rows, D] */
typedef struct {
    const char *keys, *values;
    int64_t page_rows, page_bytes;
} paged_rows;

/* Parts of the committed rows, so that threads get equal shares. Depends on nothing that differs between a tree and the
   chain of one of its paths. */
static int64_t parts_of(int64_t kv_heads, int64_t committed, int64_t threads) {
    int64_t most = committed / LEAST_PART > 1 ? committed / LEAST_PART : 1;
    for (int64_t parts = 1; parts <= most; parts++)
        if (kv_heads * parts % threads == 0 || kv_heads * parts >= 4 * threads) return parts;
    return most;
}

/* column by column, 0 where a node sees it: its ancestors within the window */
static void fill_bias(const unit *u, int64_t window) {
    int64_t n = u->nodes, earlier = u->columns - n;
    for (int64_t i = 0; i < u->columns * n; i++) u->bias[i] = -__builtin_inff();
    for (int64_t node = 0; node < n; node++)
        for (int64_t column = earlier + node; column >= 0; column = u->parents[column])
            if (!window || u->depth[earlier + node] - u->depth[column] < window) u->bias[column * n + node] = 0;
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
