#!/usr/bin/env bash
# setup.sh installs what the tests need and this machine lacks: programs from Debian, and Python packages and servers of object stores
# in the cache (see cache.sh). If nothing is missing, it changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cache.sh

# command -> the packages that bring it
declare -A packages=(
	[gcc]="gcc libc6-dev"        # the race detector links with the C library
	[protoc]="protobuf-compiler" # generated files are compared with what the .proto files say
	[git]="git"
	[python3]="python3 python3-venv"
	[node]="nodejs" # the Azure server
	[npm]="npm"
)
if [ "$(id -u)" -eq 0 ] && [ "$(uname)" = Linux ]; then # tests of network partitions need root
	packages[ip]="iproute2"
	packages[nft]="nftables"
fi

# has_torch PYTHON reports whether an interpreter finds PyTorch.
has_torch() {
	"$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null
}

debian_packages() {
	local missing=() command names
	for command in "${!packages[@]}"; do
		if ! command -v "$command" >/dev/null; then
			read -ra names <<<"${packages[$command]}"
			missing+=("${names[@]}")
		fi
	done
	if ! has_torch /usr/bin/python3 && ! has_torch python3; then # a test of master worker runs PyTorch
		missing+=(python3-torch)
	fi
	[ ${#missing[@]} -gt 0 ] || return 0

	if ! command -v apt-get >/dev/null; then
		cat >&2 <<MESSAGE
Missing on this machine: ${missing[*]} (names of Debian packages).
There is no apt-get here to install them with: install what your system calls them, then run this again.
MESSAGE
		return 1
	fi
	local as_root=()
	if [ "$(id -u)" -ne 0 ]; then
		if ! command -v sudo >/dev/null; then
			echo "Missing: ${missing[*]}. Run this as root: apt-get install ${missing[*]}" >&2
			return 1
		fi
		as_root=(sudo)
	fi
	echo "installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	"${as_root[@]}" apt-get update -qq
	"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# A real S3 server, which keeps each object as a file. The tests of checkpoints in an object store use it; without it they are
# skipped. It has its own module, so its dependencies stay out of go.mod.
s3_server() {
	CGO_ENABLED=0 go build -C scripts/tools/s3 -trimpath -buildvcs=false -ldflags "-s -w" -o "$1/versitygw" github.com/versity/versitygw/cmd/versitygw
}

# A server with the API of Google Cloud Storage, also with its own module.
gcs_server() {
	CGO_ENABLED=0 go build -C scripts/tools/gcs -trimpath -buildvcs=false -ldflags "-s -w" -o "$1/fake-gcs-server" github.com/fsouza/fake-gcs-server
}

# A server with the API of Azure Blob Storage. The package declares a newer Node; its blob server runs on Node 20.
azure_server() {
	npm install --silent --no-audit --no-fund --engine-strict=false --prefix "$1" "$azurite_package" && ln -s "$(command -v node)" "$1/node"
}

# prepare ENTRY MESSAGE FUNCTION builds a missing entry of the cache.
prepare() {
	local path
	path=$(cache_path "$1") && [ -d "$path" ] && return 0
	echo "$2"
	cached "$1" "$3" || echo "failed: tests that need it will be skipped" >&2
}

debian_packages
# A test builds a program in a module of its own, without the network: it needs the go.mod files of all versions in the graph.
go mod graph >/dev/null || echo "failed: tests that build a program in a module of its own will fail" >&2
prepare python "installing the packages of scripts/requirements.txt" python_packages
prepare s3 "building the S3 server of scripts/tools/s3 (some minutes)" s3_server
prepare gcs "building the GCS server of scripts/tools/gcs (some minutes)" gcs_server
prepare azure "installing the Azure server ($azurite_package, 365 MB)" azure_server
