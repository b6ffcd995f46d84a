#!/usr/bin/env bash
# run.sh trains a job with a trainer in Python, which streams its records, trains, pushes and evaluates, and is queried and stopped meanwhile.
# Then master verify proves that each task counts once. README.md describes the steps. Ctrl-C ends and removes everything.
#
# It needs Go, or the program in MASTER, and Python 3 with venv. The first run installs grpcio, grpcio-tools and numpy in the cache.
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/cache.sh

work=$(mktemp -d)
clean() {
	trap - EXIT INT TERM
	kill $(jobs -p) 2>/dev/null || true
	wait
	rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# await WORDS FILE waits until the file has the words.
await() {
	for _ in $(seq 1200); do
		! grep -qs -- "$1" "$2" || return 0
		sleep 0.1
	done
	echo "run.sh: expected \"$1\" in 120 s, found:" >&2
	cat "$2" >&2
	return 1
}

master=${MASTER:-$PWD/bin/master}
[ -n "${MASTER:-}" ] || CGO_ENABLED=0 go build -o "$master" ./cmd/master
cached python python_packages
python=$entry/bin/python3

# The stubs are made from the .proto files alone.
mkdir "$work/stubs"
"$python" -m grpc_tools.protoc -Iproto --python_out="$work/stubs" --grpc_python_out="$work/stubs" \
	proto/trainmaster/v1/{data,coordinator,data_proxy,trainer_control}.proto
export PYTHONPATH=$work/stubs PYTHONDONTWRITEBYTECODE=1

# A master with an embedded etcd. It reads the records for the trainers (self), and evaluates the model after each pass.
"$master" recordio convert --shards 4 --held-out 0.2 testdata/digits.csv.gz "$work/data/digits" 2>/dev/null >&2
"$master" --data-dir "$work/etcd" --listen 127.0.0.1:0 --http "" --passes 2 --chunks-per-task 16 --task-timeout-min 16s \
	--data-proxy self --data-roots "$work/data" --evaluation-data "$work/data/digits-test-*" --best-metric accuracy:max 2>"$work/master.log" &
leads=$!
await msg=leading "$work/master.log"
addr=$(sed -n 's/.*msg=serving.* listen="\([^"]*\)".*/\1/p' "$work/master.log")

# The trainer trains its second task until it is stopped, so that there is time for the commands below.
: >"$work/trainer.log" # for tail, which can start before the trainer
"$python" examples/coordinator/session_trainer.py --masters "$addr" --data "$work/data/digits-0*" --models "$work/models" --long-task 2 >"$work/trainer.log" &
trains=$!
tail -n +1 -f --pid=$trains "$work/trainer.log" &
shows=$!

# The master queries a trainer whose task has lasted half of its time, and any program can query its model. Then an operator stops the task.
await ^trained "$work/trainer.log" # on a slow machine, the master can have queried the first task
await GetProgress "$work/trainer.log"
control=$(sed -n 's/^joined.*control port //p' "$work/trainer.log")
"$python" examples/coordinator/copy_model.py "127.0.0.1:$control" "$work/copy.npy"
"$master" trainers stop python-1 --addr "$addr"

wait "$trains"
wait "$leads"
wait "$shows"
echo
"$master" evaluations --data-dir "$work/etcd" -o json |
	"$python" -c 'import json, sys
for e in json.load(sys.stdin):
    print("round", e["round"], "after pass", e["passes"], e["figures"], "best" if e["best"] else "")'
"$master" verify --data-dir "$work/etcd"
