#!/bin/bash
# Predicts a large file on a Ray cluster, submitted as a job to its head node:
#
#     RAY_API_SERVER_ADDRESS=http://head:8265 deploy/ray/predict.sh /shared/runs/big lines.txt /shared/lines.shards
#
# MODEL, FILE and DIR must lie where all nodes see them. The job may be stopped and submitted again, and nodes may come
# and go: what is done is never done again.
set -euo pipefail

model=$1
file=$2
shards=$3
here=$(cd "$(dirname "$0")" && pwd)

exec ray job submit --runtime-env "$here/runtime-env.yaml" -- \
    dragoman predict "$model" "$file" --shards "$shards" --executor ray
