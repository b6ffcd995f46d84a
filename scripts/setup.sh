#!/usr/bin/env bash
# Installs from Debian what the tests need and this machine lacks. It does nothing where nothing is missing.
set -euo pipefail

# command -> the packages that bring it
declare -A packages=(
	[gcc]="gcc libc6-dev"        # the race detector links with the C library
	[protoc]="protobuf-compiler" # generated files are compared with what the .proto files say
	[git]="git"
)

missing=()
for command in "${!packages[@]}"; do
	if ! command -v "$command" >/dev/null; then
		read -ra names <<<"${packages[$command]}"
		missing+=("${names[@]}")
	fi
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
	cat >&2 <<MESSAGE
Missing on this machine: ${missing[*]} (names of Debian packages).
There is no apt-get here to install them with: install what your system calls them, then run this again.
MESSAGE
	exit 1
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
	if ! command -v sudo >/dev/null; then
		echo "Missing: ${missing[*]}. Run this as root: apt-get install ${missing[*]}" >&2
		exit 1
	fi
	as_root=(sudo)
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
