/* What the target likes after a token and after a pair of tokens; the counterpart of recycling.py's table. */
#pragma once

#include "rows.h"

#define COMMON 64 /* most of the tokens that are common everywhere */

typedef struct {
    row row;
    uint64_t key;
    int64_t older, newer; /* of all pairs, by age; the oldest and the newest have FREE beside them */
} pair;

typedef struct {
    int64_t most_pairs, sureness; /* kinds per table */
    map after_token, after_pair;
    row *rows;
    int64_t row_count, row_room;
    pair *pairs;
    int64_t pair_count, pair_room, oldest, newest;
    int32_t common[COMMON];
    double common_weights[COMMON], common_total;
    int64_t common_count;
} adjacency;

adjacency *adjacency_new(int64_t most_pairs, int64_t sureness) {
    adjacency *a = calloc(1, sizeof(adjacency));
    if (!a) return NULL;
    a->most_pairs = most_pairs;
    a->sureness = sureness;
    a->oldest = a->newest = FREE;
    return a;
}

void adjacency_free(adjacency *a) {
    free(a->after_token.slots);
    free(a->after_pair.slots);
    free(a->rows);
    free(a->pairs);
    free(a);
}

void adjacency_common(adjacency *a, const int64_t *tokens, const double *weights, int64_t count, double total) {
    for (int64_t i = 0; i < count; i++) {
        a->common[i] = (int32_t)tokens[i];
        a->common_weights[i] = weights[i];
    }
    a->common_count = count;
    a->common_total = total;
}

static inline uint64_t token_key(int64_t token) {
    hash h = hash_of_nothing();
    hash_in(&h, token);
    return h.key;
}

static inline uint64_t pair_key(int64_t before, int64_t token) {
    hash h = hash_of_nothing();
    hash_in(&h, token);
    hash_in(&h, before);
    return h.key;
}

static void leave(adjacency *a, int64_t at) {
    pair *p = a->pairs + at;
    if (p->older == FREE) a->oldest = p->newer;
    else a->pairs[p->older].newer = p->newer;
    if (p->newer == FREE) a->newest = p->older;
    else a->pairs[p->newer].older = p->older;
}

static void join(adjacency *a, int64_t at) {
    a->pairs[at].older = a->newest;
    a->pairs[at].newer = FREE;
    if (a->newest == FREE) a->oldest = at;
    else a->pairs[a->newest].newer = at;
    a->newest = at;
}

static int put_pair(adjacency *a, uint64_t key, const row *fresh) {
    slot *s = put(&a->after_pair, key);
    if (!s) return 1;
    int64_t at = s->value;
    if (at != FREE) {
        leave(a, at);
    } else if (a->pair_count < a->most_pairs) {
        if (make_room((void **)&a->pairs, a->pair_count, &a->pair_room, sizeof(pair))) {
            s->value = 0; /* so that there is something to take out */
            take_out(&a->after_pair, key);
            return 1;
        }
        s->value = at = a->pair_count++;
    } else { /* the oldest pair leaves its place to this one */
        s->value = at = a->oldest;
        leave(a, at);
        take_out(&a->after_pair, a->pairs[at].key);
    }
    a->pairs[at].row = *fresh;
    a->pairs[at].key = key;
    join(a, at);
    return 0;
}

static int put_token(adjacency *a, int64_t token, const row *fresh) {
    slot *s = put(&a->after_token, token_key(token));
    if (!s) return 1;
    if (s->value == FREE) {
        if (make_room((void **)&a->rows, a->row_count, &a->row_room, sizeof(row))) {
            s->value = 0;
            take_out(&a->after_token, token_key(token));
            return 1;
        }
        s->value = a->row_count++;
    }
    a->rows[s->value] = *fresh;
    return 0;
}

/* Files the target's k likeliest tokens after every node of a tree, and their shares, under the node's token and the
 * pair of its parent's and its own; before: the token that precedes the root, FREE if none. 0 if all went well, 2 if a
 * share is no number. */
int adjacency_put(adjacency *a, int64_t nodes, const int64_t *tokens, const int64_t *parents, int64_t before, int64_t k,
                  const int64_t *likeliest, const float *shares) {
    for (int64_t n = 0; n < nodes; n++) {
        double first = shares[n * k];
        if (!(first >= 0.0 && first <= 1.0)) return 2;
        row fresh = {.count = k, .total = 1.0};
        for (int64_t i = 0; i < k; i++) {
            fresh.tokens[i] = (int32_t)likeliest[n * k + i];
            fresh.weights[i] = shares[n * k + i];
        }
        int64_t sure = (int64_t)(first * a->sureness);
        if (sure > a->sureness - 1) sure = a->sureness - 1;
        fresh.kind = a->sureness + sure;
        if (put_token(a, tokens[n], &fresh)) return 1;
        int64_t above = parents[n] < 0 ? before : tokens[parents[n]];
        fresh.kind = sure;
        if (above >= 0 && put_pair(a, pair_key(above, tokens[n]), &fresh)) return 1;
    }
    return 0;
}
