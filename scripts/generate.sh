#!/usr/bin/env bash
# Writes what the .proto files under proto/ and the types under operator/api/ say, below the folder named as the argument (default: this project).
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-.}
mapfile -t protos < <(find proto -name '*.proto' | sort)
[ ${#protos[@]} -gt 0 ] || { echo "no .proto file below proto/" >&2; exit 1; }

protoc --proto_path=proto \
	--plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
	--go_out="$out" --go_opt=module=trainmaster \
	--plugin=protoc-gen-go-grpc="$(go tool -modfile=scripts/tools/go.mod -n protoc-gen-go-grpc)" \
	--go-grpc_out="$out" --go-grpc_opt=module=trainmaster \
	"${protos[@]#proto/}"

# The CustomResourceDefinition, also for the chart, and the copies of its types.
mkdir -p "$out/deploy/operator/crd" "$out/deploy/helm/trainmaster/crds"
go tool -modfile=scripts/tools/controller-gen/go.mod controller-gen paths=./operator/api/... \
	object output:object:dir="$out/operator/api/v1alpha1" crd output:crd:dir="$out/deploy/operator/crd"
cp "$out"/deploy/operator/crd/*.yaml "$out/deploy/helm/trainmaster/crds/"
