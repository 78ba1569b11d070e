/* Attention over the paged KV cache, float32: reads K and V where they lie and writes nothing but `output`.
 *
 * One work item is a tile of queries of one sequence for one KV head; its rows are the tile's queries times the query
 * heads that share that KV head. Keys come in tiles of TILE_KEYS with an online softmax (FlashAttention's), rows in
 * blocks of up to four, so that a block's sums stay in registers. */

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16, TILE_KEYS = 64, TILE_VECTORS = TILE_KEYS / LANES, TILE_ROWS = 128, BLOCK_ROWS = 4 };
enum { MAX_HEAD_DIM = 256, TRANSPOSE_FROM_ROWS = 12 };

#define INLINE static inline __attribute__((always_inline))
typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(64), aligned(4), may_alias));

typedef struct {
    const float *query;  /* [rows, heads, head_dim] */
    const float *cache;  /* this layer's K in block 0 */
    float *output;       /* like query */
    const int32_t *block_tables, *sequence_lengths, *query_starts;
    int64_t block_stride, value_offset; /* floats: from block to block, from K to V */
    int32_t table_width, num_sequences, num_heads, num_kv_heads, head_dim, block_size;
    float scale;
} batch_t;

INLINE vec load(const float *at) { return *(const vec *)at; }
INLINE void store(float *at, vec value) { *(vec *)at = value; }

INLINE float sum_of(vec value) {
    float part[LANES];
    memcpy(part, &value, sizeof part);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) part[i] += part[i + width];
    return part[0];
}

INLINE float max_of(vec value) {
    float part[LANES];
    memcpy(part, &value, sizeof part);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) part[i] = part[i] > part[i + width] ? part[i] : part[i + width];
    return part[0];
}

INLINE vec larger(vec a, vec b) {
    ivec is_a = a > b;
    return (vec)(((ivec)a & is_a) | ((ivec)b & ~is_a));
}

/* e^x for x <= 0, to about 2 units in the last place; 0 below -87. */
INLINE vec exponential(vec x) {
    const vec lowest = (vec){0} - 87.0f, magic = (vec){0} + 12582912.0f; /* 1.5 * 2^23 rounds to an integer */
    ivec in_range = x >= lowest;
    x = larger(x, lowest);
    vec n = (x * 1.44269504f + magic) - magic;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
    return (vec)((ivec)(p * (vec)power) & in_range);
}

/* scores[row][key] for few rows: one dot product each, K read once and straight from the cache. */
INLINE void score_by_dot(int rows, int head_dim, const float *const *query, const float *const *key, int num_keys,
                         float scale, float scores[][TILE_KEYS]) {
    for (int j = 0; j < num_keys; j++) {
        vec sums[BLOCK_ROWS] = {0};
        for (int d = 0; d < head_dim; d += LANES) {
            vec k = load(key[j] + d);
            for (int row = 0; row < rows; row++) sums[row] += load(query[row] + d) * k;
        }
        for (int row = 0; row < rows; row++) scores[row][j] = sum_of(sums[row]) * scale;
    }
}

/* The same for many rows, with K transposed once for all of them: [head_dim][TILE_KEYS]. */
INLINE void score_by_column(int rows, int head_dim, const float *const *query, const float *columns, float scale,
                            float scores[][TILE_KEYS]) {
    vec sums[BLOCK_ROWS][TILE_VECTORS] = {0};
    for (int d = 0; d < head_dim; d++) {
        const float *k = columns + d * TILE_KEYS;
        for (int row = 0; row < rows; row++)
            for (int v = 0; v < TILE_VECTORS; v++) sums[row][v] += query[row][d] * load(k + v * LANES);
    }
    for (int row = 0; row < rows; row++)
        for (int v = 0; v < TILE_VECTORS; v++) store(scores[row] + v * LANES, sums[row][v] * scale);
}

/* Turns a row's scores into weights relative to its new maximum; returns by how much its older sums shrink. */
INLINE float soften(float *scores, int visible, float *maximum, float *total) {
    for (int j = visible < 0 ? 0 : visible; j < TILE_KEYS; j++) scores[j] = -1e30f;
    vec highest = load(scores), sums = {0};
    for (int v = 1; v < TILE_VECTORS; v++) highest = larger(highest, load(scores + v * LANES));
    float before = *maximum, now = max_of(highest);
    now = now > before ? now : before;
    for (int v = 0; v < TILE_VECTORS; v++) {
        vec weight = exponential(load(scores + v * LANES) - now);
        store(scores + v * LANES, weight);
        sums += weight;
    }
    float shrink = expf(before - now);
    *maximum = now;
    *total = *total * shrink + sum_of(sums);
    return shrink;
}

/* output[row] = output[row] * shrink[row] + weights[row] . V, for `vectors` vectors of the head from `d` on. */
INLINE void add_values(int rows, int vectors, int d, const float *const *value, int num_keys,
                       float weights[][TILE_KEYS], const float *shrink, float *const *output) {
    vec sums[BLOCK_ROWS][4];
    for (int row = 0; row < rows; row++)
        for (int v = 0; v < vectors; v++) sums[row][v] = load(output[row] + d + v * LANES) * shrink[row];
    for (int j = 0; j < num_keys; j++)
        for (int v = 0; v < vectors; v++) {
            vec part = load(value[j] + d + v * LANES);
            for (int row = 0; row < rows; row++) sums[row][v] += weights[row][j] * part;
        }
    for (int row = 0; row < rows; row++)
        for (int v = 0; v < vectors; v++) store(output[row] + d + v * LANES, sums[row][v]);
}

typedef struct {
    const float *key[TILE_KEYS], *value[TILE_KEYS];
    const float *columns; /* null: score by dot products */
    int first, count;     /* positions */
} keys_t;

INLINE void attend_block(const batch_t *batch, int rows, int head_dim, const keys_t *keys, const float *const *query,
                         const int *positions, float *maxima, float *totals, float *const *output) {
    float scores[BLOCK_ROWS][TILE_KEYS], shrink[BLOCK_ROWS];
    if (keys->columns)
        score_by_column(rows, head_dim, query, keys->columns, batch->scale, scores);
    else
        score_by_dot(rows, head_dim, query, keys->key, keys->count, batch->scale, scores);
    for (int row = 0; row < rows; row++)
        shrink[row] = soften(scores[row], positions[row] + 1 - keys->first, maxima + row, totals + row);
    int d = 0;
    for (; d + 4 * LANES <= head_dim; d += 4 * LANES)
        add_values(rows, 4, d, keys->value, keys->count, scores, shrink, output);
    for (; d < head_dim; d += LANES) add_values(rows, 1, d, keys->value, keys->count, scores, shrink, output);
}

INLINE void attend_rows(const batch_t *batch, int rows, const keys_t *keys, const float *const *query,
                        const int *positions, float *maxima, float *totals, float *const *output) {
    if (batch->head_dim == 64)
        attend_block(batch, rows, 64, keys, query, positions, maxima, totals, output);
    else if (batch->head_dim == 128)
        attend_block(batch, rows, 128, keys, query, positions, maxima, totals, output);
    else
        attend_block(batch, rows, batch->head_dim, keys, query, positions, maxima, totals, output);
}

/* Points at the tile's keys and values; those past its end repeat the first, and are masked. */
static void find_keys(const batch_t *batch, const int32_t *table, int kv_head, int first, int end, float *columns,
                      keys_t *keys) {
    const int64_t head = (int64_t)kv_head * batch->block_size * batch->head_dim;
    keys->first = first;
    keys->count = end - first < TILE_KEYS ? end - first : TILE_KEYS;
    for (int j = 0; j < TILE_KEYS; j++) {
        int position = first + (j < keys->count ? j : 0);
        const float *block = batch->cache + table[position / batch->block_size] * batch->block_stride + head;
        keys->key[j] = block + (position % batch->block_size) * batch->head_dim;
        keys->value[j] = keys->key[j] + batch->value_offset;
    }
    keys->columns = columns;
    for (int d = 0; columns && d < batch->head_dim; d += LANES)
        for (int j = 0; j < TILE_KEYS; j++)
            for (int i = 0; i < LANES; i++) columns[(d + i) * TILE_KEYS + j] = keys->key[j][d + i];
}

static void attend_tile(const batch_t *batch, int sequence, int kv_head, int first_query, int num_queries) {
    const int group = batch->num_heads / batch->num_kv_heads, rows = num_queries * group;
    const int start = batch->query_starts[sequence], end = batch->query_starts[sequence + 1];
    const int offset = batch->sequence_lengths[sequence] - (end - start); /* position of the sequence's first query */
    const int32_t *table = batch->block_tables + (int64_t)sequence * batch->table_width;
    const float *query[TILE_ROWS];
    float *output[TILE_ROWS], maxima[TILE_ROWS], totals[TILE_ROWS], columns[MAX_HEAD_DIM * TILE_KEYS];
    int positions[TILE_ROWS];
    for (int row = 0; row < rows; row++) {
        int index = first_query + row / group;
        int64_t at = ((int64_t)(start + index) * batch->num_heads + kv_head * group + row % group) * batch->head_dim;
        query[row] = batch->query + at;
        output[row] = batch->output + at;
        positions[row] = offset + index;
        maxima[row] = -1e30f;
        totals[row] = 0.0f;
        memset(output[row], 0, sizeof(float) * batch->head_dim);
    }
    keys_t keys;
    const int last = positions[rows - 1] + 1;
    for (int first = 0; first < last; first += TILE_KEYS) {
        find_keys(batch, table, kv_head, first, last, rows >= TRANSPOSE_FROM_ROWS ? columns : 0, &keys);
        int row = 0;
        for (; row + 4 <= rows; row += 4)
            attend_rows(batch, 4, &keys, query + row, positions + row, maxima + row, totals + row, output + row);
        if (rows - row == 3)
            attend_rows(batch, 3, &keys, query + row, positions + row, maxima + row, totals + row, output + row);
        else if (rows - row == 2)
            attend_rows(batch, 2, &keys, query + row, positions + row, maxima + row, totals + row, output + row);
        else if (rows - row == 1)
            attend_rows(batch, 1, &keys, query + row, positions + row, maxima + row, totals + row, output + row);
    }
    for (int row = 0; row < rows; row++)
        for (int d = 0; d < batch->head_dim; d += LANES)
            store(output[row] + d, load(output[row] + d) / totals[row]);
}

/* Every num_threads-th work item, from `thread` on. Needs head_dim % 16 == 0, head_dim <= 256, group <= 128. */
void paged_attention(const batch_t *batch, int thread, int num_threads) {
    const int group = batch->num_heads / batch->num_kv_heads, tile = TILE_ROWS / group;
    int item = 0;
    for (int sequence = 0; sequence < batch->num_sequences; sequence++) {
        int num_queries = batch->query_starts[sequence + 1] - batch->query_starts[sequence];
        for (int first = 0; first < num_queries; first += tile)
            for (int kv_head = 0; kv_head < batch->num_kv_heads; kv_head++)
                if (item++ % num_threads == thread)
                    attend_tile(batch, sequence, kv_head, first,
                                num_queries - first < tile ? num_queries - first : tile);
    }
}
