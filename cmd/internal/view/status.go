package view

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"trainmaster/cmd/internal/cli"
	pb "trainmaster/proto/trainmaster/v1"
)

// Status is what `master status` says.
type Status struct {
	Job      string          `json:"job"`
	Status   string          `json:"status"` // running, paused, ended, failed; stopped: running when its processes ended
	Reason   string          `json:"reason"`
	Leader   jobLeader       `json:"leader"`
	Epoch    uint32          `json:"epoch"`
	Commit   uint64          `json:"commit"`
	Datasets []datasetStatus `json:"datasets"`
	// Registration describes the dataset that is being registered; null if there is none.
	Registration *registration `json:"registration"`
	// Checkpoint describes the checkpoints of this term; null if the master takes none.
	Checkpoint *checkpointStatus `json:"checkpoint"`
	// Servers are the parameter servers; null when the job has none.
	Servers *Servers  `json:"parameter_servers"`
	Totals  jobTotals `json:"totals"`
	Steps   *jobSteps `json:"steps,omitempty"` // of explicit commits
	// LearningRate is the learning rate that master job set or the strategy has set; null: it was not changed.
	LearningRate *learningRate `json:"learning_rate"`
	// Strategy has the hyper-parameters and the last decisions of the strategy; null: the job has none.
	Strategy *strategyStatus `json:"strategy"`
	// Population has the trainers with models of their own; null: the job has none.
	Population *populationStatus `json:"population"`
	// Pods are the pods that the master creates, by role.
	Pods []podGroup `json:"pods"`
	// RingWaits is why the ring has had no generation for 30 s; "": it has one, or has waited less.
	RingWaits string `json:"ring_waits,omitempty"`
	// Refusal is why etcd did not take the last commit, and what to do; "": it took it.
	Refusal string `json:"refusal"`
	// Ledger describes how the leader seals the ledger; null if it writes none.
	Ledger *LedgerStatus `json:"ledger"`

	Progress *float64 `json:"progress"` // share of all passes of all datasets; null: there is no end, or no dataset yet
	endedIn  int      // pass in which a rule or an operator has ended the job; 0: the job has not ended, or all passes are done
	Left     *float64 `json:"left_s"` // null: not known

	next string // command that continues a job whose directory no process uses; "": the job has ended, or a master leads it
}

type learningRate struct {
	Rate  float32 `json:"rate"`
	Scale float32 `json:"scale"`        // of the rate at the start
	From  uint64  `json:"from_version"` // 0: the job is asynchronous
}

func (r *learningRate) String() string {
	text := fmt.Sprintf("%v, %.4g times the rate at the start", r.Rate, r.Scale)
	if r.From > 0 {
		text += fmt.Sprintf(", from version %d on", r.From)
	}
	return text
}

type checkpointStatus struct {
	Set     uint64  `json:"set"` // 0: none yet
	Age     float64 `json:"age_s"`
	Failure string  `json:"failure"`
}

func newCheckpointStatus(c *pb.CheckpointStatus) *checkpointStatus {
	if c == nil {
		return nil
	}
	return &checkpointStatus{c.GetSet(), c.GetAgeSeconds(), c.GetFailure()}
}

func (c *checkpointStatus) String() string {
	text := "none in this term yet"
	if c.Set > 0 {
		text = fmt.Sprintf("set %d, %s old", c.Set, cli.Span(c.Age))
	}
	if c.Failure != "" {
		text += "; the last attempt failed: " + c.Failure
	}
	return text
}

// LedgerStatus describes how the leader seals the ledger.
type LedgerStatus struct {
	Sealed  uint64  `json:"sealed"`
	Bytes   uint64  `json:"bytes"`
	Dir     string  `json:"directory"` // "": in etcd
	Hangs   float64 `json:"hangs_s"`
	Failure string  `json:"failure"`
}

func newLedgerStatus(l *pb.LedgerStatus) *LedgerStatus {
	if l == nil {
		return nil
	}
	return &LedgerStatus{l.GetSealed(), l.GetBytes(), l.GetDirectory(), l.GetHangSeconds(), l.GetFailure()}
}

// trouble describes why the ledger is not sealed; "": it is.
func (l *LedgerStatus) trouble() string {
	var parts []string
	if l.Hangs > 0 {
		parts = append(parts, fmt.Sprintf("directory %s has not answered for %s: check its file system", l.Dir, cli.Span(l.Hangs)))
	}
	if l.Failure != "" {
		parts = append(parts, "the last attempt to seal failed: "+l.Failure)
	}
	if len(parts) > 0 {
		parts = append(parts, "entries stay in etcd until then")
	}
	return strings.Join(parts, "; ")
}

type jobSteps struct {
	Committed   uint64 `json:"committed"`
	Generation  uint64 `json:"generation"`
	Uncommitted uint64 `json:"uncommitted"`
}

func (s *jobSteps) table(w io.Writer) {
	if s != nil {
		fmt.Fprintf(w, "steps\t%s committed, %s tasks wait for the next; generation %d\n", cli.Thousands(s.Committed), cli.Thousands(s.Uncommitted), s.Generation)
	}
}

type jobLeader struct {
	Address string `json:"address"`
	Term    uint64 `json:"term"`
}

type registration struct {
	Step  string `json:"step"`
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
}

func newRegistration(r *pb.Registration) *registration {
	if r == nil {
		return nil
	}
	return &registration{r.GetStep(), r.GetDone(), r.GetTotal()}
}

func (r *registration) String() string {
	return fmt.Sprintf("%s: %s of %s", r.Step, cli.Thousands(r.Done), cli.Thousands(r.Total))
}

type datasetStatus struct {
	Dataset       uint32  `json:"dataset"`
	Name          string  `json:"name"`
	Weight        uint32  `json:"weight"` // among the datasets of the kind
	Kind          string  `json:"kind"`   // training, evaluation, prediction
	Digest        string  `json:"digest"`
	Pass          uint32  `json:"pass"`
	Passes        uint32  `json:"passes"`
	Tasks         uint64  `json:"tasks"`
	Todo          uint64  `json:"todo"`
	Pending       uint64  `json:"pending"`
	Retry         uint64  `json:"retry"`
	Done          uint64  `json:"done"`
	SetAside      uint64  `json:"set_aside"`
	Uncommitted   uint64  `json:"uncommitted,omitempty"` // of explicit commits
	Cursor        uint64  `json:"cursor"`
	Chunks        uint64  `json:"chunks"`
	ChunksPerTask uint32  `json:"chunks_per_task"`
	Records       uint64  `json:"records"`
	AverageTask   float64 `json:"average_task_s"`
	Timeout       float64 `json:"timeout_s"`
	Online        bool    `json:"online,omitempty"` // files are appended until it is closed
	Closed        bool    `json:"closed,omitempty"`
}

type jobTotals struct {
	Trainers         uint32   `json:"trainers"`
	RecordsTrained   uint64   `json:"records_trained"`
	RecordsPerSecond float64  `json:"records_per_s"`
	MeanLoss         *float64 `json:"mean_loss"` // null: none was reported, or it is no number any more
	Commits          uint64   `json:"commits"`
	CommitsRefused   uint64   `json:"commits_refused"`
	Uptime           float64  `json:"uptime_s"`

	Stalled bool `json:"stalled"` // tasks are pending, and no trainer has trained a record lately

	diverged bool // a loss was reported that is no finite number
}

// stalledUptime is how long a leader leads before it knows the rates of all trainers, if tasks are short.
const stalledUptime = 20 // seconds

// NewStoredStatus returns the status of a job without a leader. startCommand continues the job if it has not ended.
func NewStoredStatus(r *pb.StatusReply, startCommand string) Status {
	s := NewStatus(r)
	if !s.Ended() {
		s.next = startCommand
		if s.Status == "running" {
			s.Status = "stopped"
		}
		return s
	}
	for i := range s.Datasets {
		s.Datasets[i].Passes = s.Datasets[i].Pass // how many there were to be is a setting of the master
	}
	s.measure()
	return s
}

// enumWord is the last part of an enum's name: JOB_STATUS_RUNNING is running.
func enumWord(name fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(name.String(), prefix))
}

// NewStatus returns the status in a reply of the leader.
func NewStatus(r *pb.StatusReply) Status {
	t := r.GetTotals()
	if t == nil {
		t = &pb.JobTotals{}
	}
	s := Status{
		Job: r.GetJob(), Status: enumWord(r.GetStatus(), "JOB_STATUS_"), Reason: r.GetReason(),
		Leader: jobLeader{r.GetLeaderAddress(), r.GetTerm()}, Epoch: r.GetEpoch(), Commit: r.GetCommit(), Datasets: []datasetStatus{},
		Registration: newRegistration(r.GetRegistration()), Checkpoint: newCheckpointStatus(r.GetCheckpoint()), Servers: newServersStatus(r.GetParameterServers()), Refusal: r.GetRefusal(),
		Ledger: newLedgerStatus(r.GetLedger()),
		Totals: jobTotals{
			Trainers: t.GetTrainers(), RecordsTrained: t.GetRecordsTrained(), RecordsPerSecond: t.GetRecordsPerSecond(),
			MeanLoss: t.MeanLoss, Commits: t.GetCommits(), CommitsRefused: t.GetCommitsRefused(), Uptime: t.GetUptimeSeconds(),
		},
	}
	if loss := t.GetMeanLoss(); math.IsNaN(loss) || math.IsInf(loss, 0) {
		s.Totals.MeanLoss, s.Totals.diverged = nil, true
	}
	if l := r.GetLearningRate(); l != nil {
		s.LearningRate = &learningRate{l.GetRate(), l.GetScale(), l.GetFromVersion()}
	}
	s.Strategy, s.Population = newStrategyStatus(r.GetStrategy()), newPopulationStatus(r.GetPopulation())
	if p := r.GetSteps(); p != nil {
		s.Steps = &jobSteps{p.GetCommitted(), p.GetGeneration(), p.GetUncommitted()}
	}
	s.Pods, s.RingWaits = newPodGroups(r.GetPods()), r.GetRingWaits()
	for _, d := range r.GetDatasets() {
		s.Datasets = append(s.Datasets, datasetStatus{
			Dataset: d.GetDataset(), Name: d.GetName(), Weight: d.GetWeight(), Kind: enumWord(d.GetKind(), "TASK_KIND_"), Digest: hex.EncodeToString(d.GetDigest()), Pass: d.GetPass(), Passes: d.GetPasses(),
			Tasks: d.GetTasks(), Todo: d.GetTodo(), Pending: d.GetPending(), Retry: d.GetRetry(), Done: d.GetDone(), SetAside: d.GetSetAside(), Uncommitted: d.GetUncommitted(), Cursor: d.GetCursor(),
			Chunks: d.GetChunks(), ChunksPerTask: d.GetChunksPerTask(), Records: d.GetRecords(), AverageTask: d.GetAverageTaskSeconds(), Timeout: d.GetTimeoutSeconds(), Online: d.GetOnline(), Closed: d.GetOnline() && d.GetClosed(),
		})
	}
	s.Totals.Stalled = s.isStalled()
	s.measure()
	return s
}

func (s *Status) isStalled() bool {
	pending := slices.ContainsFunc(s.Datasets, func(d datasetStatus) bool { return d.Pending > 0 })
	needed := float64(stalledUptime)
	for _, d := range s.Datasets {
		needed = max(needed, 2*d.AverageTask) // trainers may report once for each task
	}
	t := s.Totals
	return s.Status == "running" && pending && t.Trainers > 0 && t.RecordsTrained > 0 && t.RecordsPerSecond == 0 && t.Uptime > needed
}

// Ended reports whether the job has ended or failed.
func (s Status) Ended() bool { return s.Status == "ended" || s.Status == "failed" }

// Table writes lines of at most 80 columns: a row for each property, wrapped, and two narrow tables of the datasets.
func (s Status) Table(w io.Writer) {
	var rows bytes.Buffer
	s.rows(&rows)
	cli.WriteColumns(w, rows.String())
	fmt.Fprintln(w)
	s.datasetsTable(w)
}

func (s Status) rows(w io.Writer) {
	fmt.Fprintf(w, "job\t%s\n", WithReason(s.Job+", "+s.Status, s.Reason))
	if s.Progress != nil {
		fmt.Fprintf(w, "progress\t%s\n", s.progressText())
	}
	if s.Leader.Address == "" && (s.Ended() || s.next != "") {
		none := "the job has ended"
		if s.next != "" {
			none = "no process uses the directory\ncontinue\t" + s.next
		}
		fmt.Fprintf(w, "leader\tnone: "+none+"\ncommits\t%s; epoch %d\n", cli.Thousands(s.Commit), s.Epoch)
		s.Steps.table(w)
		s.Strategy.rows(w)
		s.Population.rows(w)
		return
	}
	fmt.Fprintf(w, "leader\t%s, term %d, up for %s\n", s.Leader.Address, s.Leader.Term, cli.Span(s.Totals.Uptime))
	refused := ""
	if s.Totals.CommitsRefused > 0 {
		refused = fmt.Sprintf(", %s refused by etcd", cli.Thousands(s.Totals.CommitsRefused))
	}
	fmt.Fprintf(w, "commits\t%s, of them %s in this term%s; epoch %d\n", cli.Thousands(s.Commit), cli.Thousands(s.Totals.Commits), refused, s.Epoch)
	if s.Checkpoint != nil && (s.Checkpoint.Set > 0 || s.Checkpoint.Failure != "") {
		fmt.Fprintf(w, "checkpoint\t%v\n", s.Checkpoint)
	}
	s.Steps.table(w)
	if s.Servers != nil {
		fmt.Fprintf(w, "parameter servers\t%v\n", s.Servers)
	}
	for _, g := range s.Pods {
		fmt.Fprintf(w, "%s pods\t%v\n", g.Role, g)
	}
	if s.RingWaits != "" {
		fmt.Fprintf(w, "ring\twaits: %s\n", oneLine(s.RingWaits))
	}
	if s.LearningRate != nil {
		fmt.Fprintf(w, "learning rate\t%v\n", s.LearningRate)
	}
	s.Strategy.rows(w)
	s.Population.rows(w)
	if s.Refusal != "" {
		fmt.Fprintf(w, "etcd\t%s\n", oneLine(s.Refusal))
	}
	if s.Ledger != nil {
		if text := s.Ledger.trouble(); text != "" {
			fmt.Fprintf(w, "ledger\t%s\n", text)
		}
	}
	fmt.Fprintf(w, "trainers\t%s\n", s.Totals.line())
}

// progressText is the share of the work that is done, and how long the rest will take.
func (s Status) progressText() string {
	if s.endedIn > 0 {
		return fmt.Sprintf("ended early in pass %d", s.endedIn)
	}
	const of = 1000
	text := bar(uint64(*s.Progress*of), of)
	if s.Left != nil {
		text += fmt.Sprintf(", about %s left", roughSpan(*s.Left))
	}
	return text
}

// measure fills in how much of the job is done and how long the rest takes at the speed of now.
func (s *Status) measure() {
	var all, done, left, seconds float64 // left is in records
	for _, d := range s.Datasets {
		if d.Kind == "evaluation" {
			continue
		}
		passes := max(d.Passes, d.Pass)
		if d.Passes == 0 && !s.Ended() || d.Tasks == 0 || d.Online && !d.Closed {
			return
		}
		whole := float64(passes) * float64(d.Tasks)
		part := float64(max(d.Pass, 1)-1)*float64(d.Tasks) + float64(d.Done+d.SetAside)
		all, done = all+whole, done+min(part, whole)
		left += (whole - part) / float64(d.Tasks) * float64(d.Records)
		seconds += (whole - part) * d.AverageTask
	}
	if all == 0 {
		return
	}
	s.Progress = new(done / all)
	if s.Status == "ended" {
		if done < all {
			s.endedIn = int(s.Datasets[0].Pass)
		}
		*s.Progress = 1
	}
	switch {
	case s.Status != "running" || s.Totals.Trainers == 0 || s.Totals.Stalled:
	case s.Totals.RecordsPerSecond > 0:
		s.Left = new(left / s.Totals.RecordsPerSecond)
	case seconds > 0: // the trainers report no records
		s.Left = new(seconds / float64(s.Totals.Trainers))
	}
}

func (s Status) datasetsTable(w io.Writer) {
	switch {
	case s.Registration != nil:
		fmt.Fprintln(w, s.Registration)
	case len(s.Datasets) == 0:
		fmt.Fprintln(w, "No dataset yet: a job with tasks begins when a trainer reports its dataset.")
	}
	if len(s.Datasets) == 0 {
		return
	}
	fmt.Fprintln(w, "DATASET\tPASS\tDONE\tPENDING\tRETRY\tTODO\tSET ASIDE\tTASKS")
	for _, d := range s.Datasets {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Dataset, shortPasses(d.Pass, d.Passes), cli.Thousands(d.Done),
			cli.Thousands(d.Pending), cli.Thousands(d.Retry), cli.Thousands(d.Todo), cli.Thousands(d.SetAside), cli.Thousands(d.Tasks))
	}
	fmt.Fprintln(w, "\nDATASET\tKIND\tPASS DONE\tCHUNKS\tRECORDS\tTASK TIME\tTIMEOUT")
	for _, d := range s.Datasets {
		average := "-"
		if d.AverageTask > 0 {
			average = cli.Span(d.AverageTask)
		}
		fmt.Fprintf(w, "%d\t%s\t%d%%\t%s\t%s\t%s\t%s\n", d.Dataset, d.Kind, 100*(d.Done+d.SetAside)/max(d.Tasks, 1),
			cli.Thousands(d.Chunks), cli.Thousands(d.Records), average, cli.Span(d.Timeout))
	}
	if !slices.ContainsFunc(s.Datasets, func(d datasetStatus) bool { return d.Name != "" && d.Name != d.Kind }) {
		return
	}
	fmt.Fprintln(w, "\nDATASET\tWEIGHT\tNAME")
	for _, d := range s.Datasets {
		name := d.Name
		switch {
		case d.Online && d.Closed:
			name += " (closed)"
		case d.Online:
			name += " (online)"
		}
		fmt.Fprintf(w, "%d\t%d\t%s\n", d.Dataset, d.Weight, name)
	}
}

// shortPasses is ofPasses in few columns.
func shortPasses(pass, passes uint32) string {
	if passes == 0 {
		return strconv.Itoa(int(pass))
	}
	return fmt.Sprintf("%d/%d", pass, passes)
}

// roughSpan writes an estimate: 12s, 4m, 3h20m, 5d.
func roughSpan(seconds float64) string {
	d := time.Duration(min(seconds, 1e9) * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(math.Ceil(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(math.Ceil(d.Minutes())))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(math.Ceil(d.Hours()/24)))
}

func (t jobTotals) line() string {
	if t.Trainers == 0 {
		return "none"
	}
	text := fmt.Sprintf("%s, %s records/s", cli.Thousands(uint64(t.Trainers)), cli.Thousands(uint64(math.Round(t.RecordsPerSecond))))
	if t.Stalled {
		text += " (stalled)"
	}
	switch {
	case t.diverged:
		return text + ", mean loss is no number any more"
	case t.MeanLoss != nil:
		return text + fmt.Sprintf(", mean loss %.4g", *t.MeanLoss)
	}
	return text
}

// pausedByOperator begins the stored reason of a job that an operator paused.
const pausedByOperator = "paused by an operator"

// WithReason adds the reason of a status to a text; "": there is none.
func WithReason(text, reason string) string {
	if rest, ok := strings.CutPrefix(reason, pausedByOperator); ok {
		return text + " by an operator" + rest
	}
	if reason == "" {
		return text
	}
	return text + ": " + reason
}

func ofPasses(pass, passes uint32) string {
	if passes == 0 {
		return strconv.Itoa(int(pass))
	}
	return fmt.Sprintf("%d of %d", pass, passes)
}

const barWidth = 20

// bar draws how much of a whole is done.
func bar(done, whole uint64) string {
	share := 0.0
	if whole > 0 {
		share = min(1, float64(done)/float64(whole))
	}
	full := int(share * barWidth)
	return fmt.Sprintf("%s%s %3d%%", strings.Repeat("█", full), strings.Repeat("░", barWidth-full), int(share*100))
}
