/* All substrings of one text and what followed them; the counterpart of suffix_automaton.py, with the same counts. */
#pragma once

#include "rows.h"

#define SEVERAL (-2)
#define STALE_SHIFT 4 /* a ranking is made anew once its context was continued more often by 1 / 16 */
#define KEPT_PATH 256 /* tokens of a path whose places are remembered */

typedef struct {
    int32_t token, target;
} move;

/* the moves of a state that was continued in several ways, in the order of their first use, and how often each was */
typedef struct {
    move *moves;
    int64_t count, room;
    int32_t *ranked; /* tokens, falling by weight, new ones before old ones among equals */
    double *weights;
    int64_t ranked_count, ranked_room, total; /* total: of the weights when they were counted; FREE: they never were */
} branch;

typedef struct {
    int32_t link, longest, count, latest;
    int32_t token, target; /* the one move; or FREE; or SEVERAL and the number of the branch */
} state;

/* where a reader is: a state, and the number of tokens of the context it read last */
typedef struct {
    int64_t state, length;
} standing;

typedef struct {
    int64_t most_context, most_pieces, *kinds; /* first kind of evidence of a context of each length */
    state *states;
    branch *branches;
    int64_t state_count, state_room, branch_count, branch_room;
    map several; /* state and token -> number of the move in the state's branch */
    int64_t last, length;
    standing counted; /* the longest suffix that is counted */
    /* the path below the text that was read last: readers come back for its children */
    int64_t path[KEPT_PATH], path_length;
    standing places[KEPT_PATH + 1];
    int32_t sure_token; /* of the piece of evidence that names one */
    double sure_weight;
} suffixes;

static int64_t new_state(suffixes *s, int64_t longest) {
    if (make_room((void **)&s->states, s->state_count, &s->state_room, sizeof(state))) return FREE;
    s->states[s->state_count] = (state){.longest = (int32_t)longest, .token = FREE};
    return s->state_count++;
}

static int64_t new_branch(suffixes *s) {
    if (make_room((void **)&s->branches, s->branch_count, &s->branch_room, sizeof(branch))) return FREE;
    s->branches[s->branch_count] = (branch){.total = FREE};
    return s->branch_count++;
}

void suffixes_free(suffixes *s) {
    for (int64_t i = 0; i < s->branch_count; i++) {
        free(s->branches[i].moves);
        free(s->branches[i].ranked);
        free(s->branches[i].weights);
    }
    free(s->branches);
    free(s->states);
    free(s->several.slots);
    free(s->kinds);
    free(s);
}

suffixes *suffixes_new(int64_t most_context, int64_t most_pieces, const int64_t *kinds) {
    suffixes *s = calloc(1, sizeof(suffixes));
    if (!s) return NULL;
    s->most_context = most_context;
    s->most_pieces = most_pieces;
    s->kinds = malloc((most_context + 1) * sizeof(int64_t));
    if (!s->kinds || new_state(s, 0) == FREE) {
        suffixes_free(s);
        return NULL;
    }
    memcpy(s->kinds, kinds, (most_context + 1) * sizeof(int64_t));
    s->states[0].link = FREE;
    return s;
}

/* exact, so that no two are alike */
static inline uint64_t move_key(int64_t at, int64_t token) { return (uint64_t)at << 32 | (uint64_t)token; }

static int64_t target_of(const suffixes *s, int64_t at, int64_t token) {
    const state *one = s->states + at;
    if (one->token == token) return one->target;
    if (one->token != SEVERAL) return FREE;
    const slot *found = find(&s->several, move_key(at, token));
    return found ? s->branches[one->target].moves[found->value].target : FREE;
}

/* a further move of a state's branch; 0 if all went well */
static int join_moves(suffixes *s, int64_t at, int64_t number, move fresh) {
    branch *b = s->branches + number;
    if (make_room((void **)&b->moves, b->count, &b->room, sizeof(move))) return 1;
    slot *place = put(&s->several, move_key(at, fresh.token));
    if (!place) return 1;
    place->value = b->count;
    b->moves[b->count++] = fresh;
    return 0;
}

/* of a state that has no move on the token; 0 if all went well */
static int add_move(suffixes *s, int64_t at, move fresh) {
    state *one = s->states + at;
    if (one->token == FREE) {
        one->token = fresh.token;
        one->target = fresh.target;
        return 0;
    }
    if (one->token != SEVERAL) {
        move first = {one->token, one->target};
        int64_t number = new_branch(s);
        if (number == FREE || join_moves(s, at, number, first)) return 1;
        one->token = SEVERAL;
        one->target = (int32_t)number;
    }
    return join_moves(s, at, one->target, fresh);
}

static void lead_elsewhere(suffixes *s, int64_t at, int64_t token, int64_t target) {
    state *one = s->states + at;
    if (one->token != SEVERAL) one->target = (int32_t)target;
    else s->branches[one->target].moves[find(&s->several, move_key(at, token))->value].target = (int32_t)target;
}

/* a state of its own for what `shorter` and its suffixes spell with the token, so far part of `at`; FREE without memory */
static int64_t split(suffixes *s, int64_t at, int64_t shorter, int64_t token) {
    int64_t copy = new_state(s, s->states[shorter].longest + 1);
    if (copy == FREE) return FREE;
    state *old = s->states + at, *fresh = s->states + copy;
    fresh->link = old->link;
    fresh->count = old->count;
    fresh->latest = old->latest;
    fresh->token = old->token;
    fresh->target = old->target;
    if (old->token == SEVERAL) {
        int64_t number = new_branch(s);
        if (number == FREE) return FREE;
        fresh->target = (int32_t)number;
        for (int64_t i = 0; i < s->branches[old->target].count; i++)
            if (join_moves(s, copy, number, s->branches[old->target].moves[i])) return FREE;
    }
    old->link = (int32_t)copy;
    for (; shorter >= 0 && target_of(s, shorter, token) == at; shorter = s->states[shorter].link)
        lead_elsewhere(s, shorter, token, copy);
    return copy;
}

static int append(suffixes *s, int64_t token) {
    int64_t fresh = new_state(s, ++s->length), at = s->last;
    if (fresh == FREE) return 1;
    s->last = fresh;
    for (; at >= 0 && target_of(s, at, token) == FREE; at = s->states[at].link)
        if (add_move(s, at, (move){(int32_t)token, (int32_t)fresh})) return 1;
    if (at < 0) return 0;
    int64_t known = target_of(s, at, token);
    if (s->states[known].longest != s->states[at].longest + 1) known = split(s, known, at, token);
    s->states[fresh].link = (int32_t)known;
    return known == FREE;
}

/* the place of the last tokens of what a state spells */
static standing shortened(const suffixes *s, int64_t at, int64_t length) {
    while (at && s->states[s->states[at].link].longest >= length) at = s->states[at].link;
    return (standing){at, length};
}

static void count_suffixes(suffixes *s, int64_t token) {
    int64_t length = s->counted.length, most = s->most_context + 1;
    s->counted = shortened(s, target_of(s, s->counted.state, token), length < most ? length + 1 : most);
    for (int64_t at = s->counted.state; at; at = s->states[at].link) {
        s->states[at].count++;
        s->states[at].latest = (int32_t)s->length;
    }
}

/* the longest suffix of the text that occurred before */
static standing end_of_text(const suffixes *s) {
    int64_t before = s->states[s->last].link;
    if (before < 0) return (standing){0, 0};
    int64_t length = s->states[before].longest;
    if (length <= s->most_context) return (standing){before, length};
    return shortened(s, s->counted.state, s->most_context);
}

/* takes in tokens that follow those seen so far; 0 if all went well */
int suffixes_extend(suffixes *s, const int64_t *tokens, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (append(s, tokens[i])) return 1;
        count_suffixes(s, tokens[i]);
    }
    s->path_length = 0;
    s->places[0] = end_of_text(s);
    return 0;
}

/* the longest known context after one more token */
static standing advance(const suffixes *s, standing from, int64_t token) {
    int64_t target = target_of(s, from.state, token);
    while (target == FREE) {
        from.state = s->states[from.state].link;
        if (from.state < 0) return (standing){0, 0};
        from.length = s->states[from.state].longest;
        target = target_of(s, from.state, token);
    }
    return from.length < s->most_context ? (standing){target, from.length + 1} : shortened(s, target, s->most_context);
}

/* behind a path below the text, newest token first */
static standing stand_behind(suffixes *s, const int64_t *path, int64_t length) {
    int64_t same = 0;
    while (same < s->path_length && same < length && s->path[same] == path[length - 1 - same]) same++;
    standing at = s->places[same];
    if (same < length) s->path_length = length < KEPT_PATH ? length : KEPT_PATH;
    for (; same < length; same++) {
        at = advance(s, at, path[length - 1 - same]);
        if (same >= KEPT_PATH) continue;
        s->path[same] = path[length - 1 - same];
        s->places[same + 1] = at;
    }
    return at;
}

typedef struct {
    int64_t weight, number;
    int32_t token;
} counted_move;

static int by_weight(const void *one, const void *other) {
    const counted_move *a = one, *b = other;
    if (a->weight != b->weight) return a->weight < b->weight ? 1 : -1;
    return a->number < b->number ? 1 : -1;
}

/* counts what followed a state; 0 if all went well */
static int rank(const suffixes *s, branch *b, int64_t total) {
    counted_move *counted = malloc(b->count * sizeof(counted_move));
    if (!counted) return 1;
    if (b->count > b->ranked_room) {
        int32_t *ranked = realloc(b->ranked, b->room * sizeof(int32_t));
        if (ranked) b->ranked = ranked;
        double *weights = realloc(b->weights, b->room * sizeof(double));
        if (weights) b->weights = weights;
        if (!ranked || !weights) {
            free(counted);
            return 1;
        }
        b->ranked_room = b->room;
    }
    for (int64_t i = 0; i < b->count; i++)
        counted[i] = (counted_move){s->states[b->moves[i].target].count, i, b->moves[i].token};
    qsort(counted, b->count, sizeof(counted_move), by_weight);
    for (int64_t i = 0; i < b->count; i++) {
        b->ranked[i] = counted[i].token;
        b->weights[i] = (double)counted[i].weight;
    }
    free(counted);
    b->ranked_count = b->count;
    b->total = total;
    return 0;
}

/* how often a state's context was continued: the end of the text is an occurrence, too, but nothing follows it yet */
static int64_t continued(const suffixes *s, const state *one) { return one->count - (one->latest == s->length); }

/* what followed a state that has several moves; NULL without memory */
static const branch *ranking(const suffixes *s, const state *one) {
    branch *b = s->branches + one->target;
    int64_t total = continued(s, one);
    if ((b->total == FREE || total - b->total > b->total >> STALE_SHIFT) && rank(s, b, total)) return NULL;
    return b;
}

/* the first fault of links, moves, lengths and counts that do not fit together, by number; 0 for none */
int64_t suffixes_check(const suffixes *s) {
    const state *states = s->states;
    if (s->state_count > (s->length > 1 ? 2 * s->length : 2)) return 1;
    if (states[s->last].longest != s->length) return 2;
    for (int64_t at = 0; at < s->state_count; at++) {
        if (at && states[states[at].link].longest >= states[at].longest) return 3;
        move only = {states[at].token, states[at].target};
        int several = only.token == SEVERAL;
        int64_t count = several ? s->branches[only.target].count : only.token != FREE;
        const move *moves = several ? s->branches[only.target].moves : &only;
        for (int64_t i = 0; i < count; i++) {
            const state *target = states + moves[i].target;
            if (target_of(s, at, moves[i].token) != moves[i].target) return 4;
            if (target->longest <= states[at].longest) return 5;
            if (at && states[target->link].longest > states[states[at].link].longest + 1) return 6;
        }
        if (at && states[states[at].link].longest <= s->most_context && states[at].count < 1) return 7;
    }
    return 0;
}
