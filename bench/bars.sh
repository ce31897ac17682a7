#!/usr/bin/env bash
# The bars of the core library, one after the other. Results go to the folder named by OUT (default: out/bars).
#
#   bench/bars.sh                 everything, about three hours on two cores
#   LIMIT=2 NEW=48 bench/bars.sh  a quick look: 2 prompts per category, 48 new tokens
#   bench/bars.sh forward cache   only some parts: cache, forward, attention, default, fp32, coder, laws, rules, exact,
#                                 grammar
#
# Run it on a quiet machine. Methods alternate, so ratios survive some noise, but shares of time do not. cpu_seconds in the
# results, far below threads x decode_seconds, tells that the machine was busy.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python}
PROMPTS=${PROMPTS:-../shared/data/specbench_dev.jsonl}
OUT=${OUT:-out/bars}
LIMIT=${LIMIT:-8}     # prompts per category
NEW=${NEW:-128}       # new tokens per prompt
THREADS=${THREADS:-2}
mkdir -p "$OUT"
export HF_HUB_OFFLINE=1
failed=0

branchwise() { "$PYTHON" -c 'from branchwise.cli import main; main()' "$@"; }
part() { # part NAME COMMAND...: runs it, keeps its output, goes on after a missed bar
    local name=$1
    shift
    echo "== $name: $*"
    if ! "$@" | tee "$OUT/$name.txt"; then
        echo "== $name: a bar was missed or a method failed"
        failed=1
    fi
}

# rows in use, growth, peak <= 1.3x; 5,000 steps of an always-wrong drafter
cache() { part cache "$PYTHON" bench/cache_memory.py --threads "$THREADS"; }

# 16 nodes at context 6000: at most 0.5x transformers' time
forward() { part forward "$PYTHON" bench/forward.py --threads "$THREADS"; }

# one layer, 16 nodes at context 8192: at most 1.6x the limit of the machine, never slower than sdpa with a mask
attention() {
    part attention branchwise bench attention --nodes 16 --contexts 8192 --heads 9x3x64,32x8x128 --bar 1.6 \
        --threads "$THREADS" --json "$OUT/attention.json"
}

# default model, bfloat16: tokens per step >= 2.5 at 33 and >= 2.3 at 17; best budget >= 1.7x hf-plain, no category below
# 1.0x; share outside the forward <= 6% at 33, and not growing with the context (outside_ms_short/long_context)
default() {
    part default branchwise bench "$PROMPTS" --methods plain,tree,hf-plain,hf-lookup --budgets 9,17,33 \
        --limit-per-category "$LIMIT" --max-new-tokens "$NEW" --dtype bfloat16 --threads "$THREADS" --json "$OUT/default.json"
}

# float32: tokens equal to plain decoding, or every difference a near-tie
fp32() {
    part fp32 branchwise bench "$PROMPTS" --methods plain,tree,hf-plain --budgets 9,17,33 \
        --limit-per-category "$LIMIT" --max-new-tokens "$NEW" --dtype float32 --threads "$THREADS" --json "$OUT/fp32.json"
}

# Qwen2.5-Coder-1.5B on coding, reasoning and mathematics (4 each): best of budgets 4, 8 and 16 >= 1.6x hf-plain
coder() {
    part coder branchwise bench "$PROMPTS" --model qwen2.5-coder-1.5b-instruct --methods tree,hf-plain --budgets 4,8,16 \
        --categories mt_bench --topics coding,reasoning,math --limit-per-category $((LIMIT < 4 ? 3 * LIMIT : 12)) \
        --max-new-tokens "$NEW" --dtype bfloat16 --threads "$THREADS" --json "$OUT/coder.json"
}

# laws and rule of a 32-node tree: <= 4 ms with temperature alone, <= 10 ms with top-p 0.9
laws() { part laws "$PYTHON" bench/law_cost.py --threads "$THREADS"; }

# the same sampled tree: tokens per step of traversal >= rejection >= match; which way of drafting is faster per second
rules() {
    local few=(--parts tree,speed --limit $((LIMIT < 4 ? LIMIT : 4)) --max-new-tokens "$NEW" --threads "$THREADS")
    part rules-1.0 "$PYTHON" bench/rules.py "$PROMPTS" --temperature 1 "${few[@]}"
    part rules-0.7 "$PYTHON" bench/rules.py "$PROMPTS" --temperature 0.7 --top-p 0.9 "${few[@]}"
}

# rule match and plain decoding of one seed: 2,000 equal tokens at each temperature
exact() {
    for temperature in 0.5 0.8 1.0 1.3; do
        part "exact-$temperature" "$PYTHON" bench/rules.py "$PROMPTS" --parts exact --temperature "$temperature" \
            --first 1 --max-new-tokens 2000 --dtype float32 --threads "$THREADS"
    done
}

# JSON under a schema: all valid, equal to plain constrained decoding, faster than it
grammar() { part grammar "$PYTHON" bench/grammar.py --threads "$THREADS"; }

for name in "${@:-cache forward attention default fp32 coder laws rules exact grammar}"; do
    for one in $name; do "$one"; done
done
exit "$failed"
