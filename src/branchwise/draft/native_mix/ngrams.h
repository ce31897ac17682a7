/* What followed each suffix of one text; the counterpart of ngram.py's trie, with the same weights to the last bit. */
#pragma once

#include "rows.h"

#define ORDERS 8 /* at most, each of TAIL tokens at most */
#define TAIL 8
#define KINDS 3 /* of an order: seen once; always the same continuation; several */

typedef struct {
    int64_t count, orders[ORDERS]; /* longest first */
    double recency;
    map suffixes[ORDERS]; /* value: twice the token that followed once, or twice the row and one */
    row *rows;
    int64_t row_count, row_room;
    int64_t tail[TAIL], tail_count; /* the last tokens, newest last */
} ngrams;

ngrams *ngrams_new(const int64_t *orders, int64_t count, double recency) {
    ngrams *g = calloc(1, sizeof(ngrams));
    if (!g) return NULL;
    memcpy(g->orders, orders, count * sizeof(int64_t));
    g->count = count;
    g->recency = recency;
    return g;
}

void ngrams_free(ngrams *g) {
    for (int64_t i = 0; i < g->count; i++) free(g->suffixes[i].slots);
    free(g->rows);
    free(g);
}

/* one more continuation of a row's suffix: falling weights, of equal ones the older first */
static void count_in(row *r, int64_t token, double recency, int64_t first_kind) {
    int64_t at = 0;
    for (int64_t i = 0; i < r->count; i++) r->weights[i] *= recency;
    while (at < r->count && r->tokens[at] != token) at++;
    double weight = (at < r->count ? r->weights[at] : 0.0) + 1.0;
    if (at == r->count) {
        if (r->count < KEPT) r->count++;
        else at--; /* the new one is no lighter than the lightest, which leaves */
    }
    for (; at > 0 && r->weights[at - 1] < weight; at--) {
        r->weights[at] = r->weights[at - 1];
        r->tokens[at] = r->tokens[at - 1];
    }
    r->weights[at] = weight;
    r->tokens[at] = (int32_t)token;
    r->total = 0.0;
    for (int64_t i = 0; i < r->count; i++) r->total += r->weights[i];
    r->kind = first_kind + (r->count == 1 ? 1 : 2);
}

static int count_suffix(ngrams *g, int64_t order, uint64_t key, int64_t token) {
    slot *s = put(g->suffixes + order, key);
    if (!s) return 1;
    if (s->value == FREE) {
        s->value = 2 * token;
        return 0;
    }
    if (!(s->value & 1)) {
        if (make_room((void **)&g->rows, g->row_count, &g->row_room, sizeof(row))) return 1;
        g->rows[g->row_count] = (row){.count = 1, .weights = {1.0}, .tokens = {(int32_t)(s->value >> 1)}};
        s->value = 2 * g->row_count++ + 1;
    }
    count_in(g->rows + (s->value >> 1), token, g->recency, order * KINDS);
    return 0;
}

/* takes in tokens that follow those seen so far; 0 if all went well */
int ngrams_extend(ngrams *g, const int64_t *tokens, int64_t count) {
    for (int64_t n = 0; n < count; n++) {
        hash h = hash_of_nothing();
        int64_t hashed = 0;
        for (int64_t order = g->count - 1; order >= 0 && g->orders[order] <= g->tail_count; order--) {
            while (hashed < g->orders[order]) hash_in(&h, g->tail[g->tail_count - 1 - hashed++]);
            if (count_suffix(g, order, h.key, tokens[n])) return 1;
        }
        if (g->tail_count == TAIL) memmove(g->tail, g->tail + 1, (TAIL - 1) * sizeof(int64_t));
        else g->tail_count++;
        g->tail[g->tail_count - 1] = tokens[n];
    }
    return 0;
}
