#!/usr/bin/env bash
# sbatch examples/launch/slurm.sh, from the repository's root; the folder is to be seen by all machines.
#SBATCH --job-name=hdet
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export NODES=$SLURM_NNODES
export HEAD="$head:29500"
export RUN="hdet-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
# One agent on each machine; torchrun starts one process for each GPU.
srun --kill-on-bad-exit=1 bash examples/launch/torchrun.sh
