#!/usr/bin/env bash
# Installs what the tests need and this machine lacks: programs from Debian, Python packages into .cache/python, and an S3 server
# into .cache/s3. It does nothing where nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

# command -> the packages that bring it
declare -A packages=(
	[gcc]="gcc libc6-dev"        # the race detector links with the C library
	[protoc]="protobuf-compiler" # generated files are compared with what the .proto files say
	[git]="git"
	[python3]="python3 python3-venv"
)
if [ "$(id -u)" -eq 0 ] && [ "$(uname)" = Linux ]; then # tests of network partitions need root
	packages[ip]="iproute2"
	packages[nft]="nftables"
fi

debian_packages() {
	local missing=() command names
	for command in "${!packages[@]}"; do
		if ! command -v "$command" >/dev/null; then
			read -ra names <<<"${packages[$command]}"
			missing+=("${names[@]}")
		fi
	done
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

# Other people's Python packages read what we write. Without them those tests are skipped, and say so.
python_packages() {
	local prepared=.cache/python
	if cmp -s scripts/requirements.txt "$prepared/requirements.txt"; then
		return 0
	fi
	echo "installing the packages of scripts/requirements.txt into $prepared"
	if python3 -m venv --clear "$prepared" && "$prepared/bin/pip" install --quiet --disable-pip-version-check -r scripts/requirements.txt; then
		cp scripts/requirements.txt "$prepared/requirements.txt"
	else
		rm -rf "$prepared"
		echo "no Python packages: tests that need them will be skipped" >&2
	fi
}

# A real S3 server, which keeps each object as a file: checkpoints in an object store are tested against it. It has a module of its
# own, so that its dependencies are none of ours. Without it those tests are skipped, and say so.
s3_server() {
	local prepared=.cache/s3
	if cmp -s tools/s3/go.sum "$prepared/go.sum"; then
		return 0
	fi
	echo "building the S3 server of tools/s3 into $prepared (some minutes)"
	mkdir -p "$prepared"
	if CGO_ENABLED=0 go build -C tools/s3 -trimpath -buildvcs=false -ldflags "-s -w" -o "../../$prepared/versitygw" github.com/versity/versitygw/cmd/versitygw; then
		cp tools/s3/go.sum "$prepared/go.sum"
	else
		rm -rf "$prepared"
		echo "no S3 server: tests that need it will be skipped" >&2
	fi
}

debian_packages
python_packages
s3_server
