#!/usr/bin/env bash
# prose.sh checks the wording of Markdown files, comments, Go strings and test names with vale, by the rules in
# scripts/prose/styles, and compares the number of hits of each rule with scripts/prose/baseline.txt.
#
#   scripts/prose.sh               fails if a rule has more hits than the baseline
#   scripts/prose.sh list [RULE]   lists the hits, or those of one rule
#   scripts/prose.sh update        lowers the baseline where the current count is lower
#   scripts/prose.sh reset         writes the current counts to the baseline, also where they have risen
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cache.sh

styles=scripts/prose/styles/Plain
baseline=scripts/prose/baseline.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# vale uses tree-sitter, so it needs cgo. It is 54 MB and has its own dependencies, so it stays out of go.mod.
build_vale() {
	echo "building vale $vale_version (about a minute)" >&2
	# A C compiler prints warnings of the parsers on success.
	if ! CGO_ENABLED=1 GOFLAGS=-mod=mod GOBIN=$1 go install "github.com/vale-cli/vale/v3/cmd/vale@$vale_version" >"$work/log" 2>&1; then
		cat "$work/log" >&2
		return 1
	fi
}

# check CONFIG PATTERN... prints one line per hit: file:line:column:rule:message
check() {
	local config=$1 file
	shift
	# A file that is deleted but not committed is listed by git.
	git ls-files -z --cached --others --exclude-standard -- "$@" |
		while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done |
		xargs -0 -r "$vale" --config="$config" --no-exit --output=line
}

# level RULE prints error or warning; RULE is Plain.Name.
level() { sed -n 's/^level: //p' "$styles/${1#Plain.}.yml"; }

# stored RULE prints the number of hits in the baseline, or 0.
stored() { awk -v rule="$1" '$2 == rule { n = $3 } END { print n + 0 }' "$baseline"; }

# write_baseline writes the current counts; with the argument "lower", a count that has risen keeps its line.
write_baseline() {
	local rule found most
	{
		sed -n '/^#/p' "$baseline"
		while read -r rule found; do
			most=$(stored "$rule")
			if [ "${1:-}" = lower ] && [ "$found" -gt "$most" ]; then found=$most; fi
			[ "$found" -eq 0 ] || echo "$(level "$rule") $rule $found"
		done <"$work/counts" | sort
	} >"$work/baseline"
	cp "$work/baseline" "$baseline"
}

cached vale build_vale
vale=$entry/vale
check .vale.ini '*.md' '*.go' '*.proto' >"$work/hits"
check scripts/prose/vale.raw.ini 'cmd/*.go' >>"$work/hits"
awk -F: '{ n[$4]++ } END { for (rule in n) print rule, n[rule] }' "$work/hits" | sort >"$work/counts"

case ${1:-} in
list)
	awk -F: -v rule="${2:-}" 'rule == "" || $4 == rule' "$work/hits"
	exit
	;;
update) write_baseline lower ;;
reset) write_baseline ;;
"") ;;
*)
	echo "usage: scripts/prose.sh [list [RULE] | update | reset]" >&2
	exit 2
	;;
esac

failed=0 errors=0 warnings=0 fewer=0
while read -r rule found; do
	level=$(level "$rule") most=$(stored "$rule")
	if [ "$level" = error ]; then errors=$((errors + found)); else warnings=$((warnings + found)); fi
	if [ "$found" -lt "$most" ]; then fewer=1; fi
	if [ "$found" -gt "$most" ]; then
		echo "prose: $level rule $rule: expected at most $most hits, found $found: list them with: scripts/prose.sh list $rule" >&2
		failed=1
		# Without a baseline, each hit is new.
		[ "$most" -gt 0 ] || awk -F: -v rule="$rule" '$4 == rule' "$work/hits" | head -n 20 >&2
	fi
done <"$work/counts"
echo "prose: $errors hits of error rules, $warnings of warning rules"
[ "$failed" -eq 0 ] || exit 1
if [ "$fewer" -eq 1 ]; then
	echo "prose: some rules have fewer hits than the baseline: lower it with: scripts/prose.sh update"
fi
