#!/usr/bin/env bash
# The accuracy of a model on its held-out records for every number of parameter servers, in both update modes, with several
# seeds. Prints a row for each number and mode, and the widest spread.
#
#   RUN       further flags of `master run`, as --dataset mnist --data data/mnist --model mlp
#   SHARDS    "1 2 4"      MODES  "async sync"      SEEDS  "1 2 3"
set -euo pipefail
cd "$(dirname "$0")/.."

read -ra flags <<<"${RUN:-}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

echo "| shards | mode | accuracy, one for each seed |"
echo "|---|---|---|"
for shards in ${SHARDS:-1 2 4}; do
	for mode in ${MODES:-async sync}; do
		row=""
		for seed in ${SEEDS:-1 2 3}; do
			accuracy=$(bin/master run "${flags[@]}" --ps "$shards" --update-mode "$mode" --seed "$seed" --dir "$folder" -o json 2>"$folder/log" |
				sed -n 's/.*"accuracy": \([0-9.]*\).*/\1/p' | xargs printf '%.4f') || { cat "$folder/log" >&2; exit 1; }
			row+=" $accuracy"
			echo "$accuracy" >>"$folder/all"
			rm -rf "${folder:?}"/0*
		done
		echo "| $shards | $mode |$row |"
	done
done
sort -n "$folder/all" | awk 'NR == 1 { low = $1 } { high = $1 } END { printf "\nfrom %.4f to %.4f: %.2f points apart\n", low, high, 100 * (high - low) }'
