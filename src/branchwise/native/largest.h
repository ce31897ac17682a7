/* The k largest of numbers that come one by one. Of entries that tie, those with smaller numbers count as larger. */
#pragma once

#include <stdint.h>

#define MOST 64 /* largest k */

typedef struct {
    int64_t count, tokens[MOST];
    float values[MOST]; /* falling */
} largest;

static inline int beats(const largest *p, int64_t at, float value, int64_t token) {
    return value > p->values[at] || (value == p->values[at] && token < p->tokens[at]);
}

/* puts an entry among the k largest so far */
static inline void insert(largest *p, int64_t k, float value, int64_t token) {
    if (p->count == k && !beats(p, k - 1, value, token)) return;
    int64_t at = p->count < k ? p->count++ : k - 1;
    for (; at > 0 && beats(p, at - 1, value, token); at--) {
        p->values[at] = p->values[at - 1];
        p->tokens[at] = p->tokens[at - 1];
    }
    p->values[at] = value;
    p->tokens[at] = token;
}
