package local

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"trainmaster/dataset/convert"
	"trainmaster/etcdstore"
	"trainmaster/local/drill"
	"trainmaster/pserver/optimizer"
	"trainmaster/recordio"
	"trainmaster/testdata"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

// The values of Config.OnTrainerLoss.
const (
	Rewind  = "rewind"  // the job rolls back
	Retrain = "retrain" // the lost trainer's task alone is trained again
)

// Config describes a run. Binary and Dir have no default.
type Config struct {
	Binary string // the program `master`
	Dir    string // directory for the files of this run

	Dataset  string // default digits; the binary contains digits and flights
	Data     string // prefix or glob of the user's own shards, instead of Dataset
	MNIST    string // directory with MNIST's four idx files, for that dataset
	Model    string // default softmax, of flights fm
	Passes   int    // default: chosen by the data
	Masters  int    // one leader, the others are standbys; default 1
	Servers  int    // parameter servers; default 2
	Trainers int    // default 3
	Sync     bool
	Seed     uint64 // of the order of passes and the initial parameters; the split has a seed of its own

	Backups       int  // trainers that a synchronous step does not wait for
	Deterministic bool // two runs agree bit by bit, with Sync

	// Command is the program and the arguments of the user's own trainers; empty: the built-in trainer. With a Command, the job has
	// parameter servers only if Servers is set, and no model is evaluated.
	Command []string

	Optimizer optimizer.Config // the data chooses the zero fields
	WireDType string           // of gradients and parameters in messages; "": float32
	Exchange  reference.Exchange

	CheckpointEvery time.Duration     // default 2 s
	OnTrainerLoss   string            // of a synchronous run: Rewind or Retrain; default Retrain, with Deterministic Rewind
	Resume          bool              // continue the run in Dir
	Settings        map[string]string // stored in Dir for a resumed run
	Journal         bool              // trainers write their tasks to journal.jsonl
	Drillable       bool              // put a proxy between each master and etcd, for `master drill`
	Log             *logrus.Entry
}

// splitSeed determines the held-out records. It is fixed, so all runs measure the accuracy on the same records.
const (
	splitSeed     = 20_240_229
	heldOut       = 0.2
	digitsShards  = 4
	digitsRecords = 20 // in a chunk
	mnistShards   = 8
	mnistRecords  = 250

	flightsShards  = 4
	flightsRecords = 200
	lateAbove      = 15.0 // minutes
)

// leaveTimeout is the time for trainers to exit after the master has exited. A trainer that was disconnected at the end of the
// job waits for another master, and must be stopped.
const leaveTimeout = 5 * time.Second

// Own trainers may work longer than the built-in trainer after the last task, for example to save a model. While they keep their session, the
// master stays for ownLinger; those without a session are stopped ownLeaveTimeout after the master has left.
const (
	ownLinger       = "10m"
	ownLeaveTimeout = time.Minute
)

// Result is the result of a run.
type Result struct {
	Model       string        `json:"model"`    // empty for own trainers
	Accuracy    *float64      `json:"accuracy"` // on the held-out records; null without such records, or for own trainers
	AUC         *float64      `json:"auc"`      // area under the ROC curve, for a model of two classes with scores; else null
	Loss        *float64      `json:"loss"`     // mean, on the same records as the accuracy
	TestRecords int           `json:"test_records"`
	Passes      int           `json:"passes"`
	Tasks       int           `json:"tasks"` // of a pass
	Elapsed     time.Duration `json:"-"`
	Seconds     float64       `json:"seconds"`
	Restarts    int           `json:"restarts"`
	SetAside    SetAside      `json:"set_aside"`
	ModelPath   string        `json:"model_path"`
	Dir         string        `json:"dir"`
}

// Job is one run on this machine.
type Job struct {
	config   Config
	data     convert.Result
	folder   string // working directory of own trainers; "": the directory of this process
	endpoint string
	register *drill.Register   // processes that run; nil: not registered
	gate     *gate             // the address for own trainers; nil: the trainers are built in
	proxied  map[string]string // name of a master -> address of its proxy; absent: no proxy
	master   *process
	standbys []*process
	servers  []*process
	trainers []*process

	storeFailed atomic.Bool // etcd has failed
}

// Validate sets the defaults and returns an error for an invalid setting, also if only a trainer would reject it.
func (c *Config) Validate() error {
	if c.Masters == 0 {
		c.Masters = 1
	}
	if c.Trainers == 0 {
		c.Trainers = 3
	}
	if c.CheckpointEvery == 0 {
		c.CheckpointEvery = 2 * time.Second
	}
	if c.Data == "" {
		c.Dataset = cmp.Or(c.Dataset, model.Digits)
	}
	if len(c.Command) > 0 {
		return c.validateOwn()
	}
	like := c.Dataset
	if c.Data != "" {
		var err error
		if like, err = c.takeShape(); err != nil {
			return err
		}
	}
	c.Model = cmp.Or(c.Model, DefaultModel(like))
	if c.Servers == 0 {
		c.Servers = 2
	}
	if c.Masters < 0 || c.Servers < 0 || c.Trainers < 0 || c.Passes < 0 {
		return fmt.Errorf("expected at least one master, parameter server, trainer and pass, found %d, %d, %d and %d", c.Masters, c.Servers, c.Trainers, c.Passes)
	}
	if _, err := (reference.Recipe{Optimizer: c.Optimizer, Exchange: c.Exchange}).Complete(c.Model, like, c.Sync); err != nil {
		return err
	}
	recipe, err := model.RecipeFor(c.Model, like, c.Sync)
	if err != nil {
		return err
	}
	c.Passes = cmp.Or(c.Passes, recipe.Passes)
	return nil
}

// validateOwn is Validate for a run with own trainers.
func (c *Config) validateOwn() error {
	if c.Data != "" && !c.Resume {
		if _, _, err := convert.Resolve(context.Background(), c.Data); err != nil {
			return err
		}
	}
	c.Passes = cmp.Or(c.Passes, 1)
	switch {
	case c.Masters < 0 || c.Servers < 0 || c.Trainers < 0 || c.Passes < 0:
		return fmt.Errorf("expected at least one master, trainer and pass, and 0 or more parameter servers, found %d, %d, %d and %d", c.Masters, c.Trainers, c.Passes, c.Servers)
	case c.Servers == 0 && c.Sync:
		return errors.New("--update-mode sync: expected parameter servers: add --ps 1 or more")
	case c.OnTrainerLoss == Retrain && c.Deterministic:
		return errors.New("--on-trainer-loss: expected rewind with --deterministic, found retrain")
	}
	return nil
}

// New checks the configuration.
func New(c Config) (*Job, error) {
	if c.Binary == "" || c.Dir == "" {
		return nil, errors.New("local.Config: expected Binary and Dir")
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Job{config: c}, nil
}

// DefaultModel returns the default model of a dataset.
func DefaultModel(dataset string) string {
	if dataset == model.Flights {
		return model.FM
	}
	return model.Softmax
}

func (j *Job) path(names ...string) string {
	return filepath.Join(append([]string{j.config.Dir}, names...)...)
}

// Run prepares the data, runs the job and evaluates its model. watch (may be nil) is called
// once, with the endpoint of etcd, when the processes start; its context ends with the job.
func (j *Job) Run(ctx context.Context, watch func(ctx context.Context, endpoint string)) (Result, error) {
	began := time.Now()
	for _, dir := range []string{"data", "logs", checkpointsDir} {
		if err := os.MkdirAll(j.path(dir), 0o755); err != nil {
			return Result{}, fmt.Errorf("create the directory of the run: %w", err)
		}
	}
	if err := j.begin(ctx); err != nil {
		return Result{}, fmt.Errorf("prepare the data: %w", err)
	}
	etcd, err := etcdstore.StartEmbedded(ctx, etcdstore.EmbeddedConfig{Dir: j.path("etcd")})
	if err != nil {
		return Result{}, fmt.Errorf("start etcd: %w", err)
	}
	defer etcd.Close()
	j.endpoint = etcd.Endpoint()
	setAside, tasks, err := j.runOn(ctx, etcd.Err(), watch)
	if err != nil {
		return Result{}, err
	}
	result, err := j.result(ctx)
	result.SetAside, result.Tasks = setAside, tasks
	result.Elapsed = time.Since(began)
	result.Seconds = result.Elapsed.Seconds()
	return result, err
}

// runOn runs the processes on the etcd that was started. If that etcd fails, they are killed, and its failure is the error.
func (j *Job) runOn(ctx context.Context, failed <-chan error, watch func(ctx context.Context, endpoint string)) (setAside SetAside, tasks int, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case err, ok := <-failed:
			if ok {
				j.config.Log.WithError(err).Error("etcd failed, ending the run")
				j.storeFailed.Store(true)
				stop(err)
			}
		case <-ended:
		}
	}()
	hasEnded := false
	if err = j.endLeases(ctx); err == nil {
		err = j.countServers(ctx)
	}
	if err == nil {
		hasEnded, err = j.ownEnded(ctx)
	}
	if err == nil && !hasEnded {
		err = j.superviseNoted(ctx, watch)
	}
	if err == nil {
		setAside, tasks, err = j.finished(ctx)
	}
	return setAside, tasks, j.reason(ctx, err)
}

// reason returns why a run ended with err: the failure of etcd if there was one, since what else went wrong follows from it.
func (j *Job) reason(ctx context.Context, err error) error {
	if err != nil && j.storeFailed.Load() {
		<-ctx.Done() // the cause is set after storeFailed, which the children must find when ctx ends
		return context.Cause(ctx)
	}
	return err
}

// prepare writes the RecordIO shards.
func (j *Job) prepare(ctx context.Context) (err error) {
	switch {
	case j.config.Data != "" && len(j.config.Command) > 0:
		j.data.Train.Paths, j.data.Test.Paths, err = convert.Resolve(ctx, j.config.Data)
		return err
	case j.config.Data != "":
		j.data, err = describe(ctx, j.config.Data)
		return err
	}
	options := convert.Options{
		Prefix: j.path("data", j.config.Dataset), Shards: digitsShards, RecordsPerChunk: digitsRecords,
		Compression: recordio.Snappy, HeldOut: heldOut, Seed: splitSeed,
	}
	switch j.config.Dataset {
	case model.Digits:
		j.data, err = convert.CSV(ctx, bytes.NewReader(testdata.Digits), options)
		return err
	case model.Flights:
		options.Shards, options.RecordsPerChunk, options.LabelAbove = flightsShards, flightsRecords, new(lateAbove)
		j.data, err = convert.Categorical(ctx, bytes.NewReader(testdata.Flights), options)
		return err
	}
	options.Shards, options.RecordsPerChunk, options.HeldOut = mnistShards, mnistRecords, 0
	if j.data, err = j.convertMNIST(ctx, "train", options); err != nil {
		return err
	}
	options.Prefix, options.Shards = options.Prefix+"-test", 1
	test, err := j.convertMNIST(ctx, "t10k", options)
	j.data.Test = test.Train
	return err
}

func (j *Job) convertMNIST(ctx context.Context, part string, options convert.Options) (convert.Result, error) {
	var open [2]*os.File
	for i, name := range []string{part + "-images-idx3-ubyte", part + "-labels-idx1-ubyte"} {
		f, err := openEither(filepath.Join(j.config.MNIST, name))
		if err != nil {
			return convert.Result{}, err
		}
		defer f.Close()
		open[i] = f
	}
	return convert.IDX(ctx, open[0], open[1], options)
}

// openEither opens a file, or the file with the suffix .gz.
func openEither(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		if g, gzErr := os.Open(path + ".gz"); gzErr == nil {
			return g, nil
		}
		return nil, fmt.Errorf("%w: expected an idx file of MNIST, or its .gz: fetch them with `make data`", err)
	}
	return f, err
}

// superviseNoted supervises the processes, and registers them for `master drill` while they run.
func (j *Job) superviseNoted(ctx context.Context, watch func(ctx context.Context, endpoint string)) (err error) {
	scene := drill.Scene{Endpoint: j.endpoint}
	if j.config.Drillable {
		stop, err := j.putProxies(ctx, &scene)
		if err != nil {
			return fmt.Errorf("start the proxies of etcd: %w", err)
		}
		defer stop()
	}
	if j.register, err = drill.NewRegister(j.config.Dir, scene); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.register.Close()) }()
	if len(j.config.Command) > 0 {
		if j.gate, err = openGate(ctx, j.endpoint); err != nil {
			return fmt.Errorf("open an address for the trainers: %w", err)
		}
		defer j.gate.close()
	}
	j.define()
	return j.supervise(ctx, watch)
}

// putProxies puts a proxy between each master and etcd. stop ends them.
func (j *Job) putProxies(ctx context.Context, scene *drill.Scene) (stop func(), err error) {
	scene.Secret = rand.Text()
	proxies, err := drill.NewProxies(scene.Secret)
	if err != nil {
		return nil, err
	}
	scene.Control = proxies.Control()
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	stop = func() { cancel(); <-ended }
	j.proxied = map[string]string{}
	for i := range j.config.Masters {
		addr, addErr := proxies.Add(masterName(i), strings.TrimPrefix(j.endpoint, "http://"))
		err = errors.Join(err, addErr)
		j.proxied[masterName(i)] = "http://" + addr
	}
	go func() {
		defer close(ended)
		if err := proxies.Run(running); err != nil {
			j.config.Log.WithError(err).Warn("proxies of etcd failed; drills of etcd are unavailable")
		}
	}()
	if err != nil {
		stop()
	}
	return stop, err
}

// masterName returns the name of a master. The first master has no number.
func masterName(i int) string {
	if i == 0 {
		return "master"
	}
	return fmt.Sprintf("master-%d", i)
}

// define sets the processes and their arguments.
func (j *Job) define() {
	c := j.config
	child := func(name string, args ...string) *process {
		return &process{
			name: name, binary: c.Binary, args: append(args, "--endpoints", cmp.Or(j.proxied[name], j.endpoint)), logPath: j.path("logs", name+".log"), log: c.Log,
			restartPause: restartPause, stopTimeout: stopTimeout, register: j.register, storeFailed: &j.storeFailed,
		}
	}
	update := "async"
	if c.Sync {
		update = "sync"
	}
	linger, checkpointEvery := "10s", c.CheckpointEvery.String()
	if len(c.Command) > 0 {
		linger = ownLinger
	}
	if c.Servers == 0 {
		checkpointEvery = "never"
	}
	for i := range c.Masters {
		one := child(masterName(i), "--listen", "127.0.0.1:0", "--http", "", "--own-etcd", "--lease-ttl", "2s", "--linger", linger,
			"--ps", strconv.Itoa(c.Servers), "--trainers", strconv.Itoa(c.Trainers), "--passes", strconv.Itoa(c.Passes),
			"--update-mode", update, "--backup-workers", strconv.Itoa(c.Backups),
			"--deterministic="+strconv.FormatBool(c.Deterministic), "--checkpoint-every", checkpointEvery, "--seed", strconv.FormatUint(c.Seed, 10))
		if c.OnTrainerLoss != "" {
			one.args = append(one.args, "--on-trainer-loss", c.OnTrainerLoss)
		}
		if c.Data == "" {
			one.args = append(one.args, "--data-roots", j.path("data"))
		}
		if c.Resume && c.Servers > 0 {
			one.args = append(one.args, "--resume", j.path(checkpointsDir)) // has an effect only if etcd lost the job
		}
		one.endCodes = []int{ExitSetAside} // the result has the tasks
		if i == 0 {
			j.master = one
		} else {
			j.standbys = append(j.standbys, one)
		}
	}
	for i := range c.Servers {
		name := fmt.Sprintf("pserver-%d", i)
		server := child(name, "pserver", "--listen", "127.0.0.1:0", "--ps-ttl", "5s",
			"--checkpoint-dir", j.path(checkpointsDir))
		server.stopTimeout = serverStopTimeout
		j.servers = append(j.servers, server)
	}
	for i := range c.Trainers {
		name := fmt.Sprintf("trainer-%d", i)
		if len(c.Command) > 0 {
			own := child(name)
			own.binary, own.args, own.env, own.dir = c.Command[0], c.Command[1:], j.ownEnvironment(name), j.folder
			j.trainers = append(j.trainers, own)
			continue
		}
		args := []string{"trainer", "--id", name, "--model", c.Model, "--model-seed", strconv.FormatUint(c.Seed, 10), "--save-model", j.modelPath()}
		for _, path := range j.data.Train.Paths {
			args = append(args, "--data", path)
		}
		if c.Data != "" {
			args = append(args, "--classes", strconv.Itoa(j.data.Classes))
		}
		args = append(args, c.Optimizer.Flags()...)
		if c.WireDType != "" {
			args = append(args, "--wire-dtype", c.WireDType)
		}
		args = append(args, "--push-every", strconv.Itoa(c.Exchange.PushEvery), "--pull-every", strconv.Itoa(c.Exchange.PullEvery),
			"--staleness", strconv.FormatUint(c.Exchange.Staleness.Limit, 10), "--staleness-policy", c.Exchange.Staleness.Name())
		if c.Journal {
			args = append(args, "--journal", j.path("journal.jsonl"))
		}
		j.trainers = append(j.trainers, child(name, args...))
	}
}

func (j *Job) modelPath() string {
	name := j.config.Dataset
	if name == "" {
		name = convert.NameOf(j.data.Train.Paths[0])
	}
	return j.path(name + "-" + j.config.Model + ".safetensors")
}

// supervise runs the processes until the master has ended the job, then stops the rest:
// trainers first, parameter servers last.
func (j *Job) supervise(ctx context.Context, watch func(ctx context.Context, endpoint string)) error {
	serving, stopServers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServers()
	leading, stopMaster := context.WithCancel(context.WithoutCancel(ctx))
	defer stopMaster()
	training, stopTrainers := context.WithCancel(ctx)
	defer stopTrainers()

	servers, _ := errgroup.WithContext(serving)
	for _, p := range j.servers {
		servers.Go(func() error {
			err := p.run(serving)
			if err != nil {
				stopTrainers()
			}
			return err
		})
	}
	var trainers errgroup.Group
	for _, p := range j.trainers {
		trainers.Go(func() error {
			err := p.run(training)
			if err != nil {
				stopTrainers()
			}
			return err
		})
	}
	left := make(chan struct{}) // closed when all trainers have ended, with trainersErr set
	var trainersErr error
	go func() {
		defer close(left)
		trainersErr = trainers.Wait()
	}()
	ended := make(chan error, 1)
	go func() { ended <- j.lead(leading) }()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if watch != nil {
			watch(training, j.endpoint)
		}
	}()
	own := j.superviseOwn(training, left, stopTrainers)

	var err error
	select {
	case err = <-ended: // the job has ended
		if err != nil {
			stopTrainers()
		}
		late := time.AfterFunc(j.leaveTimeout(), stopTrainers)
		<-left
		err = errors.Join(err, trainersErr)
		late.Stop()
		stopTrainers()
	case <-training.Done(): // interrupted, or a process that cannot run
		<-left
		err = trainersErr
		stopServers()  // before the master, which takes their last checkpoint set
		servers.Wait() //nolint:errcheck // see below
		stopMaster()
		err = errors.Join(err, <-ended, context.Cause(ctx))
	}
	<-watched
	stopServers()
	return errors.Join(err, own(), servers.Wait())
}

// lead runs the masters until one of them ends the job, and then stops the standbys.
func (j *Job) lead(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	for _, p := range slices.Concat([]*process{j.master}, j.standbys) {
		group.Go(func() error {
			defer stop()
			return p.run(ctx)
		})
	}
	return group.Wait()
}

// result counts the restarts, and evaluates the model of built-in trainers.
func (j *Job) result(ctx context.Context) (Result, error) {
	r := Result{Passes: j.config.Passes, Dir: j.config.Dir}
	for _, p := range slices.Concat([]*process{j.master}, j.standbys, j.servers, j.trainers) {
		if p != nil { // a resumed run that had ended starts no process
			r.Restarts += int(p.restarts.Load())
		}
	}
	if len(j.config.Command) > 0 {
		return r, nil
	}
	r.Model, r.ModelPath = j.config.Model, j.modelPath()
	err := j.evaluate(ctx, &r)
	return r, err
}

// evaluate measures the saved model on the held-out records.
func (j *Job) evaluate(ctx context.Context, r *Result) error {
	if len(j.data.Test.Paths) == 0 {
		return nil
	}
	_, e, err := EvaluateSaved(ctx, r.ModelPath, j.data.Test.Paths)
	if err != nil {
		return err
	}
	r.Accuracy, r.Loss, r.TestRecords, r.AUC = new(e.Accuracy()), new(e.Loss()), e.Records, e.AUC
	return nil
}

// EvaluateSaved measures a saved model on the records of some files. It returns an error if there are no records, or if the labels or
// the scaling of the files are known to differ from the training data of the model.
func EvaluateSaved(ctx context.Context, modelPath string, files []string) (saved reference.Saved, e reference.Evaluation, err error) {
	if saved, err = reference.ReadSaved(modelPath); err != nil {
		return saved, e, err
	}
	if err := sameMeaning(saved.Meaning, modelPath, files); err != nil {
		return saved, e, err
	}
	m, err := saved.Model()
	if err != nil {
		return saved, e, err
	}
	e, err = reference.Evaluate(m, saved.Tensors, saved.RowsOf, until(ctx, records(files)))
	if err == nil && e.Records == 0 {
		err = fmt.Errorf("evaluate %s: expected at least one record, found none in %d files", modelPath, len(files))
	}
	return saved, e, err
}
