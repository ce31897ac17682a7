/* The matrix unit (AMX), whose eight registers hold tiles of 16 rows of 64 bytes, and what else multiplies bfloat16.
 * Defines HAS_AMX where the processor and the compiler have it. Knows no attention. */
#pragma once

#include "vectors.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define HAS_AMX 1

#include <sys/syscall.h>
#include <unistd.h>

typedef struct __attribute__((packed)) {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shape;

/* eight tiles of 16 rows of 64 bytes */
static void open_tiles(void) {
    tile_shape shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.row_bytes[i] = 64;
        shape.rows[i] = 16;
    }
    _tile_loadconfig(&shape);
}

static int may_use_tiles(void) {
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}
#endif

/* how bfloat16 is multiplied: 0 as float32, 1 in pairs, 2 in tiles */
int bfloat16_way(void) {
#if defined(HAS_AMX)
    if (may_use_tiles()) return 2;
#endif
#if defined(__AVX512BF16__)
    return 1;
#else
    return 0;
#endif
}
