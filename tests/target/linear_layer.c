/* One linear layer of the native engine by itself, for test_linear_layers.py. */
#include "strips.h"

/* to [rows, outputs] = x [rows, count] W, multiplied as a decoder with these products does it */
void linear_layer(const matrix *w, const float *x, int64_t rows, int64_t count, int64_t products, float *to) {
    int way = way_of(products);
    int64_t steps = padded(count, 32) / 32, strip_floats = STRIP * padded(rows, CHUNK);
    char *numbers = aligned_alloc(64, padded(numbers_bytes(way, padded(rows, 32), count), 64));
    float *mine = aligned_alloc(64, padded(4 * (1024 * steps + strip_floats), 64));
#if defined(HAS_AMX)
    if (way == IN_TILES) open_tiles();
#endif
    for (int64_t first = 0; first < rows; first += 16)
        put_rows(numbers, first, rows - first < 16 ? rows - first : 16, steps, x + first * count, count, way);
    strip_phase(way, w, numbers, rows, STORE, to, mine);
#if defined(HAS_AMX)
    if (way == IN_TILES) _tile_release();
#endif
    free(mine);
    free(numbers);
}
