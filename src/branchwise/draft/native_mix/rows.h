/* Rows of what may follow a context, found by the context's hash. Knows no text.
 *
 *     slots   | key, value | empty | key, value | ...        open addressing, a key lies at or behind its home
 *     rows    | kind, count, total, tokens[KEPT], weights[KEPT] | ...
 */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define KEPT 8 /* tokens of a row */
#define FREE (-1)
#define MULTIPLIER 0x9E3779B97F4A7C15ull /* odd, without a pattern in its bits: the golden ratio's fraction */

typedef struct {
    int64_t kind, count;
    double total, weights[KEPT];
    int32_t tokens[KEPT];
} row;

typedef struct {
    uint64_t key;
    int64_t value; /* FREE: nothing lies here */
} slot;

typedef struct {
    slot *slots;
    int64_t bits, used;
} map;

/* hash of a context, from its last token back: sum of token i times MULTIPLIER^(i + 1) */
typedef struct {
    uint64_t key, factor;
} hash;

static inline hash hash_of_nothing(void) { return (hash){0, 1}; }

static inline void hash_in(hash *h, int64_t token) {
    h->factor *= MULTIPLIER;
    h->key += (uint64_t)token * h->factor;
}

static inline int64_t home(const map *m, uint64_t key) { return (int64_t)(key * MULTIPLIER >> (64 - m->bits)); }

/* where a key lies, or where it would be put; the map has a free slot */
static inline slot *slot_of(const map *m, uint64_t key) {
    int64_t mask = ((int64_t)1 << m->bits) - 1, at = home(m, key);
    while (m->slots[at].value != FREE && m->slots[at].key != key) at = (at + 1) & mask;
    return m->slots + at;
}

/* the key's slot if it has one */
static inline const slot *find(const map *m, uint64_t key) {
    if (!m->used) return NULL;
    const slot *s = slot_of(m, key);
    return s->value == FREE ? NULL : s;
}

static int grow_map(map *m) {
    map larger = {NULL, m->slots ? m->bits + 1 : 6, m->used};
    int64_t count = (int64_t)1 << larger.bits;
    larger.slots = malloc(count * sizeof(slot));
    if (!larger.slots) return 1;
    for (int64_t i = 0; i < count; i++) larger.slots[i].value = FREE;
    for (int64_t i = 0; m->slots && i < (int64_t)1 << m->bits; i++)
        if (m->slots[i].value != FREE) *slot_of(&larger, m->slots[i].key) = m->slots[i];
    free(m->slots);
    *m = larger;
    return 0;
}

/* the key's slot, a free one if it is new (the caller then fills it); NULL without memory. At most half of a map is used */
static inline slot *put(map *m, uint64_t key) {
    if ((!m->slots || 2 * m->used >= (int64_t)1 << m->bits) && grow_map(m)) return NULL;
    slot *s = slot_of(m, key);
    if (s->value == FREE) {
        s->key = key;
        m->used++;
    }
    return s;
}

/* takes a key out; later ones of its run move up, so that no search stops short of them */
static void take_out(map *m, uint64_t key) {
    int64_t mask = ((int64_t)1 << m->bits) - 1, hole = slot_of(m, key) - m->slots;
    m->used--;
    for (int64_t at = (hole + 1) & mask; m->slots[at].value != FREE; at = (at + 1) & mask) {
        if (((at - home(m, m->slots[at].key)) & mask) < ((at - hole) & mask)) continue; /* it would lie before its home */
        m->slots[hole] = m->slots[at];
        hole = at;
    }
    m->slots[hole].value = FREE;
}

/* makes room for one more of count things; 0 if all went well */
static inline int make_room(void **things, int64_t count, int64_t *room, int64_t size) {
    if (count < *room) return 0;
    int64_t more = *room ? 2 * *room : 64;
    void *moved = realloc(*things, more * size);
    if (!moved) return 1;
    *things = moved;
    *room = more;
    return 0;
}
