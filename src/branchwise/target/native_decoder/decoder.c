/* A whole decoder forward on a CPU: one pass over the weights, one over the keys and values.
 *
 * The nodes of all lanes come packed, T rows in all. Threads share one parallel region for the whole forward; what they
 * do between two barriers is a phase. Per layer:
 *
 *     rows      norm -> numbers
 *     strips    queries, keys, values
 *     rows      norms of heads, rotary positions; keys and values into their pages
 *     tasks     attention, part by part
 *     queries   parts together
 *     rows      attention -> numbers
 *     strips    output matrix, added to the residual stream
 *     rows      norm -> numbers
 *     strips    gate and up in one strip, activated -> numbers
 *     strips    down, added to the residual stream
 *
 * The residual stream is float32; numbers that are multiplied are bfloat16, or float32 (for exact comparisons), or, where
 * nothing multiplies bfloat16, 8 bits in groups of 32, with attention in float32. Shapes and errors are native_engine.py's.
 */
#include "largest.h"
#include "attend.h"
#include "linear.h"
#include "rows.h"
#include "strips.h"

#include <omp.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

/* native_engine.py's _Layer, _Decoder and _Forward, field by field */
typedef struct {
    matrix qkv, output, gate_up, down;
    norm before_attention, after_attention, before_mlp, after_mlp, query_norm, key_norm;
    int64_t table, window; /* table -1: no positions; window 0: none */
} layer;

typedef struct {
    const layer *layers;
    matrix head;
    norm last;
    int64_t count, hidden, inner, heads, kv_heads, dim, activation;
    int64_t products; /* what numbers are multiplied in: FLOAT_PRODUCTS, ... */
    float scale;      /* of scores, to base 2 */
} decoder;

typedef struct {
    const float *embedded;                      /* [T, h] */
    const float *const *cosines, *const *sines; /* [tables] of [T, D] */
    const int32_t *parents, *depth;             /* of whole trees, those of earlier forwards first; -1 for a root */
    const int32_t *tree_begins;                 /* [B + 1]: of each tree in these */
    const int32_t *begins, *committed;          /* [B + 1], [B] */
    const int32_t *pages, *page_begins;         /* of all lanes; [B + 1] */
    const int32_t *wanted;                      /* [R]: rows that want logits */
    char *pool;                                 /* [2 L, pages, K, rows, D]; in planes of values [D, rows] */
    float *const *features;                     /* [L + 1] of [T, h], NULL where nobody asks */
    float *logits;                              /* [R, V] */
    float *top_values;                          /* [R, k]: the largest logits, falling */
    int64_t *top_tokens;                        /* [R, k] */
    char *work;
    int64_t work_bytes, plane_bytes, page_bytes, lanes, wanted_count, top_count, threads;
} forward;

/* memory of one forward; T and R padded to 32 rows, rows of numbers to 32 numbers */
typedef struct {
    float *residual, *added, *qkv, *attended;    /* [T, h], [T, h], [T, outputs], [T, H D] */
    char *normed, *query, *mixed, *inner, *last; /* numbers: [T, h], [T, H D], [T, H D], [T, inner], [R, h] */
    unit *units;
    float *maxima; /* [R, strips of the head]: the largest logit of every strip */
    float *threads;
    int64_t rows, unit_count, tasks, merges, thread_floats;
    int way; /* of multiplying numbers */
    heads heads;
} work;

/* bytes of a number in the cache, and of one of a query */
static int64_t item_of(const decoder *d) { return d->products == FLOAT_PRODUCTS ? 4 : 2; }

static int64_t query_item(const decoder *d) { return d->products == HALF_PRODUCTS ? 2 : 4; }

static int64_t nodes_of(const forward *f, int64_t lane) { return f->begins[lane + 1] - f->begins[lane]; }

/* nodes that earlier forwards have run; their rows lie behind the committed ones */
static int64_t earlier_of(const forward *f, int64_t lane) {
    return f->tree_begins[lane + 1] - f->tree_begins[lane] - nodes_of(f, lane);
}

static int is_chain(const forward *f, int64_t lane) {
    const int32_t *parents = f->parents + f->tree_begins[lane];
    for (int64_t node = 0; node < f->tree_begins[lane + 1] - f->tree_begins[lane]; node++)
        if (parents[node] != node - 1) return 0;
    return 1;
}

static void lay_out(const decoder *d, const forward *f, work *w, arena *a) {
    int64_t rows = padded(w->rows, 32), wanted = padded(f->wanted_count, 32);
    int64_t heads = d->heads * d->dim, widest = heads > d->inner ? heads : d->inner;
    if (d->hidden > widest) widest = d->hidden;
    w->residual = take(a, 4 * rows * d->hidden);
    w->added = take(a, 4 * rows * d->hidden);
    w->qkv = take(a, 4 * rows * d->layers->qkv.outputs);
    w->attended = take(a, 4 * rows * heads);
    w->normed = take(a, numbers_bytes(w->way, rows, d->hidden));
    w->query = take(a, query_item(d) * rows * heads);
    w->mixed = take(a, numbers_bytes(w->way, rows, heads));
    w->inner = take(a, numbers_bytes(w->way, rows, d->inner));
    w->last = take(a, numbers_bytes(w->way, wanted, d->hidden));
    w->maxima = take(a, 4 * f->wanted_count * d->head.strips);
    /* of each thread: an unpacked strip, and the sums of all rows with it or with two */
    w->thread_floats = 16 * padded(widest, 32) + (2 * rows > wanted ? 2 * rows : wanted) * STRIP;
    w->threads = take(a, 4 * f->threads * w->thread_floats);
    w->units = take(a, (f->lanes + w->rows / UNIT + 1) * sizeof(unit));
}

/* the units of a lane; with their memory if there is enough. many: units of all lanes */
static void add_units(const decoder *d, const forward *f, work *w, int64_t lane, int64_t many, arena *a) {
    static const int32_t ramp[UNIT] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                       22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
                                       44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    const heads *h = &w->heads;
    int64_t n = nodes_of(f, lane), chain = is_chain(f, lane), most = chain ? UNIT : n;
    int64_t earlier = earlier_of(f, lane), of_tree = f->tree_begins[lane];
    for (int64_t from = 0; from < n; from += most) {
        int64_t first = f->begins[lane] + from;
        unit u = {.query = w->query + query_item(d) * first * d->heads * d->dim, .pages = f->pages + f->page_begins[lane],
                  .parents = f->parents + of_tree, .depth = chain ? ramp : f->depth + of_tree,
                  .committed = f->committed[lane] + (chain ? earlier + from : 0), .earlier = chain ? 0 : earlier,
                  .nodes = n - from < most ? n - from : most, .first_row = first, .first_task = w->tasks,
                  .first_merge = w->merges};
        u.columns = u.earlier + u.nodes;
        int64_t end = u.committed + u.columns; /* a tree is less deep than that, but not by much */
        u.groups = padded(h->group * u.nodes, LANES) / LANES;
        u.parts = parts_of(end);
        u.kept = many * h->kv_heads >= 4 * f->threads ? 1 : u.parts;
        u.sums = take(a, 4 * h->kv_heads * u.kept * u.groups * sums_floats(h));
        u.order = chain ? NULL : take(a, 4 * u.columns);
        u.bias = chain ? NULL : take(a, 4 * u.columns * LANES * u.groups);
        if (a->used <= a->bytes) {
            w->units[w->unit_count] = u;
            if (!chain) sort_nodes(w->units + w->unit_count);
        }
        w->unit_count++;
        w->tasks += h->kv_heads * u.kept;
        w->merges += h->kv_heads * u.groups;
    }
}

/* phases; each is entered by all threads, and left together */

/* a layer's input: what the layer before has added, if it wanted a norm first; a feature; its norm as numbers */
static void norm_phase(const decoder *d, const work *w, norm after, norm before, float *feature, float *mine) {
#pragma omp for
    for (int64_t first = 0; first < w->rows; first += rows_at_once(w->way)) {
        int64_t rows = rows_from(first, w->rows, w->way);
        for (int64_t r = 0; r < rows; r++) {
            float *residual = w->residual + (first + r) * d->hidden, *added = w->added + (first + r) * d->hidden;
            if (after.weight) {
                norm_row(added, added, after.weight, after.epsilon, d->hidden);
                for (int64_t i = 0; i < d->hidden; i++) residual[i] += added[i];
            }
            if (feature) memcpy(feature + (first + r) * d->hidden, residual, 4 * d->hidden);
            if (before.weight) norm_row(mine + r * d->hidden, residual, before.weight, before.epsilon, d->hidden);
        }
        if (before.weight) put_rows(w->normed, first, rows, padded(d->hidden, 32) / 32, mine, d->hidden, w->way);
    }
}

static int64_t place_of(const decoder *d, const forward *f, int64_t row, int64_t *at) {
    int64_t lane = lane_of(f->begins, row);
    int64_t place = f->committed[lane] + earlier_of(f, lane) + row - f->begins[lane];
    *at = place % SPAN;
    return f->pages[f->page_begins[lane] + place / SPAN];
}

/* queries as numbers, keys and values into their pages */
static void place_phase(const decoder *d, const forward *f, const work *w, const layer *l, const paged_rows *rows) {
    int64_t item = item_of(d), heads = d->heads * d->dim, keys = d->kv_heads * d->dim;
#pragma omp for nowait
    for (int64_t row = 0; row < w->rows; row++) {
        float *query = w->qkv + row * l->qkv.outputs, *key = query + heads;
        for (int64_t head = 0; head < d->heads + d->kv_heads; head++) {
            float *at = query + head * d->dim;
            norm n = head < d->heads ? l->query_norm : l->key_norm;
            if (n.weight) norm_row(at, at, n.weight, n.epsilon, d->dim);
            if (l->table >= 0) turn_row(at, f->cosines[l->table] + row * d->dim, f->sines[l->table] + row * d->dim, d->dim);
        }
        store_numbers(w->query + query_item(d) * row * heads, query, heads, query_item(d) == 2);
        int64_t at, page = place_of(d, f, row, &at);
        for (int64_t head = 0; head < d->kv_heads; head++)
            store_numbers((char *)rows->keys + page * rows->page_bytes + item * (head * SPAN + at) * d->dim,
                          key + head * d->dim, d->dim, item == 2);
    }
    /* a number of all rows lies in one piece, which one thread should write */
#pragma omp for
    for (int64_t first = 0; first < keys; first += 16)
        for (int64_t row = 0; row < w->rows; row++) {
            const float *value = w->qkv + row * l->qkv.outputs + heads + keys;
            int64_t at, page = place_of(d, f, row, &at);
            char *to = (char *)rows->values + page * rows->page_bytes + item * at;
            for (int64_t i = first; i < first + 16 && i < keys; i++)
                store_numbers(to + item * i * SPAN, value + i, 1, item == 2);
        }
}

static void window_phase(const work *w, int64_t window) {
#pragma omp for
    for (int64_t i = 0; i < w->unit_count; i++)
        if (w->units[i].bias) fill_bias(w->units + i, &w->heads, window);
}

static const unit *unit_of_task(const work *w, int64_t number) {
    const unit *u = w->units + w->unit_count - 1;
    while (u->first_task > number) u--;
    return u;
}

static int attention_phase(const forward *f, const work *w, const paged_rows *rows) {
    int failed = 0;
#pragma omp for schedule(dynamic, 1)
    for (int64_t number = 0; number < w->tasks; number++) {
        int64_t then = number + f->threads; /* most likely */
        const unit *u = unit_of_task(w, number), *after = then < w->tasks ? unit_of_task(w, then) : NULL;
        failed |= attend(u, number - u->first_task, after, after ? then - after->first_task : 0, &w->heads, rows);
    }
    return failed;
}

static void merge_phase(const decoder *d, const work *w) {
    int64_t width = d->heads * d->dim;
#pragma omp for
    for (int64_t number = 0; number < w->merges; number++) {
        const unit *u = w->units + w->unit_count - 1;
        while (u->first_merge > number) u--;
        int64_t within = number - u->first_merge;
        merge(u, &w->heads, within / u->groups, within % u->groups, w->attended + u->first_row * width);
    }
#pragma omp for
    for (int64_t first = 0; first < w->rows; first += rows_at_once(w->way))
        put_rows(w->mixed, first, rows_from(first, w->rows, w->way), padded(width, 32) / 32, w->attended + first * width, width,
                 w->way);
}

/* the final norm: of all rows as a feature, of the wanted ones as numbers */
static void last_phase(const decoder *d, const forward *f, const work *w, float *mine) {
    float *feature = f->features[d->count];
    if (feature) {
#pragma omp for
        for (int64_t row = 0; row < w->rows; row++)
            norm_row(feature + row * d->hidden, w->residual + row * d->hidden, d->last.weight, d->last.epsilon, d->hidden);
    }
#pragma omp for schedule(static, rows_at_once(w->way))
    for (int64_t i = 0; i < f->wanted_count; i++) {
        norm_row(mine, w->residual + f->wanted[i] * d->hidden, d->last.weight, d->last.epsilon, d->hidden);
        put_row(w->last, i, padded(d->hidden, 32) / 32, mine, d->hidden, w->way);
    }
}

/* The largest logits of every row: at least k are as large as the k-th largest maximum, so no strip below it has any of them. */
static void top_phase(const decoder *d, const forward *f, const work *w) {
    int64_t strips = d->head.strips, k = f->top_count;
#pragma omp for
    for (int64_t row = 0; row < f->wanted_count; row++) {
        const float *maxima = w->maxima + row * strips, *logits = f->logits + row * d->head.outputs;
        largest best = {0}, top = {0};
        int strange = 0;
        for (int64_t strip = 0; strip < strips; strip++) {
            strange |= maxima[strip] != maxima[strip];
            if (best.count < k || maxima[strip] > best.values[k - 1]) insert(&best, k, maxima[strip], strip);
        }
        float floor = best.count == k ? best.values[k - 1] : -__builtin_inff();
        for (int64_t strip = 0; strip < strips && !strange; strip++) {
            if (maxima[strip] < floor) continue;
            int64_t end = STRIP * (strip + 1) < d->head.outputs ? STRIP * (strip + 1) : d->head.outputs;
            for (int64_t token = STRIP * strip; token < end; token++)
                if (logits[token] >= floor) insert(&top, k, logits[token], token);
        }
        if (strange) top = (largest){.tokens = {-1}, .values = {__builtin_nanf("")}};
        memcpy(f->top_values + row * k, top.values, k * sizeof(float));
        memcpy(f->top_tokens + row * k, top.tokens, k * sizeof(int64_t));
    }
}

static int run_layer(const decoder *d, const forward *f, const work *w, int64_t index, float *mine) {
    const layer *l = d->layers + index, *before = index ? l - 1 : NULL;
    paged_rows rows = {f->pool + 2 * index * f->plane_bytes, f->pool + (2 * index + 1) * f->plane_bytes, f->page_bytes,
                       l->window};
    norm none = {0};
    norm_phase(d, w, before ? before->after_mlp : none, l->before_attention, index ? f->features[index] : NULL, mine);
    strip_phase(w->way, &l->qkv, w->normed, w->rows, STORE, w->qkv, mine);
    if (!before || before->window != l->window) window_phase(w, l->window);
    place_phase(d, f, w, l, &rows);
    int failed = attention_phase(f, w, &rows);
    merge_phase(d, w);
    int later = l->after_attention.weight != NULL;
    strip_phase(w->way, &l->output, w->mixed, w->rows, later ? STORE : ADD, later ? w->added : w->residual, mine);
    norm_phase(d, w, l->after_attention, l->before_mlp, NULL, mine);
    gate_phase(w->way, &l->gate_up, w->normed, w->rows, d->inner, d->activation, w->inner, mine);
    later = l->after_mlp.weight != NULL;
    strip_phase(w->way, &l->down, w->inner, w->rows, later ? STORE : ADD, later ? w->added : w->residual, mine);
    return failed;
}

/* units of a lane at most */
static int64_t units_of(const forward *f, int64_t lane) { return is_chain(f, lane) ? padded(nodes_of(f, lane), UNIT) / UNIT : 1; }

/* Numbers too small for a float of full precision are zero, as they are for the matrix unit. What was set before is given
   back: the threads are torch's. */
static unsigned flush_tiny(void) {
#if defined(__SSE2__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
#else
    return 0;
#endif
}

static void restore_tiny(unsigned before) {
#if defined(__SSE2__)
    _mm_setcsr(before);
#endif
}

/* 0; or the bytes of work memory that it takes, if it has less; or -1 when there is no memory for a task */
int64_t decode(const decoder *d, const forward *f) {
    work w = {.rows = f->begins[f->lanes], .way = way_of(d->products)};
    int attention = w.way == IN_GROUPS ? IN_FLOATS : w.way == IN_TILES && d->dim % 32 ? IN_PAIRS : w.way;
    w.heads = (heads){d->kv_heads, d->heads / d->kv_heads, d->dim, d->scale, attention, item_of(d)};
    arena a = {f->work, f->work_bytes, 0};
    int64_t units = 0;
    lay_out(d, f, &w, &a);
    for (int64_t lane = 0; lane < f->lanes; lane++) units += units_of(f, lane);
    for (int64_t lane = 0; lane < f->lanes; lane++) add_units(d, f, &w, lane, units, &a);
    if (a.used > a.bytes) return a.used;
    int failed = 0;
    memcpy(w.residual, f->embedded, 4 * w.rows * d->hidden);
#pragma omp parallel num_threads(f->threads) reduction(| : failed)
    {
        float *mine = w.threads + omp_get_thread_num() * w.thread_floats;
        unsigned before = flush_tiny();
#if defined(HAS_AMX)
        if (w.way == IN_TILES) open_tiles();
#endif
        for (int64_t index = 0; index < d->count; index++) failed |= run_layer(d, f, &w, index, mine);
        norm_phase(d, &w, d->layers[d->count - 1].after_mlp, (norm){0}, NULL, mine);
        last_phase(d, f, &w, mine);
        if (f->wanted_count) {
            strip_phase_and_maxima(w.way, &d->head, w.last, f->wanted_count, STORE, f->logits, w.maxima, mine);
            top_phase(d, f, &w);
        }
#if defined(HAS_AMX)
        if (w.way == IN_TILES) _tile_release();
#endif
        restore_tiny(before);
    }
    return failed ? -1 : 0;
}

/* Moves rows of all layers: moves [count, 4] of a page and a row in it, and where they go, another page and row. None goes
   to where a later one comes from. */
void move_rows(const decoder *d, char *pool, const int32_t *moves, int64_t count, int64_t plane_bytes, int64_t page_bytes) {
    int64_t item = item_of(d), row_bytes = item * d->dim;
    for (int64_t plane = 0; plane < 2 * d->count; plane++)
        for (const int32_t *move = moves; move < moves + 4 * count; move += 4)
            for (int64_t head = 0; head < d->kv_heads; head++) {
                char *base = pool + plane * plane_bytes + head * SPAN * row_bytes;
                const char *from = base + move[0] * page_bytes;
                char *to = base + move[2] * page_bytes;
                if (plane % 2 == 0) memcpy(to + move[3] * row_bytes, from + move[1] * row_bytes, row_bytes);
                else if (item == 2)
                    for (int64_t i = 0; i < d->dim; i++)
                        ((uint16_t *)to)[i * SPAN + move[3]] = ((const uint16_t *)from)[i * SPAN + move[1]];
                else
                    for (int64_t i = 0; i < d->dim; i++)
                        ((uint32_t *)to)[i * SPAN + move[3]] = ((const uint32_t *)from)[i * SPAN + move[1]];
            }
}
