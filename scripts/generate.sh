#!/usr/bin/env bash
# Writes the Go that the .proto files under proto/ say, below the folder named as the argument (default: this project).
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
