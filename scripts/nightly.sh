#!/usr/bin/env bash
# What is too long for every change: the soak, many histories from a seed by chance, property tests with seeds by chance,
# planted bugs, fuzzing, and the measurements. Goes on after a failure, and ends with a summary; exit code 1 if anything
# failed. Everything that was said and measured is kept in the folder named as the argument.
#
#   MINUTES   of the soak, 60              N         histories of the simulator, 10000
#   PUSHES    of parameter servers, 500
#   CHECKS    of each property, 100000     FUZZTIME  of each fuzz target, 3m
#   TRAINERS  of bench reconnect, 10000    FAULTS    of each mode of bench failover, 50
#   ONLY      names of the steps to run, of those that the summary lists; all if empty
set -uo pipefail
cd "$(dirname "$0")/.."

minutes=${MINUTES:-60} n=${N:-10000} pushes=${PUSHES:-500} checks=${CHECKS:-100000} fuzztime=${FUZZTIME:-3m} trainers=${TRAINERS:-10000} faults=${FAULTS:-50} only=${ONLY:-}
folder=${1:-trainmaster-nightly/$(date -u +%Y%m%d-%H%M%S)}
mkdir -p "$folder" || exit 1
summary=() failed=0

# step NAME FIGURES COMMAND...: runs the command, with its output in NAME.log. FIGURES is a filter that makes the line of
# the summary out of that.
step() {
	local name=$1 figures=$2 began=$SECONDS verdict=passed said
	shift 2
	[ -z "$only" ] || [[ " $only " == *" $name "* ]] || return 0
	echo "--- $name: $*"
	"$@" >"$folder/$name.log" 2>&1 || { verdict=FAILED failed=1; tail -n 20 "$folder/$name.log"; }
	said=$($figures <"$folder/$name.log" | tr -s ' \n\t' ' ')
	summary+=("$(printf '%-7s %6ds  %-22s %s' "$verdict" $((SECONDS - began)) "$name" "$*")" "$(printf '%17s %s' '' "$said")")
}

last() { grep -v '^$' | tail -n 1; }
soaked() { grep -E '^(seed|[0-9]+ passes|soak)' | tail -n 3; }
histories() { grep -E 'histories|steps$|^ok|^FAIL' | tail -n 4; }
fuzzed() { grep -E 'elapsed' | tail -n 1; }
# JSON without the lists, on one line.
figures() { grep -E '"[a-z0-9_]+": (-?[0-9.e+]+|"[^"]*"|true|false),?$' | grep -vE '"(folder|mode|processors)"' | head -n 16; }

make build || exit 1
step soak soaked make soak MINUTES="$minutes" SEED=0 REPORT="$folder/soak.json"
step sim histories make sim N="$n" PUSHES="$pushes" SEED=$((RANDOM * 32768 + RANDOM))
step python last scripts/python.sh test -m "long or not long"
step race last go test -race ./e2e -count=1 -timeout 2h
step race-sim last go test -race ./e2e/sim -count=1 -timeout 2h
step properties last go test ./taskqueue -count=1 -timeout 4h -run TestQueueAgainstNaive -rapid.checks="$checks" -rapid.seed=0
step mutants last make mutants N="$n"
while IFS=: read -r file target; do
	step "fuzz-$(dirname "$file" | tr / -)-$target" fuzzed go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime"
done < <(grep -rHoE '^func Fuzz[A-Za-z0-9]+' --include='*_test.go' . | sed 's/:func /:/; s|^\./||' | sort)
step bench-queue figures bin/master bench queue --via inproc,netrpc --callers 1,16,64,256 --rounds 5 -o json
step bench-recovery figures bin/master bench recovery --tasks 10000000 --rounds 5 -o json
step bench-recordio figures bin/master bench recordio -o json
for mode in resign kill hang; do
	step "bench-failover-$mode" figures bin/master bench failover --mode "$mode" -n "$faults" --holddown 2s -o json
done
step bench-reconnect figures bin/master bench reconnect --trainers "$trainers" -o json

echo
printf '%s\n' "${summary[@]}" | tee "$folder/summary.txt"
echo
echo "everything is in $folder"
exit $failed
