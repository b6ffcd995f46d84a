#!/usr/bin/env bash
# Fails when a generated file is not what its .proto file, or its Go type, says, or belongs to none. Changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
scripts/generate.sh "$fresh"

# The header of a generated file names the release of protoc, which may be another one here.
without_release() { sed -E '/^\/\/ (- )?\s*protoc\s+v/d' "$1"; }

generated() {
	find proto -name '*.pb.go'
	find operator -name 'zz_generated*'
	find deploy/operator/crd deploy/helm/trainmaster/crds -name '*.yaml'
}

drift=0
while read -r file; do
	if ! [ -f "$fresh/$file" ] || ! [ -f "$file" ] || ! diff -u <(without_release "$file") <(without_release "$fresh/$file"); then
		echo "$file is not what its source says: run 'make generate' and commit the result" >&2
		drift=1
	fi
done < <({ generated; cd "$fresh" && generated; } | sort -u)
exit $drift
