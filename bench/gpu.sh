#!/usr/bin/env bash
# Everything that needs a CUDA device, in a few minutes: correctness of the kernels on it, then their time against the
# limit of the device, SDPA with a mask, FlexAttention and, where installed, FlashInfer. Elsewhere: says so and exits 0.
#
#   bench/gpu.sh                      results go to the folder named by OUT (default: out/gpu)
#   QUICK=1 bench/gpu.sh              fewer shapes, about a minute after the kernels are compiled
#
# Install first: pip install -e ".[triton,dev]", and flashinfer-python for the comparison with it.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python}
OUT=${OUT:-out/gpu}

if ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "bench/gpu.sh: no CUDA device here, nothing to do"
    exit 0
fi
mkdir -p "$OUT"
unset TRITON_INTERPRET
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"

"$PYTHON" -m pytest -q tests/attention tests/cache/test_fused_commit.py -p no:cacheprovider | tee "$OUT/tests.txt"

nodes=1,8,16,32,64,128
contexts=256,2048,8192,32768
if [ -n "${QUICK:-}" ]; then
    nodes=1,16,64
    contexts=2048,32768
fi
"$PYTHON" -c 'from branchwise.cli import main; main()' bench attention --device cuda --dtypes bfloat16 \
    --heads 9x3x64,32x8x128,32x32x128 --nodes "$nodes" --contexts "$contexts" --json "$OUT/attention.json" |
    tee "$OUT/attention.txt"
