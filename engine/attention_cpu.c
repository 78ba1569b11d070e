/* Attention over the paged KV cache, float32: reads K and V where they lie and writes nothing but `output`.
 *
 * One work item is a tile of queries of one sequence for one KV head; its rows are the tile's queries times the query
 * heads that share that KV head. Keys come in tiles of TILE_KEYS with an online softmax (FlashAttention's), rows in
 * blocks of up to four, so that a block's sums stay in registers. Vectors are GCC's, 16 lanes on every CPU. */

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16, TILE_KEYS = 64, TILE_VECTORS = TILE_KEYS / LANES, TILE_ROWS = 128, BLOCK_ROWS = 4 };
enum { MAX_HEAD_DIM = 256, TRANSPOSE_FROM_ROWS = 5 };

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif
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

/* A tile of keys of one sequence and one KV head; past its end the first is repeated, and masked. */
typedef struct {
    const float *key[TILE_KEYS], *next_key[TILE_KEYS]; /* next: those of the tile after it, if there is one */
    int64_t value_offset;
    const float *columns; /* K transposed, [head_dim][TILE_KEYS]; null: scores are made by dot products */
    int first, count;     /* positions */
    int fetch_next;       /* ask for the next tile's memory meanwhile; the first block of rows does */
} keys_t;

INLINE vec load(const float *at) { return *(const vec *)at; }
INLINE void store(float *at, vec value) { *(vec *)at = value; }

/* In each run of 2n lanes: the first halves of a's and b's run; the second halves. */
#define LOW8(a, b) PICK(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define HIGH8(a, b) PICK(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#define LOW4(a, b) PICK(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define HIGH4(a, b) PICK(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define LOW2(a, b) PICK(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH2(a, b) PICK(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define LOW1(a, b) PICK(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define HIGH1(a, b) PICK(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)

/* Lane i is the sum of the lanes of values[i]; they are overwritten. */
INLINE vec sums_of(vec values[LANES]) {
    for (int i = 0; i < 8; i++) values[i] = LOW8(values[i], values[i + 8]) + HIGH8(values[i], values[i + 8]);
    for (int i = 0; i < 4; i++) values[i] = LOW4(values[i], values[i + 4]) + HIGH4(values[i], values[i + 4]);
    for (int i = 0; i < 2; i++) values[i] = LOW2(values[i], values[i + 2]) + HIGH2(values[i], values[i + 2]);
    return LOW1(values[0], values[1]) + HIGH1(values[0], values[1]);
}

#define EXCHANGE(values, n)                                                                    \
    for (int i = 0; i < LANES; i++)                                                            \
        if (!(i & n)) {                                                                        \
            vec low = LOW##n(values[i], values[i + n]), high = HIGH##n(values[i], values[i + n]); \
            values[i] = low;                                                                   \
            values[i + n] = high;                                                              \
        }

/* Lane i of values[j] and lane j of values[i] change places. */
INLINE void transpose(vec values[LANES]) {
    EXCHANGE(values, 8)
    EXCHANGE(values, 4)
    EXCHANGE(values, 2)
    EXCHANGE(values, 1)
}

INLINE float sum_of(vec value) {
    value = LOW8(value, value) + HIGH8(value, value);
    value = LOW4(value, value) + HIGH4(value, value);
    return (value[0] + value[1]) + (value[2] + value[3]);
}

INLINE vec larger(vec a, vec b) {
    ivec is_a = a > b;
    return (vec)(((ivec)a & is_a) | ((ivec)b & ~is_a));
}

INLINE float max_of(vec value) {
    value = larger(LOW8(value, value), HIGH8(value, value));
    value = larger(LOW4(value, value), HIGH4(value, value));
    float a = value[0] > value[1] ? value[0] : value[1], b = value[2] > value[3] ? value[2] : value[3];
    return a > b ? a : b;
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

/* scores[row][key] for few rows: dot products, K straight from the cache. */
INLINE void score_by_dot(int rows, int head_dim, const float *const *query, const keys_t *keys, float scale,
                         float scores[][TILE_KEYS]) {
    for (int first = 0; first < keys->count; first += LANES) {
        for (int row = 0; row < rows; row++) {
            vec sums[LANES] = {0};
            for (int j = 0; j < LANES; j++)
                for (int d = 0; d < head_dim; d += LANES)
                    sums[j] += load(query[row] + d) * load(keys->key[first + j] + d);
            store(scores[row] + first, sums_of(sums) * scale);
        }
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
    float shrink = before == now ? 1.0f : expf(before - now);
    *maximum = now;
    *total = *total * shrink + sum_of(sums);
    return shrink;
}

/* output[row] = output[row] * shrink[row] + weights[row] . V, for `vectors` vectors of the head from `d` on. */
INLINE void add_values(int rows, int vectors, int d, const keys_t *keys, float weights[][TILE_KEYS],
                       const float *shrink, float *const *output) {
    vec sums[BLOCK_ROWS][4];
    for (int row = 0; row < rows; row++)
        for (int v = 0; v < vectors; v++) sums[row][v] = load(output[row] + d + v * LANES) * shrink[row];
    for (int j = 0; j < keys->count; j++)
        for (int v = 0; v < vectors; v++) {
            const float *key = keys->key[j] + d + v * LANES, *next_key = keys->next_key[j] + d + v * LANES;
            if (keys->fetch_next) __builtin_prefetch(next_key), __builtin_prefetch(next_key + keys->value_offset);
            vec value = load(key + keys->value_offset);
            for (int row = 0; row < rows; row++) sums[row][v] += weights[row][j] * value;
        }
    for (int row = 0; row < rows; row++)
        for (int v = 0; v < vectors; v++) store(output[row] + d + v * LANES, sums[row][v]);
}

INLINE void attend_block(const batch_t *batch, int rows, int head_dim, const keys_t *keys, const float *const *query,
                         const int *positions, float *maxima, float *totals, float *const *output) {
    float scores[BLOCK_ROWS][TILE_KEYS], shrink[BLOCK_ROWS];
    if (keys->columns)
        score_by_column(rows, head_dim, query, keys->columns, batch->scale, scores);
    else
        score_by_dot(rows, head_dim, query, keys, batch->scale, scores);
    for (int row = 0; row < rows; row++)
        shrink[row] = soften(scores[row], positions[row] + 1 - keys->first, maxima + row, totals + row);
    int d = 0;
    for (; d + 4 * LANES <= head_dim; d += 4 * LANES)
        add_values(rows, 4, d, keys, scores, shrink, output);
    for (; d < head_dim; d += LANES) add_values(rows, 1, d, keys, scores, shrink, output);
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

static const float *find_key(const batch_t *batch, const int32_t *table, int kv_head, int position) {
    int block = position / batch->block_size, slot = position % batch->block_size;
    return batch->cache + table[block] * batch->block_stride +
           ((int64_t)kv_head * batch->block_size + slot) * batch->head_dim;
}

static void find_keys(const batch_t *batch, const int32_t *table, int kv_head, int first, int end, keys_t *keys) {
    keys->first = first;
    keys->count = end - first < TILE_KEYS ? end - first : TILE_KEYS;
    for (int j = 0; j < TILE_KEYS; j++) {
        keys->key[j] = find_key(batch, table, kv_head, first + (j < keys->count ? j : 0));
        int next = first + TILE_KEYS + j;
        keys->next_key[j] = next < end ? find_key(batch, table, kv_head, next) : keys->key[j];
    }
}

static void make_columns(const keys_t *keys, int head_dim, float *columns) {
    for (int d = 0; d < head_dim; d += LANES)
        for (int j = 0; j < TILE_KEYS; j += LANES) {
            vec values[LANES];
            for (int i = 0; i < LANES; i++) values[i] = load(keys->key[j + i] + d);
            transpose(values);
            for (int i = 0; i < LANES; i++) store(columns + (d + i) * TILE_KEYS + j, values[i]);
        }
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
    keys_t keys = {.value_offset = batch->value_offset, .columns = rows >= TRANSPOSE_FROM_ROWS ? columns : 0};
    const int last = offset + first_query + num_queries; /* one past the last visible position */
    for (int first = 0; first < last; first += TILE_KEYS) {
        find_keys(batch, table, kv_head, first, last, &keys);
        if (keys.columns) make_columns(&keys, batch->head_dim, columns);
        keys.fetch_next = 1;
        int row = 0;
        for (; row + 4 <= rows; row += 4, keys.fetch_next = 0)
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
