/* One forward of an EAGLE head on a CPU, and the likeliest tokens after the rows that somebody wants to go on from.
 *
 * A forward takes either committed rows, which come with the target's features, or one level of the trees in flight,
 * whose nodes continue hidden states of the forward before. The rows of all lanes come packed, T in all, and threads
 * share one parallel region; what they do between two barriers is a phase:
 *
 *     rows      features -> numbers, or hidden states of the forward before; embeddings
 *     strips    fc
 *     per layer
 *         rows      norms -> numbers [embedding | hidden]
 *         strips    queries, keys, values
 *         rows      norms of heads, rotary positions; keys and values into their pages
 *         tasks     attention, part by part
 *         rows      attention -> numbers
 *         strips    output matrix, added to the residual stream
 *         rows      norm -> numbers
 *         strips    gate and up in one strip, activated -> numbers
 *         strips    down, added to the residual stream
 *     strips    the embedding's own way to the residual stream
 *     rows      last norm of the wanted rows -> numbers, and the hidden states to go on from
 *     strips    output rows of the draft vocabulary
 *     parts     the k likeliest tokens and their log-probabilities
 *
 * The residual stream is float32, numbers that are multiplied are bfloat16, or 8 bits in groups of 32 where nothing
 * multiplies bfloat16, or float32 for exact comparisons. Shapes and errors are native_head.py's.
 */
#include "pages.h"

#include "rows.h"
#include "strips.h"
#include "top.h"

#include <omp.h>

/* native_head.py's _Layer, _Head and _Forward, field by field */
typedef struct {
    matrix qkv, output, gate_up, down;
    norm of_embedding, of_hidden, before_mlp, query_norm, key_norm; /* of_embedding: only where the embedding is read */
    int64_t keeps_normed;                                           /* the residual is what of_hidden gives */
} layer;

typedef struct {
    const layer *layers;
    matrix fuse, join, beside, rows; /* of the features, [embedding | hidden], the embedding, and the output; or nothing */
    norm together, last;             /* of all features together; of the output */
    const norm *each;                /* of every feature; NULL for none */
    const char *embedding;           /* [V, h] */
    int64_t embedding_dtype, count, hidden, features, feature_width, inner, heads, kv_heads, dim, page_rows;
    int64_t products;       /* what numbers are multiplied in: FLOAT_PRODUCTS, ... */
    int64_t deep;           /* output rows of levels below the first */
    int64_t goes_on_normed; /* the next level continues what `last` gives */
    float scale;            /* of scores, to base 2 */
} head;

typedef struct {
    const int32_t *tokens, *positions; /* [T] */
    const int32_t *continued;          /* [T]: rows of `states`; NULL where there are features */
    const char *given;                 /* features [T, F h_t] */
    const int32_t *begins, *committed; /* [B + 1], [B] */
    const int32_t *flights, *parents;  /* of a level: [B + 1], and all nodes in flight, by number within the lane; or -1 */
    const int32_t *pages, *page_begins;
    const int32_t *wanted; /* [R] rows */
    char *pool;            /* [2 L, pages, K, rows, D] */
    float *states;         /* [R of the forward before, h], then [R, h] */
    const float *cosines, *sines; /* [positions, D] */
    float *logp;
    int64_t *found; /* [R, k] */
    char *work;
    int64_t work_bytes, plane_bytes, page_bytes, lanes, wanted_count, k, given_dtype, threads;
} forward;

/* memory of one forward; T and R padded to 32 rows, rows of numbers to 32 numbers */
typedef struct {
    float *embedded, *residual, *qkv, *attended, *logits;  /* [T, h], [T, h], [T, outputs], [T, H D], [R, V] */
    char *inputs, *beside, *query, *mixed, *inner, *last; /* numbers: of whatever is multiplied next, [T, h], ... */
    unit *units;
    top_part *parts; /* [parts, R] */
    float *threads;
    int64_t rows, unit_count, tasks, thread_floats, part_count, widest;
    matrix output; /* as many of its rows as this forward's nodes are chosen from */
    int way;       /* of multiplying numbers */
} work;

/* bytes of a number in the cache, and of one of a query */
static int64_t item_of(const head *h) { return h->products == HALF_PRODUCTS ? 2 : 4; }

static int64_t steps_of(int64_t numbers) { return padded(numbers, 32) / 32; }

static int64_t rows_of(const forward *f, int64_t lane) { return f->begins[lane + 1] - f->begins[lane]; }

static int64_t flight_of(const forward *f, int64_t lane) { return f->flights[lane + 1] - f->flights[lane]; }

/* bytes of rows of numbers, whatever multiplies them */
static int64_t numbers_of(int way, int64_t rows, int64_t width) {
    int64_t as_they_are = numbers_bytes(way, rows, width), in_digits = rows / 16 * digits_bytes(width);
    return as_they_are > in_digits ? as_they_are : in_digits;
}

static void lay_out(const head *h, const forward *f, work *w, arena *a) {
    int64_t item = item_of(h), rows = padded(w->rows, 32), wanted = padded(f->wanted_count, 32), heads = h->heads * h->dim;
    int64_t widths[4] = {2 * h->hidden, h->features * h->feature_width, heads, h->inner}, outputs = 0;
    for (int i = 0; i < 4; i++)
        if (widths[i] > w->widest) w->widest = widths[i];
    for (int64_t i = 0; i < h->count; i++)
        if (h->layers[i].qkv.outputs > outputs) outputs = h->layers[i].qkv.outputs;
    w->output = h->rows;
    if (f->continued) w->output.outputs = h->deep;
    w->output.strips = (w->output.outputs + STRIP - 1) / STRIP;
    w->part_count = (w->output.outputs + PART - 1) / PART;
    w->embedded = take(a, 4 * rows * h->hidden);
    w->residual = take(a, 4 * rows * h->hidden);
    w->qkv = take(a, 4 * rows * outputs);
    w->attended = take(a, 4 * rows * heads);
    w->inputs = take(a, numbers_of(w->way, rows, w->widest));
    w->beside = take(a, numbers_of(w->way, rows, h->hidden));
    w->query = take(a, item * rows * heads);
    w->mixed = take(a, numbers_of(w->way, rows, heads));
    w->inner = take(a, numbers_of(w->way, rows, h->inner));
    w->last = take(a, numbers_of(w->way, wanted, h->hidden));
    w->logits = take(a, 4 * f->wanted_count * w->output.outputs);
    w->parts = take(a, f->wanted_count * w->part_count * sizeof(top_part));
    /* of each thread: an unpacked strip or 16 rows on their way to be numbers, and the sums of all rows with a strip or two,
       or those 16 rows in 8 bits */
    int64_t panel = 512 * steps_of(w->widest), sums = STRIP * (2 * rows > wanted ? 2 * rows : wanted);
    w->thread_floats = panel + (sums > 4 * padded(w->widest, 64) ? sums : 4 * padded(w->widest, 64));
    w->threads = take(a, 4 * f->threads * w->thread_floats);
    w->units = take(a, (f->lanes + w->rows / UNIT + 1) * sizeof(unit));
}

/* One unit, of so many queries behind so many committed rows, with its memory if there is enough. */
static void add_unit(const head *h, const forward *f, work *w, int64_t lane, int64_t first, int64_t queries, int64_t committed,
                     int64_t columns, arena *a) {
    int64_t group = h->heads / h->kv_heads, parts = parts_of(h->kv_heads, committed, f->threads), tasks = h->kv_heads * parts;
    int64_t sums = tasks * padded(group * queries, 16), width = padded(h->dim, 16);
    float *mixed = take(a, 4 * sums * (width + 2)), *bias = f->continued ? take(a, 4 * columns * queries) : NULL;
    if (a->used <= a->bytes) {
        unit *u = w->units + w->unit_count;
        *u = (unit){.pages = f->pages + f->page_begins[lane], .first_row = first, .first_task = w->tasks, .bias = bias,
                    .committed = committed, .columns = columns, .queries = queries};
        u->c = (call){.query = w->query + item_of(h) * first * h->heads * h->dim, .mixed = mixed,
                      .largest = mixed + sums * width, .total = mixed + sums * (width + 1), .bias = bias,
                      .nodes = &u->queries, .committed = &u->committed, .query_strides = {0, h->dim, h->heads * h->dim},
                      .key_strides = {0, 0, h->dim}, .value_strides = {0, 0, h->dim}, .batch = 1, .kv_heads = h->kv_heads,
                      .group = group, .width = queries, .columns = columns, .dim = h->dim, .value_dim = h->dim,
                      .parts = parts, .dtype = item_of(h) == 2 ? BFLOAT16 : FLOAT32, .factor = h->scale};
        if (bias) fill_level(u, f->parents + f->flights[lane]);
    }
    w->unit_count++;
    w->tasks += tasks;
}

static void add_units(const head *h, const forward *f, work *w, int64_t lane, arena *a) {
    int64_t n = rows_of(f, lane);
    if (f->continued) {
        if (n) add_unit(h, f, w, lane, f->begins[lane], n, f->committed[lane], flight_of(f, lane), a);
        return;
    }
    for (int64_t from = 0; from < n; from += UNIT) {
        int64_t queries = n - from < UNIT ? n - from : UNIT;
        add_unit(h, f, w, lane, f->begins[lane] + from, queries, f->committed[lane] + from, queries, a);
    }
}

/* phases; each is entered by all threads, and left together */

/* 16 rows of features as numbers */
static void fuse_rows(const head *h, const forward *f, const work *w, int64_t first, int64_t rows, float *mine) {
    int64_t part = h->feature_width, width = h->features * part, item = f->given_dtype == FLOAT32 ? 4 : 2;
    for (int64_t r = 0; r < rows; r++) {
        float *at = mine + r * width;
        widen_row(at, f->given + item * (first + r) * width, width, f->given_dtype);
        if (h->together.weight) norm_row(at, at, h->together.weight, h->together.epsilon, width);
        for (int64_t i = 0; h->each && i < h->features; i++)
            norm_row(at + i * part, at + i * part, h->each[i].weight, h->each[i].epsilon, part);
    }
    put_inputs(&h->fuse, w->inputs, first, rows, mine, width, w->way, mine + 16 * width);
}

static void first_phase(const head *h, const forward *f, const work *w, float *mine) {
    int64_t item = h->embedding_dtype == FLOAT32 ? 4 : 2;
#pragma omp for
    for (int64_t first = 0; first < w->rows; first += rows_at_once(w->way)) {
        int64_t rows = rows_from(first, w->rows, w->way);
        float *embedded = w->embedded + first * h->hidden, *residual = w->residual + first * h->hidden;
        for (int64_t r = 0; r < rows; r++)
            widen_row(embedded + r * h->hidden, h->embedding + item * f->tokens[first + r] * h->hidden, h->hidden,
                      h->embedding_dtype);
        if (h->beside.values) put_inputs(&h->beside, w->beside, first, rows, embedded, h->hidden, w->way, mine);
        if (!f->continued && h->fuse.values) fuse_rows(h, f, w, first, rows, mine);
        for (int64_t r = 0; r < rows && !(!f->continued && h->fuse.values); r++) {
            float *to = residual + r * h->hidden;
            if (f->continued) memcpy(to, f->states + f->continued[first + r] * h->hidden, 4 * h->hidden);
            else widen_row(to, f->given + (f->given_dtype == FLOAT32 ? 4 : 2) * (first + r) * h->hidden, h->hidden, f->given_dtype);
        }
    }
}

/* rows that a matrix multiplies next: the embedding if it is read, and the hidden state */
static void input_phase(const head *h, const work *w, const matrix *m, norm of_embedding, norm of_hidden, int both,
                        int keeps_normed, float *mine) {
    int64_t n = h->hidden, width = both ? 2 * n : n;
#pragma omp for
    for (int64_t first = 0; first < w->rows; first += rows_at_once(w->way)) {
        int64_t rows = rows_from(first, w->rows, w->way);
        for (int64_t r = 0; r < rows; r++) {
            float *to = mine + r * width, *residual = w->residual + (first + r) * n;
            const float *embedded = w->embedded + (first + r) * n;
            if (both) {
                if (of_embedding.weight) norm_row(to, embedded, of_embedding.weight, of_embedding.epsilon, n);
                else memcpy(to, embedded, 4 * n);
                to += n;
            }
            if (of_hidden.weight) norm_row(to, residual, of_hidden.weight, of_hidden.epsilon, n);
            else memcpy(to, residual, 4 * n);
            if (keeps_normed) memcpy(residual, to, 4 * n);
        }
        put_inputs(m, w->inputs, first, rows, mine, width, w->way, mine + 16 * width);
    }
}

/* queries as numbers, keys and values into their pages */
static void place_phase(const head *h, const forward *f, const work *w, const layer *l, const paged_rows *rows) {
    int64_t item = item_of(h), heads = h->heads * h->dim, keys = h->kv_heads * h->dim;
#pragma omp for
    for (int64_t row = 0; row < w->rows; row++) {
        float *query = w->qkv + row * l->qkv.outputs, *key = query + heads;
        const float *cosines = f->cosines + f->positions[row] * h->dim, *sines = f->sines + f->positions[row] * h->dim;
        for (int64_t number = 0; number < h->heads + h->kv_heads; number++) {
            norm n = number < h->heads ? l->query_norm : l->key_norm;
            float *at = query + number * h->dim;
            if (n.weight) norm_row(at, at, n.weight, n.epsilon, h->dim);
            turn_row(at, cosines, sines, h->dim);
        }
        store_numbers(w->query + item * row * heads, query, heads, item == 2);
        int64_t lane = lane_of(f->begins, row), place = f->committed[lane] + row - f->begins[lane];
        if (f->continued) place += flight_of(f, lane) - rows_of(f, lane);
        int64_t page = f->pages[f->page_begins[lane] + place / h->page_rows], at = place % h->page_rows;
        for (int64_t number = 0; number < h->kv_heads; number++) {
            int64_t to = page * rows->page_bytes + item * (number * h->page_rows + at) * h->dim;
            store_numbers((char *)rows->keys + to, key + number * h->dim, h->dim, item == 2);
            store_numbers((char *)rows->values + to, key + keys + number * h->dim, h->dim, item == 2);
        }
    }
}

static int attention_phase(const work *w, const paged_rows *rows) {
    int failed = 0;
#pragma omp for schedule(dynamic, 1)
    for (int64_t number = 0; number < w->tasks; number++) {
        const unit *u = w->units + w->unit_count - 1;
        while (u->first_task > number) u--;
        failed |= attend_part(u, rows, number - u->first_task, w->way == IN_TILES);
    }
    return failed;
}

static void merge_phase(const head *h, const work *w, const matrix *m, float *mine) {
    int64_t heads = h->heads * h->dim, group = h->heads / h->kv_heads;
#pragma omp for
    for (int64_t first = 0; first < w->rows; first += rows_at_once(w->way)) {
        int64_t rows = rows_from(first, w->rows, w->way);
        for (int64_t row = first; row < first + rows; row++) {
            const unit *u = w->units + w->unit_count - 1;
            while (u->first_row > row) u--;
            for (int64_t number = 0; number < h->heads; number++) {
                int64_t query = number % group * u->c.width + row - u->first_row;
                merge_row(&u->c, number / group, query, (char *)(w->attended + row * heads + number * h->dim), FLOAT32);
            }
        }
        put_inputs(m, w->mixed, first, rows, w->attended + first * heads, heads, w->way, mine);
    }
}

static int run_layer(const head *h, const forward *f, const work *w, int64_t index, float *mine) {
    const layer *l = h->layers + index;
    paged_rows rows = {f->pool + 2 * index * f->plane_bytes, f->pool + (2 * index + 1) * f->plane_bytes, h->page_rows,
                       f->page_bytes};
    norm none = {0};
    input_phase(h, w, &l->qkv, l->of_embedding, l->of_hidden, l->of_embedding.weight != NULL, l->keeps_normed, mine);
    strip_phase(w->way, &l->qkv, w->inputs, w->rows, STORE, w->qkv, mine);
    place_phase(h, f, w, l, &rows);
    if (!f->wanted_count && index == h->count - 1) return 0; /* a prompt: nobody looks further than its keys and values */
    int failed = attention_phase(w, &rows);
    merge_phase(h, w, &l->output, mine);
    strip_phase(w->way, &l->output, w->mixed, w->rows, ADD, w->residual, mine);
    input_phase(h, w, &l->gate_up, none, l->before_mlp, 0, 0, mine);
    gate_phase(w->way, &l->gate_up, w->inputs, w->rows, h->inner, SILU, w->inner, mine);
    strip_phase(w->way, &l->down, w->inner, w->rows, ADD, w->residual, mine);
    return failed;
}

/* hidden states to go on from, and the last norm as numbers */
static void last_phase(const head *h, const forward *f, const work *w, float *mine) {
    int64_t n = h->hidden;
#pragma omp for
    for (int64_t first = 0; first < f->wanted_count; first += rows_at_once(w->way)) {
        int64_t rows = rows_from(first, f->wanted_count, w->way);
        for (int64_t r = 0; r < rows; r++) {
            const float *residual = w->residual + f->wanted[first + r] * n;
            float *normed = mine + r * n;
            if (h->last.weight) norm_row(normed, residual, h->last.weight, h->last.epsilon, n);
            else memcpy(normed, residual, 4 * n);
            memcpy(f->states + (first + r) * n, h->goes_on_normed ? normed : residual, 4 * n);
        }
        put_inputs(&w->output, w->last, first, rows, mine, n, w->way, mine + 16 * n);
    }
}

/* a thread takes the same parts of all rows: those it has in its cache, as it computed them */
static void top_phase(const head *h, const forward *f, const work *w) {
    int64_t width = w->output.outputs, rows = f->wanted_count;
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows * w->part_count; n++) {
        int64_t first = n / rows * PART, last = first + PART < width ? first + PART : width;
        do_part(w->parts + n, (const char *)(w->logits + n % rows * width), first, last, width, f->k, 1, FLOAT32);
    }
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows; n++)
        if (merge_parts(w->parts + n, w->part_count, rows, f->k, 1, f->logp + n * f->k, f->found + n * f->k))
            for (int64_t i = 0; i < f->k; i++) { /* no probabilities: the caller looks for these */
                f->logp[n * f->k + i] = __builtin_nanf("");
                f->found[n * f->k + i] = 0;
            }
}

static int run_all(const head *h, const forward *f, const work *w, float *mine) {
    int failed = 0;
    first_phase(h, f, w, mine);
    if (!f->continued && h->fuse.values) strip_phase(w->way, &h->fuse, w->inputs, w->rows, STORE, w->residual, mine);
    if (h->join.values) {
        input_phase(h, w, &h->join, (norm){0}, (norm){0}, 1, 0, mine);
        strip_phase(w->way, &h->join, w->inputs, w->rows, STORE, w->residual, mine);
    }
    for (int64_t index = 0; index < h->count; index++) failed |= run_layer(h, f, w, index, mine);
    if (!f->wanted_count) return failed;
    if (h->beside.values) strip_phase(w->way, &h->beside, w->beside, w->rows, ADD, w->residual, mine);
    last_phase(h, f, w, mine);
    strip_phase(w->way, &w->output, w->last, f->wanted_count, STORE, w->logits, mine);
    top_phase(h, f, w);
    return failed;
}

/* 0; or the bytes of work memory that it takes, if it has less; or -1 when there is no memory for a task */
int64_t run_head(const head *h, const forward *f) {
    work w = {.rows = f->begins[f->lanes], .way = way_of(h->products)};
    arena a = {f->work, f->work_bytes, 0};
    lay_out(h, f, &w, &a);
    for (int64_t lane = 0; lane < f->lanes; lane++) add_units(h, f, &w, lane, &a);
    if (a.used > a.bytes) return a.used;
    int failed = 0;
#pragma omp parallel num_threads(f->threads) reduction(| : failed)
    {
        float *mine = w.threads + omp_get_thread_num() * w.thread_floats;
#if defined(HAS_AMX)
        if (w.way == IN_TILES) open_tiles();
#endif
        failed |= run_all(h, f, &w, mine);
#if defined(HAS_AMX)
        if (w.way == IN_TILES) _tile_release();
#endif
    }
    return failed ? -1 : 0;
}
