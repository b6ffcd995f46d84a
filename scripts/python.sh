#!/usr/bin/env bash
# python.sh tests and builds the Python package, with a virtual environment in the cache (see cache.sh).
#
#   scripts/python.sh test [ARGUMENT...]   ruff, mypy and pytest; the arguments are those of pytest
#   scripts/python.sh planted [WORD]       plants the bugs of python/tests/planted.py with this word; a test must fail for each
#   scripts/python.sh peers [SYSTEM...]    compares loaders after kills, see scripts/python/peers/run.py
#   scripts/python.sh wheel                a wheel with bin/master, in bin
#   scripts/python.sh path                 prints the path of the environment
#
# The environment is complete or absent: it is built once for each version of python/requirements-test.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cache.sh

# packages DIR makes the entry python-sdk. The wheel of torch is linked with the libraries of CUDA: stubs take their place.
packages() {
	local torch
	python3 -m venv "$1" &&
		"$1/bin/python3" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile -r python/requirements-test.txt || return 1
	torch=$("$1/bin/python3" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])') &&
		"$1/bin/python3" scripts/python/cuda_stubs.py "$torch/lib" &&
		# An import of PyTorch takes 3 s of processor time instead of 7. Some files are for later versions of Python.
		{ "$1/bin/python3" -m compileall -qq -j 0 "$(dirname "$torch")" || true; } &&
		"$1/bin/python3" -c 'import torch; assert not torch.cuda.is_available()'
}

# peers DIR makes the entry python-peers, on top of python-sdk.
peers() {
	local packages
	python3 -m venv "$1" &&
		packages=$("$1/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') &&
		"$sdk/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$packages/sdk.pth" &&
		"$1/bin/python3" -m pip install --quiet --disable-pip-version-check --no-deps -r scripts/python/peers/requirements.txt
}

if [ ! -d "$(cache_path python-sdk)" ]; then
	echo "installing the packages of python/requirements-test.txt (about 4 minutes, 2.2 GB)" >&2
fi
cached python-sdk packages
python=$entry/bin/python3

export TRAINMASTER_BIN="${TRAINMASTER_BIN:-$PWD/bin/master}" PYTHONDONTWRITEBYTECODE=1
case ${1:-} in
test)
	shift
	export PYTHONPATH="$PWD/python/src"
	cd python
	"$python" -m ruff check --quiet . ../examples/{ddp,flights,jax,lightning,mnist,transformers} ../scripts/python
	"$python" -m ruff format --quiet --check . ../examples/{ddp,flights,jax,lightning,mnist,transformers} ../scripts/python
	"$python" -m mypy --no-error-summary
	"$python" -m mypy --no-error-summary --python-version 3.10 src # the oldest that the package supports
	for e in ddp flights jax lightning transformers; do # each is a module named train
		"$python" -m mypy --no-error-summary "../examples/$e"
	done
	"$python" -m pytest "$@"
	;;
planted)
	shift
	cd python
	"$python" tests/planted.py "$@"
	;;
peers)
	shift
	sdk=$entry
	cached python-peers peers
	PYTHONPATH="$PWD/python/src" "$entry/bin/python3" scripts/python/peers/run.py "$@"
	;;
wheel)
	rm -f bin/trainmaster-*.whl
	(cd python && "$python" -m hatchling build -t wheel -d ../bin)
	;;
path) echo "$entry" ;;
*) echo "python.sh: expected test, planted, peers, wheel or path, found '${1:-}'" >&2 && exit 2 ;;
esac
