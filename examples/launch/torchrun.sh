#!/usr/bin/env bash
# The same command on every machine, by hand or by a parallel shell:
#
#   NODES=2 HEAD=first-machine:29500 bash examples/launch/torchrun.sh
#
# SCRIPT=examples/tune_in_ddp.py runs that one instead. HEAD is one of the machines and a free port there; ranks are given out where all have met. A machine that
# fails ends the attempt on all, and they meet again (--max-restarts): the script goes on from its checkpoint.
set -euo pipefail
exec torchrun \
  --nnodes "$NODES" \
  --nproc-per-node "${PROCESSES:-gpu}" \
  --rdzv-backend c10d \
  --rdzv-endpoint "$HEAD" \
  --rdzv-id "${RUN:-hdet}" \
  --max-restarts "${RESTARTS:-3}" \
  "${SCRIPT:-examples/many_machines.py}" "${FOLDER:-runs/many_machines}"
