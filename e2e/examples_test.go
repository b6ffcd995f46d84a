package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/testdata"
)

// notRun maps examples of --help that this test does not run to the test that covers them.
var notRun = map[string]string{
	"master run": "TestRun",
	"master trainer --endpoints 10.0.0.5:2379 --data 'data/digits-0*' --distribution-strategy allreduce --ring-listen :9200": "TestAllReduceTrainsThroughFaults",
	"master agent --fd 3 --parent 4711 --socket /tmp/tm-x7/agent --addr 127.0.0.1:8080 --id trainer-0":                       "TestAgentServesAProcess",
	"master dataproxy --data-roots /data":                                                                                             "TestKilledDataProxy",
	"master dataproxy --data-roots /data,/more --listen 10.0.0.1:8082":                                                                "TestKilledDataProxy",
	`master dataproxy --data-roots "s3://bucket/train?region=eu-central-1" --cache-dir /var/cache/train`:                              "dataset/proxy.TestObjects",
	"master run --update-mode sync":                                                                                                   "TestRunResumed",
	"master run --data data/digits --model mlp":                                                                                       "TestRunOnConvertedData",
	"master model evaluate trainmaster-run/001/digits-softmax.safetensors --data data/digits":                                         "TestRunOnConvertedData",
	"master run --data data/digits -- ./trainer":                                                                                      "TestExampleTrainerSurvivesKills",
	"master run --resume trainmaster-run/001":                                                                                         "TestRunResumed",
	"master run --model mlp --update-mode sync":                                                                                       "TestRun",
	"master run --update-mode sync --strategy examples/strategy.yaml":                                                                 "TestStrategyExample",
	"master run --passes 150 --trainers 4 --strategy examples/population.yaml":                                                        "TestPopulationOfARun",
	"master run --dataset flights":                                                                                                    "TestRun",
	"master run --model mlp --optimizer adam --learning-rate 0.002 --schedule cosine --warmup-steps 100 --schedule-steps 5000":        "TestRun",
	`master pserver --endpoints 127.0.0.1:2379 --checkpoint-dir "s3://bucket/job?endpoint=http://127.0.0.1:9000&use_path_style=true"`: "TestCheckpointsInABucket",
	`master model inspect "s3://bucket/job?region=eu-central-1"`:                                                                      "TestCheckpointsInABucket",
	"master status --data-dir trainmaster-data":                                                                                       "TestDataDirLeadsToJob of cmd/master",
	"master status --dir trainmaster-run/003":                                                                                         "TestLeaderOfRunUnderWay of cmd/master",
	"master trainer --endpoints 127.0.0.1:2379 --data 'data/digits-0*' --own-model":                                                   "TestPopulationOfKilledProcesses",
	"master install /trainmaster":                                                                                                     "TestInstallCopiesThisProgram of cmd/master",
	"master ring":                                                                                                                     "TestElasticJobOfPyTorch",
	`master ring -o json | jq -r '.members[] | "\(.rank) \(.id)"'`:                                                                    "TestElasticJobOfPyTorch",
	"master worker --addr 127.0.0.1:8080 --id a -- python3 train.py":                                                                  "TestElasticJobOfPyTorch",
	"master worker --addr 127.0.0.1:8080 --id b -- python3 train.py":                                                                  "TestElasticJobOfPyTorch",
	"master worker --endpoints 10.0.0.5:2379 --processes 4 -- python3 train.py":                                                       "TestElasticJobOfPyTorch",
	"kubectl apply -k deploy/operator":                                                                                                "TestTrainingJobTrainsTheDigits of e2e/k8s",
	"KUBECONFIG=~/.kube/config master operator --namespaces default --leader-elect=false":                                             "TestTrainingJobTrainsTheDigits of e2e/k8s",
	"master pods": "TestPodsThatCannotStartDelayNoOtherPod of e2e/k8s",
	"master pods -o json | jq '.pods[] | select(.phase != \"Running\") | {name, phase, reason}'": "TestPodsThatCannotStartDelayNoOtherPod of e2e/k8s",
	"master evaluations":                "TestEvaluationOfARun",
	"master trainers evaluate worker-3": "TestTrainerIsEvaluatedOnCommand",
	"master evaluations --data-dir trainmaster-run/001 -o json | jq '.[].figures.accuracy'":          "TestEvaluationOfARun",
	"master evaluate && master evaluations":                                                          "TestOperatorBeginsARound",
	"master run --best-metric accuracy:max --target 0.97 --metrics-out figures.txt":                  "TestTargetEndsARun",
	"master trainers stop worker-3":                                                                  "TestOperatorStopsWhatATrainerRuns",
	"master drain worker-3":                                                                          "TestAdmin",
	"master tasks retry 17":                                                                          "TestAdmin",
	"master job set learning-rate=0.001":                                                             "TestLearningRateOfAKilledLeader",
	"master job set weight.books=3 weight.news=1":                                                    "TestSetJob of master/grpcapi",
	"master scale ps=3 --endpoints 127.0.0.1:2379":                                                   "TestScaleUnderLoad",
	"master scale workers=1 --endpoints 127.0.0.1:2379":                                              "TestScaledWorkersLoseNothing of e2e/k8s",
	"master snapshot save backup.tms --endpoints 10.0.0.1:2379":                                      "TestSnapshotRestore of cmd/master",
	"master snapshot save backup.tms --data-dir trainmaster-data":                                    "TestSnapshotOfDataDir of cmd/master",
	"master checkpoint list --checkpoint-dir checkpoints --endpoints 10.0.0.1:2379":                  "TestRottenSet",
	"master checkpoint list --checkpoint-dir checkpoints -o json | jq '.[] | select(.complete).set'": "TestRottenSet",
	"master checkpoint use 7 --checkpoint-dir checkpoints --endpoints 10.0.0.1:2379":                 "TestRottenSet",
	"master recordio convert --like data/iris later.csv data/later":                                  "TestRunOnConvertedData",
	"master snapshot inspect backup.tms -o json":                                                     "TestSnapshotRestore of cmd/master",
	"master snapshot restore backup.tms --endpoints 10.0.0.1:2379 --job again":                       "TestSnapshotRestore of cmd/master",
	"master snapshot restore backup.tms --data-dir restored":                                         "TestSnapshotOfDataDir of cmd/master",
	"master dataset append clicks '/data/clicks/2026-11-25-*'":                                       "TestAppendsWhileTraining",
	"master dataset close clicks":                                                                    "TestAppendsWhileTraining",
	"master tasks drop 17":                                                                           "TestTasksRetryAndDrop of cmd/master",
	"master run --masters 2 --drillable --passes 500":                                                "TestDrills",
	"master drill kill-leader":                                                                       "TestDrills",
	"master drill kill-leader --endpoints 127.0.0.1:2379 -o json":                                    "TestDrillOfDaemons",
	"master drill pause-leader":                                                                      "TestDrills",
	"master drill kill-trainer":                                                                      "TestDrills",
	"master drill kill-trainer --trainer trainer-1":                                                  "TestDrills",
	"master drill partition":                                                                         "TestDrills",
	"master drill partition --for 20s":                                                               "TestDrills",
	"master drill slow-store --delay 500ms --for 10s":                                                "TestDrills",
	"master run --dataset mnist --data data/mnist --model mlp":                                       "make run-mnist; it needs a download",
	"master snapshot save backup.tms --endpoints 10.0.0.1:2379 --checkpoint-dir /shared/checkpoints": "TestSnapshotWithModel",
	"master snapshot restore backup.tms --endpoints 10.0.0.1:2379 --checkpoint-dir /shared/again":    "TestSnapshotWithModel",
}

// costly matches examples that run for minutes.
var costly = regexp.MustCompile(`^master bench `)

// workshop is a directory for the examples of --help. It contains the files that they name, and the addresses in the
// examples are replaced by addresses of a running etcd and master.
type workshop struct {
	t       testing.TB
	dir     string
	etcd    string            // a separate etcd, because the examples use the default job
	replace *strings.Replacer // replaces names in the examples by existing names
	env     []string
	left    map[string]bool // examples that have not run
}

func newWorkshop(t testing.TB) *workshop {
	t.Helper()
	w := &workshop{t: t, dir: t.TempDir(), etcd: etcdtest.StartProcess(t, 0).Endpoint(), left: map[string]bool{}}
	for _, c := range commandLines(t) {
		if len(c.examples) == 0 {
			t.Errorf("master %v --help: expected an example", c.words)
		}
		for _, line := range c.examples {
			if notRun[line] == "" && !costly.MatchString(line) {
				w.left[line] = true
			}
		}
	}
	etcd := strings.TrimPrefix(w.etcd, "http://")
	w.replace = strings.NewReplacer("127.0.0.1:2379", etcd, "10.0.0.1:2379", etcd, "127.0.0.1:8080", "127.0.0.1:0",
		"/var/lib/trainmaster", "trainmaster-data", "/usr/share/dict/words", "words",
		"/etc/bash_completion.d/", "", `"${fpath[1]}/_master"`, "_master", "~/.config/fish/completions/", "")
	w.write("testdata/digits.csv.gz", testdata.Digits)
	w.write("testdata/flights.csv.gz", testdata.Flights)
	for i := range 8 {
		w.write(fmt.Sprintf("pictures/%d.png", i), []byte("a picture"))
	}
	w.write("iris.jsonl", []byte(strings.Repeat(`{"width": 1.5, "height": 2, "species": "setosa"}`+"\n"+`{"width": 3.5, "height": 4, "species": "virginica"}`+"\n", 50)))
	w.write("iris.csv", []byte("width,height,species\n"+strings.Repeat("1.5,2,setosa\n3.5,4,virginica\n", 50)))
	w.write("words", []byte(strings.Repeat("recordio\ntrainer\nmaster\n", 100)))
	return w
}

func (w *workshop) write(name string, content []byte) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// take marks an example as run, and returns the command with replaced names.
func (w *workshop) take(line string) string {
	w.t.Helper()
	if !w.left[line] {
		w.t.Errorf("example %q: expected it in --help and not run before", line)
	}
	delete(w.left, line)
	return w.replace.Replace(line)
}

var intoJq = regexp.MustCompile(` \| jq .*$`)

// shell runs an example in a shell.
func (w *workshop) shell(line string) string {
	w.t.Helper()
	text := w.take(line)
	if _, err := exec.LookPath("jq"); err != nil {
		text = intoJq.ReplaceAllString(text, "") // jq is not installed
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", text)
	cmd.Dir, cmd.SysProcAttr = w.dir, childAttributes()
	cmd.Env = append(command(ctx, w.t, w.dir).Env, w.env...)
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(program(w.t))+":"+os.Getenv("PATH"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runtime.LockOSThread() // as in start
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		w.t.Errorf("%s: %v\n%s", line, err, stderr.String())
	}
	return stdout.String()
}

// start starts an example in the background, without a shell.
func (w *workshop) start(line string) *process {
	w.t.Helper()
	args := strings.Fields(strings.ReplaceAll(w.take(line), "'", ""))
	return start(w.t, args[1], w.dir, args[1:]...)
}

// All examples of --help run, with replaced addresses and directories.
func TestHelpExamples(t *testing.T) {
	t.Parallel()
	w := newWorkshop(t)

	// Files.
	w.shell("master recordio convert --format csv --held-out 0.2 testdata/digits.csv.gz data/digits")
	if err := os.RemoveAll(filepath.Join(w.dir, "data")); err != nil {
		t.Fatal(err)
	}
	w.shell("master recordio convert --format csv --shards 4 --held-out 0.2 testdata/digits.csv.gz data/digits")
	for _, line := range []string{
		"seq 1000 | master recordio write numbers.rec",
		"master recordio write --compression snappy --records-per-chunk 100 words.rec /usr/share/dict/words",
		"master recordio write --per-file --shards 4 --records-per-chunk 20 data/pictures pictures/*.png",
		"master recordio convert --sample digits data/sample",
		"master recordio convert --label species --text-labels --held-out 0.2 iris.csv data/iris",
		"master recordio convert --format jsonl --label species --text-labels iris.jsonl data/flowers",
		"master recordio convert --shard-format tfrecord --shards 4 testdata/digits.csv.gz data/digits.tfrecord",
		"master recordio index --records-per-chunk 1000 data/digits.tfrecord-00000-of-00004",
		"master recordio cat words.rec",
		"master recordio convert --format categorical --label-above 15 --held-out 0.2 testdata/flights.csv.gz data/flights",
		"master recordio cat -o json --limit 3 data/digits-00000-of-00004",
		"master recordio index data/digits-00000-of-00004",
		"master recordio index -o yaml data/digits-*",
		"master recordio stat data/digits-*",
		"master recordio stat -o json data/digits-00000-of-00004",
		"master recordio verify data/digits-*",
		"master help recordio convert",
		"master version",
		"master version -o json",
	} {
		if w.shell(line) == "" && !strings.Contains(line, " write ") {
			t.Errorf("%s: printed nothing", line)
		}
	}
	w.idx()
	w.shell("master recordio convert --format idx --shards 8 --compression snappy train-images-idx3-ubyte train-labels-idx1-ubyte data/mnist")
	for _, line := range []string{
		"source <(master completion bash)",
		"master completion bash > /etc/bash_completion.d/master",
		`master completion zsh > "${fpath[1]}/_master"`,
		"master completion fish > ~/.config/fish/completions/master.fish",
	} {
		w.shell(line)
	}

	// A complete job by the examples of its three processes.
	master := w.start("master --endpoints 127.0.0.1:2379 --listen 127.0.0.1:8080 --passes 10 --ps 1")
	server := w.start("master pserver --endpoints 127.0.0.1:2379 --checkpoint-dir checkpoints")
	trainer := w.start("master trainer --endpoints 127.0.0.1:2379 --data 'data/digits-0*' --model mlp --save-model digits.safetensors")
	trainer.wantExit(0)
	master.wantExit(0)
	server.signal(syscall.SIGTERM)
	server.wantExit(0)
	for _, line := range []string{
		"master model inspect checkpoints",
		"master model inspect checkpoints -o json | jq '.[0].tensors'",
		"master model export checkpoints --file model.safetensors",
		"master model diff checkpoints model.safetensors",
		"master model export checkpoints --file with-optimizer.safetensors --optimizer",
	} {
		w.shell(line)
	}
	if said := w.shell("master tasks --of-record data/digits-00000-of-00004:0 --endpoints 127.0.0.1:2379"); strings.Count(said, "counted") != 10 {
		t.Errorf("expected a record to be counted in each of the 10 passes, found:\n%s", said)
	}
	test, err := filepath.Glob(filepath.Join(w.dir, "data", "digits-test-*"))
	if err != nil {
		t.Fatal(err)
	}
	if found := accuracy(t, filepath.Join(w.dir, "digits.safetensors"), test); found < 0.93 {
		t.Errorf("accuracy %.4f of the example's job, expected at least 0.93", found)
	}

	w.watches()
	w.embedded()
	for line := range w.left {
		t.Errorf("example %q of --help: expected it in this test or in notRun", line)
	}
}

// idx writes 16 images and their labels in the format of MNIST.
func (w *workshop) idx() {
	w.t.Helper()
	w.write("train-images-idx3-ubyte", append([]byte{0, 0, 8, 3, 0, 0, 0, 16, 0, 0, 0, 2, 0, 0, 0, 2}, make([]byte, 64)...))
	w.write("train-labels-idx1-ubyte", append([]byte{0, 0, 8, 1, 0, 0, 0, 16}, make([]byte, 16)...))
}

// watches runs the examples that watch the job digits. They end with the job.
func (w *workshop) watches() {
	w.t.Helper()
	j := &job{t: w.t, name: "digits", endpoint: w.etcd, dir: w.dir}
	j.store = etcdtest.Open(w.t, j.endpoint, j.name)
	j.data = digits(w.t, w.t.TempDir())
	w.t.Cleanup(func() {
		if j.conn != nil {
			_ = j.conn.Close() // only ever closed already
		}
	})
	master := j.master()
	j.awaitLeader(0)
	watches := []*process{
		w.start("master status --endpoints 10.0.0.1:2379 --job digits --watch"),
		w.start("master queues --endpoints 10.0.0.1:2379 --job digits --watch"),
	}
	for _, watch := range watches {
		watch.awaitLog("digits")
	}
	w.plainJob(j)
	master.wantExit(0)
	for _, watch := range watches {
		watch.wantExit(0)
	}
	w.shell("master verify --endpoints 10.0.0.1:2379 --job digits")
}

// plainJob runs a job to its end with a plain client.
func (w *workshop) plainJob(j *job) {
	w.t.Helper()
	addr, err := j.store.MasterAddr(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	client := &plainClient{j, map[taskPosition]int{}}
	if over, err := client.work(w.t.Context(), addr.Addr); err != nil || !over {
		w.t.Fatalf("the job did not end: %v", err)
	}
}

var (
	endpointLine = regexp.MustCompile(`endpoint="(http://[0-9.:]+)"`)
	listenLine   = regexp.MustCompile(`advertise="([0-9.:]+)"`)
)

// embedded runs the examples of a master with an embedded etcd.
func (w *workshop) embedded() {
	w.t.Helper()
	line := "master --data-dir /var/lib/trainmaster --passes 10"
	args := append(strings.Fields(w.take(line))[1:], "--listen", "127.0.0.1:0") // port 8080 may be in use
	master := start(w.t, "embedded", w.dir, args...)
	master.awaitLog("leading")
	found := listenLine.FindStringSubmatch(master.log())
	etcd := endpointLine.FindStringSubmatch(master.log())
	if found == nil || etcd == nil {
		w.t.Fatalf("the master does not log its addresses: %s", master.log())
	}
	w.env = []string{"TRAINMASTER_ADDR=" + found[1]}
	for _, line := range []string{
		"master status",
		"master status -o json | jq '.datasets[0].done'",
		"master queues",
		"master queues -o json | jq '.datasets[].set_aside[] | {task, error}'",
		"master trainers",
		"master trainers -o json | jq '.[] | select(.silent_s > 5) | .id'",
		"master tasks",
		"master tasks --state set_aside -o json | jq '.[] | {task, error}'",
		"master tasks retry --all",
		`master pause --reason "the disk of /data is exchanged"`,
		"master resume",
	} {
		w.shell(line)
	}
	j := &job{t: w.t, name: "default", endpoint: etcd[1], dir: w.dir, data: digits(w.t, w.t.TempDir())}
	run := runJob{job: j, process: master}
	run.open()
	w.plainJob(j)
	master.wantExit(0)
	w.env = nil
	w.shell("master queues --literal --data-dir trainmaster-data -o json")
	w.shell("master verify --data-dir trainmaster-data -o json")
}

var readmeBlock = regexp.MustCompile("(?s)```\n(Training .*?)```")

// ownBlock matches the output of a run with the example trainer, after its commands.
var ownBlock = regexp.MustCompile("(?s)bin/master run --data data/digits --passes 500 -- examples/trainer/trainer\n```\n\n```\n(Running .*?)```")

// The README shows the output of a run, except for figures and directories.
func TestReadmeFirstLook(t *testing.T) {
	t.Parallel()
	wantShown(t, readmeBlock, run(t, t.TempDir(), "run", "--model", "mlp"))
}

// The README shows the output of a run of the example trainer, except for figures and directories.
func TestReadmeExampleTrainer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	digits(t, dir)
	trainer := filepath.Join(dir, "examples", "trainer", "trainer")
	if err := os.MkdirAll(filepath.Dir(trainer), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(buildExample(t), trainer); err != nil {
		t.Fatal(err)
	}
	wantShown(t, ownBlock, run(t, dir, "run", "--data", "data/digits", "--passes", "500", "--", "examples/trainer/trainer"))
}

// wantShown fails the test unless a block of the README has exactly the lines that a run printed.
func wantShown(t *testing.T, block *regexp.Regexp, o outcome) {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	found := block.FindSubmatch(readme)
	if found == nil {
		t.Fatalf("the README has no block that matches %v", block)
	}
	var shown []string
	for line := range strings.Lines(string(found[1])) {
		shown = append(shown, shape(line))
	}
	o.wants(t, 0)
	printed := map[string]bool{}
	for line := range strings.Lines(o.stderr + o.stdout) {
		s := shape(line)
		printed[s] = true
		if !slices.Contains(shown, s) {
			t.Errorf("output of a run: line %q is not in the README", line)
		}
	}
	for _, s := range shown {
		if !printed[s] {
			t.Errorf("README: line %q is not in the output of a run: %s", s, fmt.Sprint(o.stderr, o.stdout))
		}
	}
}

var (
	somePath  = regexp.MustCompile(`[^ ]*(trainmaster-run/\d+|examples/trainer)`)
	dataNames = strings.NewReplacer("MNIST", "DATA", "the digits", "DATA", "mnist-", "data-", "digits-", "data-")
	figures   = regexp.MustCompile(`(\d+[hm])*\d[\d.]*(e-?\d+)?`) // also durations such as 1m2.5s
)

// shape replaces the variable parts of a line. It drops the loss, which a run prints only while trainers run.
func shape(line string) string {
	line, _, _ = strings.Cut(line, "  loss ")
	line = somePath.ReplaceAllString(line, "DIR")
	return strings.Join(strings.Fields(figures.ReplaceAllString(dataNames.Replace(line), "N")), " ")
}
