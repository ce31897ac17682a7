/* Growing draft trees from the blend of several sources, and learning what they were worth.
 *
 * Knows tables of C and what Python tells; shapes, names and errors are native_mixture.py's. One thread at a time.
 */
#include "mixture.h"

/* the best `width` of the claims at the front, falling, of equal ones the first named first */
static void best_first(claims *c, int64_t width) {
    for (int64_t n = 0; n < c->count && n < width; n++) {
        int64_t best = n;
        for (int64_t i = n + 1; i < c->count; i++)
            if (c->at[i].estimate > c->at[best].estimate) best = i;
        claim chosen = c->at[best];
        memmove(c->at + n + 1, c->at + n, (best - n) * sizeof(claim)); /* the others keep their order */
        c->at[n] = chosen;
    }
    if (c->count > width) c->count = width;
}

/* puts a candidate behind all that are no worse; the queue holds `count` */
static void wait_in_line(waiting *queue, int64_t count, waiting candidate) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (queue[middle].score >= candidate.score) low = middle + 1;
        else high = middle;
    }
    memmove(queue + low + 1, queue + low, (count - low) * sizeof(waiting));
    queue[low] = candidate;
}

/* The tree of at most `budget` nodes with the largest sum of scores; see best_first.py for the rule.
 *
 * tail: the last tokens of the text, the root the last of them; most_depth, width: -1 for no limit. Fills tokens, parents,
 * scores and voices [budget], of which the root's are there already; a node's are filled before `ask` is called for it.
 * Returns the number of nodes; FAILED: no memory, or a voice raised. */
int64_t mix_grow(const mixture *m, const voice *voices, int64_t voice_count, const int64_t *tail, int64_t tail_count,
                 int64_t budget, int64_t most_depth, int64_t vocab_size, int64_t width, asking ask, int64_t *tokens,
                 int64_t *parents, double *scores, int64_t *names) {
    int64_t places = budget - 1, waits = 0, nodes = 1;
    claims c = {0};
    evidences found;
    waiting *queue = malloc((places + 1) * sizeof(waiting));
    int64_t *depth = malloc(budget * sizeof(int64_t)), *path = malloc(budget * sizeof(int64_t));
    if (!queue || !depth || !path) goto failed;
    depth[0] = 0;
    double least_score = m->least_share / budget;
    for (int64_t node = 0; node < places; node++) {
        if (most_depth < 0 || depth[node] < most_depth) {
            double score = scores[node], least = least_score / score;
            int64_t length = 0;
            for (int64_t at = node; at > 0; at = parents[at]) path[length++] = tokens[at];
            recent text = behind(tail, tail_count, path, length);
            if (collect(m, voices, voice_count, &text, ask, node, m->crumb * least, &found) || blend(m, &found, least, &c)) goto failed;
            for (int64_t i = 0; i < c.count; i++) c.at[i].estimate = corrected(m, c.at[i].estimate);
            if (width >= 0) best_first(&c, width);
            for (int64_t i = 0; i < c.count; i++) {
                const claim *one = c.at + i;
                if (one->estimate < least || one->token < 0 || one->token >= vocab_size) continue;
                double joint = score * one->estimate;
                if (waits == places) {
                    if (joint <= queue[waits - 1].score) continue;
                    waits--;
                }
                wait_in_line(queue, waits++, (waiting){joint, node, one->token, one->voice});
            }
        }
        if (node == waits) break;
        tokens[nodes] = queue[node].token;
        parents[nodes] = queue[node].parent;
        scores[nodes] = queue[node].score;
        names[nodes] = queue[node].voice;
        depth[nodes] = depth[parents[nodes]] + 1;
        nodes++;
    }
    goto done;
failed:
    nodes = FAILED;
done:
    free_claims(&c);
    free(queue);
    free(depth);
    free(path);
    return nodes;
}

/* Learns what the evidence along tokens that the target produced was worth. tail: as for mix_grow. `ask` is called with the
 * number of tokens before the one in question. 0 if all went well. */
int mix_learn(mixture *m, const voice *voices, int64_t voice_count, const int64_t *tail, int64_t tail_count,
              const int64_t *tokens, int64_t count, asking ask) {
    claims c = {0};
    evidences found;
    int64_t *path = malloc((count + 1) * sizeof(int64_t));
    int failed = !path;
    for (int64_t n = 0; n < count && !failed; n++) {
        for (int64_t i = 0; i < n; i++) path[i] = tokens[n - 1 - i];
        recent text = behind(tail, tail_count, path, n);
        failed = collect(m, voices, voice_count, &text, ask, n, m->crumb * m->least_learned, &found) || blend(m, &found, m->least_learned, &c);
        if (failed) break;
        for (int64_t i = 0; i < c.count; i++) learn_claim(m, c.at[i].estimate, c.at[i].token == tokens[n]);
        learn_trust(m, &found, tokens[n]);
    }
    free_claims(&c);
    free(path);
    return failed;
}

/* What one table says about the token after a text (newest token first; of suffixes: below the text that they know), for
 * Python: number of pieces; kinds, counts and totals of all, and their tokens and weights one after another, at most
 * `room` of these; FAILED: more. */
int64_t mix_evidence(int64_t form, void *of, const int64_t *tokens, int64_t count, int64_t room, int64_t *kinds,
                     int64_t *counts, double *totals, int64_t *named, double *weights) {
    static const double no_trust[MOST_FOUND];
    const mixture m = {.trust = (double *)no_trust};
    const voice one = {form, 0, of};
    const recent text = behind(NULL, 0, tokens, count);
    evidences found;
    int64_t at = 0;
    if (collect(&m, &one, 1, &text, NULL, 0, 0, &found)) return FAILED;
    for (int64_t i = 0; i < found.count; i++) {
        const evidence *e = found.at + i;
        if (at + e->count > room) return FAILED;
        kinds[i] = e->kind;
        counts[i] = e->count;
        totals[i] = e->total;
        for (int64_t j = 0; j < e->count; j++, at++) {
            named[at] = token_of(e, j);
            weights[at] = e->weights[j];
        }
    }
    return found.count;
}
