/* All evidence at a node, the most trusted kind first, blended, corrected, and learned from; the counterpart of mixture.py,
 * interpolation.py and calibration.py, in the same order of operations and so with the same numbers to the last bit. */
#pragma once

#include <math.h>

#include "adjacency.h"
#include "ngrams.h"
#include "suffixes.h"

#define MOST_FOUND 128 /* pieces of evidence at one node */
#define FAILED (-1)

enum { NGRAMS, ADJACENCY, SUFFIXES, TOLD };

/* evidence that Python tells: `ask` fills it in */
typedef struct {
    const int64_t *kinds, *counts;
    const double *totals, *weights; /* weights and tokens: of all pieces, one after another */
    const int64_t *tokens;
} told;

typedef struct {
    int64_t form, first_kind;
    void *of; /* an ngrams, an adjacency, a suffixes or a told */
} voice;

/* how many pieces a voice has to say about a node; FAILED: it raised. Tokens of a share below `crumb` may be left out. */
typedef int64_t (*asking)(int64_t voice, int64_t node, double crumb);

typedef struct {
    double *trust, *trust_hits, *trust_trials;
    double *claimed, *hits, *ratio;
    int64_t buckets;
    double trust_memory, unseen, claim_memory, crumb, least_learned, least_share;
} mixture;

/* tokens are in 32 bits (tables of C) or in 64 (what Python tells) */
typedef struct {
    double trust, total;
    int64_t kind, voice, count;
    const double *weights;
    const int32_t *tokens;
    const int64_t *wide;
} evidence;

typedef struct {
    int64_t count;
    int32_t once[ORDERS]; /* tokens of suffixes that were continued once */
    evidence at[MOST_FOUND];
} evidences;

/* the last tokens before a node's children, and those of them that are below the text; newest first */
typedef struct {
    int64_t count, tokens[TAIL];
    const int64_t *path;
    int64_t path_length;
} recent;

static const double ONE = 1.0;

static inline int64_t token_of(const evidence *e, int64_t i) { return e->wide ? e->wide[i] : e->tokens[i]; }

static int add(evidences *found, const mixture *m, int64_t voice, int64_t kind, double total, int64_t count,
               const double *weights, const int32_t *tokens, const int64_t *wide) {
    if (found->count == MOST_FOUND) return 1;
    found->at[found->count++] = (evidence){m->trust[kind], total, kind, voice, count, weights, tokens, wide};
    return 0;
}

static int add_row(evidences *found, const mixture *m, int64_t voice, int64_t first_kind, const row *r) {
    return add(found, m, voice, first_kind + r->kind, r->total, r->count, r->weights, r->tokens, NULL);
}

static int from_ngrams(evidences *found, const mixture *m, int64_t number, int64_t first_kind, const ngrams *g,
                       const recent *text) {
    const slot *slots[ORDERS];
    int64_t shortest = g->count, hashed = 0;
    hash h = hash_of_nothing();
    while (shortest > 0 && g->orders[shortest - 1] <= text->count) {
        while (hashed < g->orders[shortest - 1]) hash_in(&h, text->tokens[hashed++]);
        const slot *s = find(g->suffixes + shortest - 1, h.key);
        if (!s) break; /* what was not seen is no end of a longer suffix that was */
        slots[--shortest] = s;
    }
    for (int64_t order = shortest; order < g->count; order++) {
        int64_t value = slots[order]->value;
        if (value & 1) {
            if (add_row(found, m, number, first_kind, g->rows + (value >> 1))) return 1;
            continue;
        }
        found->once[order] = (int32_t)(value >> 1);
        if (add(found, m, number, first_kind + order * KINDS, 1.0, 1, &ONE, found->once + order, NULL)) return 1;
    }
    return 0;
}

static int from_adjacency(evidences *found, const mixture *m, int64_t number, int64_t first_kind, const adjacency *a,
                          const recent *text) {
    const slot *s = text->count > 1 ? find(&a->after_pair, pair_key(text->tokens[1], text->tokens[0])) : NULL;
    if (s && add_row(found, m, number, first_kind, &a->pairs[s->value].row)) return 1;
    s = text->count ? find(&a->after_token, token_key(text->tokens[0])) : NULL;
    if (s && add_row(found, m, number, first_kind, a->rows + s->value)) return 1;
    if (!a->common_count) return 0;
    return add(found, m, number, first_kind + 2 * a->sureness, a->common_total, a->common_count, a->common_weights,
               a->common, NULL);
}

static int from_suffixes(evidences *found, const mixture *m, int64_t number, int64_t first_kind, suffixes *s,
                         const recent *text) {
    standing from = stand_behind(s, text->path, text->path_length);
    int64_t at = from.state, length = from.length, sure = 0, sure_length = 0;
    /* what was continued in one way only is no suffix of what was continued in several */
    for (; at > 0 && s->states[at].token != SEVERAL; at = s->states[at].link, length = s->states[at].longest)
        if (s->states[at].token != FREE) {
            sure = at;
            if (!sure_length) sure_length = length;
        }
    if (sure) {
        int64_t total = continued(s, s->states + sure), kind = first_kind + s->kinds[sure_length] + (total != 1);
        s->sure_token = s->states[sure].token;
        s->sure_weight = (double)total;
        if (add(found, m, number, kind, s->sure_weight, 1, &s->sure_weight, &s->sure_token, NULL)) return 1;
    }
    for (int64_t pieces = 0; at > 0 && pieces < s->most_pieces; pieces++) {
        const branch *b = ranking(s, s->states + at);
        if (!b) return 1;
        int64_t kind = first_kind + s->kinds[length] + 2;
        if (add(found, m, number, kind, (double)b->total, b->ranked_count, b->weights, b->ranked, NULL)) return 1;
        at = s->states[at].link;
        length = s->states[at].longest;
    }
    return 0;
}

static int from_told(evidences *found, const mixture *m, int64_t number, int64_t first_kind, const told *t, int64_t pieces) {
    int64_t at = 0;
    for (int64_t i = 0; i < pieces; i++) {
        if (add(found, m, number, first_kind + t->kinds[i], t->totals[i], t->counts[i], t->weights + at, NULL, t->tokens + at))
            return 1;
        at += t->counts[i];
    }
    return 0;
}

/* All evidence at a node, the most trusted first; of equally trusted pieces the one found first. 0 if all went well. */
static int collect(const mixture *m, const voice *voices, int64_t count, const recent *text, asking ask, int64_t node,
                   double crumb, evidences *found) {
    found->count = 0;
    for (int64_t v = 0; v < count; v++) {
        int64_t first = voices[v].first_kind;
        if (voices[v].form == NGRAMS) {
            if (from_ngrams(found, m, v, first, voices[v].of, text)) return 1;
        } else if (voices[v].form == ADJACENCY) {
            if (from_adjacency(found, m, v, first, voices[v].of, text)) return 1;
        } else if (voices[v].form == SUFFIXES) {
            if (from_suffixes(found, m, v, first, voices[v].of, text)) return 1;
        } else {
            int64_t pieces = ask(v, node, crumb);
            if (pieces == FAILED || from_told(found, m, v, first, voices[v].of, pieces)) return 1;
        }
    }
    for (int64_t i = 1; i < found->count; i++) {
        evidence e = found->at[i];
        int64_t at = i;
        for (; at > 0 && found->at[at - 1].trust < e.trust; at--) found->at[at] = found->at[at - 1];
        found->at[at] = e;
    }
    return 0;
}

typedef struct {
    int64_t token, voice;
    double estimate;
} claim;

typedef struct {
    int64_t epoch, claim;
} place;

/* claims in the order in which tokens were first named, found again by token */
typedef struct {
    int64_t count, room, bits, epoch;
    claim *at;
    place *places; /* those of other epochs are free */
} claims;

static void free_claims(claims *c) {
    free(c->at);
    free(c->places);
}

/* empties claims and makes room for so many; 0 if all went well */
static int empty_claims(claims *c, int64_t most) {
    c->count = 0;
    c->epoch++;
    if (most <= c->room) return 0;
    int64_t bits = 7;
    while ((int64_t)1 << bits < 2 * most) bits++;
    free_claims(c);
    *c = (claims){.room = (int64_t)1 << (bits - 1), .bits = bits, .epoch = 1};
    c->at = malloc(c->room * sizeof(claim));
    c->places = calloc(2 * c->room, sizeof(place));
    if (c->at && c->places) return 0;
    c->room = 0;
    return 1;
}

static inline claim *claim_of(claims *c, int64_t token, int64_t voice) {
    int64_t mask = ((int64_t)1 << c->bits) - 1, at = (int64_t)((uint64_t)token * MULTIPLIER >> (64 - c->bits));
    for (; c->places[at].epoch == c->epoch; at = (at + 1) & mask)
        if (c->at[c->places[at].claim].token == token) return c->at + c->places[at].claim;
    c->places[at] = (place){c->epoch, c->count};
    c->at[c->count] = (claim){token, voice, 0.0};
    return c->at + c->count++;
}

/* Estimate of every token whose estimate may reach `least`, and the most trusted voice that names it. 0 if all went well. */
static int blend(const mixture *m, const evidences *found, double least, claims *c) {
    int64_t most = 0;
    for (int64_t i = 0; i < found->count; i++) most += found->at[i].count;
    if (empty_claims(c, most)) return 1;
    double left = 1.0, crumb = m->crumb * least;
    for (int64_t n = 0; n < found->count; n++) {
        const evidence *e = found->at + n;
        double decides = left * e->trust, scale = decides / e->total;
        for (int64_t i = 0; i < e->count; i++) {
            double share = scale * e->weights[i];
            if (share < crumb) break;
            claim_of(c, token_of(e, i), e->voice)->estimate += share;
        }
        left -= decides;
        if (left < least) break;
    }
    return 0;
}

static inline double corrected(const mixture *m, double estimate) {
    double better = estimate * m->ratio[(int64_t)(sqrt(estimate) * m->buckets)];
    return better < 1.0 ? better : 1.0;
}

static void learn_claim(mixture *m, double estimate, int hit) {
    int64_t last = m->buckets - 1, bucket = (int64_t)(sqrt(estimate) * m->buckets);
    if (bucket > last) bucket = last;
    m->claimed[bucket] += estimate;
    m->hits[bucket] += hit;
    if (m->claimed[bucket] > m->claim_memory) {
        m->claimed[bucket] *= 0.5;
        m->hits[bucket] *= 0.5;
    }
    m->ratio[bucket] = m->hits[bucket] / m->claimed[bucket];
    m->ratio[m->buckets] = m->ratio[last];
}

static double share_of(const evidence *e, int64_t token) {
    for (int64_t i = 0; i < e->count; i++)
        if (token_of(e, i) == token) return e->weights[i] / e->total;
    return 0.0;
}

/* one step of expectation-maximisation, see interpolation.py */
static void learn_trust(mixture *m, const evidences *found, int64_t token) {
    double shares[MOST_FOUND], below[MOST_FOUND + 1];
    below[found->count] = m->unseen;
    for (int64_t i = found->count - 1; i >= 0; i--) {
        double weight = m->trust[found->at[i].kind];
        shares[i] = share_of(found->at + i, token);
        below[i] = weight * shares[i] + (1.0 - weight) * below[i + 1];
    }
    double arrived = 1.0;
    for (int64_t i = 0; i < found->count; i++) {
        int64_t kind = found->at[i].kind;
        double responsible = m->trust[kind] * shares[i] / below[i];
        m->trust_hits[kind] += arrived * responsible;
        m->trust_trials[kind] += arrived;
        if (m->trust_trials[kind] > m->trust_memory) {
            m->trust_hits[kind] *= 0.5;
            m->trust_trials[kind] *= 0.5;
        }
        arrived *= 1.0 - responsible;
        if (arrived < 1e-3) break;
    }
    for (int64_t i = 0; i < found->count; i++) {
        int64_t kind = found->at[i].kind;
        m->trust[kind] = m->trust_hits[kind] / m->trust_trials[kind];
    }
}

/* a candidate that waits for its place in the tree, best first; age: of two equal scores the older goes first */
typedef struct {
    double score;
    int64_t parent, token, voice;
} waiting;

static recent behind(const int64_t *tail, int64_t tail_count, const int64_t *path_newest_first, int64_t length) {
    recent text = {.path = path_newest_first, .path_length = length};
    while (text.count < TAIL && text.count < length) {
        text.tokens[text.count] = path_newest_first[text.count];
        text.count++;
    }
    for (int64_t i = tail_count - 1; i >= 0 && text.count < TAIL; i--) text.tokens[text.count++] = tail[i];
    return text;
}
