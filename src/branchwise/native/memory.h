/* Memory that a thread keeps for its next task, memory that a caller gives for one call, and sizes. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

static int64_t padded(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

/* at least so many floats, 64 bytes aligned; NULL when there is none. What was there before is lost */
static float *reserve(size_t floats) {
    static __thread float *memory;
    static __thread size_t size;
    if (floats > size) {
        free(memory);
        if (posix_memalign((void **)&memory, 64, 4 * floats)) memory = NULL;
        size = memory ? floats : 0;
    }
    return memory;
}

/* places of so many floats each, one after another and 64 bytes aligned, in what `reserve` gives; 0 when there is none */
static int reserve_places(const int64_t *sizes, int count, float **places) {
    int64_t all = 0;
    for (int i = 0; i < count; i++) all += padded(sizes[i], 16);
    float *memory = reserve(all);
    if (!memory) return 0;
    for (int i = 0; i < count; i++) {
        places[i] = memory;
        memory += padded(sizes[i], 16);
    }
    return 1;
}

/* memory of one call, given out from front to end */
typedef struct {
    char *memory;
    int64_t bytes, used;
} arena;

/* the next bytes; an address that may not be used where there is not enough, which `used` tells then */
static void *take(arena *a, int64_t bytes) {
    char *at = a->memory + a->used;
    a->used += padded(bytes, 64);
    return at;
}
