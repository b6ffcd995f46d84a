package view

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master/rounds"
	pb "trainmaster/proto/trainmaster/v1"
)

// plainEvery is the time between two lines.
const plainEvery = 2 * time.Second

// Progress shows the progress of a job: a bar on a terminal, otherwise a line every 2 s.
type Progress struct {
	out    io.Writer
	bar    *progressbar.ProgressBar // nil: plain lines
	lines  time.Time                // of the last plain line
	last   string
	final  bool   // the next line is the last
	rated  bool   // a rate was reported: 0 is a standstill, not an unknown rate
	passes uint32 // passes of the job, as a master reported

	registering time.Time // since when
	rounds      uint64    // evaluation rounds that were shown
	metrics     io.Writer // receives their figures as lines of name=value; nil: none are written

	trainerLog string    // of own trainers; "": trainers are built in
	idle       time.Time // since when tasks wait and no trainer has a task
	warned     bool      // of that
}

// NewProgress returns a progress that writes to out. trainerLog is the log of a trainer with a command of its own; "": trainers are built in. metrics
// receives the figures of evaluation rounds; it may be nil.
func NewProgress(out io.Writer, trainerLog string, metrics io.Writer) *Progress {
	p := &Progress{out: out, trainerLog: trainerLog, metrics: metrics}
	if cli.IsTerminal(out) {
		p.bar = newBar(out)
	}
	return p
}

func newBar(out io.Writer) *progressbar.ProgressBar {
	return progressbar.NewOptions64(1, progressbar.OptionSetWriter(out), progressbar.OptionSetWidth(24),
		progressbar.OptionThrottle(65*time.Millisecond),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "━", SaucerHead: "╸", SaucerPadding: " ", BarStart: "", BarEnd: ""}))
}

// Show takes a status of the job.
func (p *Progress) Show(s *pb.StatusReply) {
	switch {
	case s.Registration != nil:
		if p.registering.IsZero() {
			p.registering = time.Now()
		}
		if r := newRegistration(s.Registration); p.bar != nil || time.Since(p.registering) >= plainEvery { // a short one is worth no line
			p.draw(r.String(), int64(r.Done), int64(r.Total))
		}
	case trained(s) != nil:
		d := trained(s)
		p.passes = d.Passes
		p.warnOfIdle(s)
		total := int64(d.Passes) * int64(d.Tasks)
		p.rated = p.rated || s.GetTotals().GetRecordsPerSecond() > 0
		p.draw(p.training(s), int64(max(d.Pass, 1)-1)*int64(d.Tasks)+int64(d.Done+d.SetAside), total)
	}
}

// ShowEnd takes the stored status of a job that has ended. Its masters may have left before they were asked for it.
func (p *Progress) ShowEnd(s *pb.StatusReply) {
	d := trained(s)
	if d == nil {
		return
	}
	p.final = true
	s.Totals = nil                   // nothing is trained any more
	d.Passes = max(p.passes, d.Pass) // the setting of a master, which the state does not have
	p.Show(s)
}

// idleAfter is the time without a dispatched task after which own trainers are said to take none.
const idleAfter = time.Minute

// warnOfIdle names the log of a trainer, once, if no trainer takes a task for idleAfter: a trainer may hang, or never join.
func (p *Progress) warnOfIdle(s *pb.StatusReply) {
	d := trained(s)
	if d.Pending > 0 || d.Todo+d.Retry == 0 || s.Status != pb.JobStatus_JOB_STATUS_RUNNING {
		p.idle = time.Time{}
		return
	}
	switch {
	case p.trainerLog == "" || p.warned:
	case p.idle.IsZero():
		p.idle = time.Now()
	case time.Since(p.idle) >= idleAfter:
		p.warned = true
		fmt.Fprintf(p.out, "no trainer has taken a task for 1 minute: expected the command to join and take tasks: see %s\n", p.trainerLog)
	}
}

// trained returns the first training dataset, nil if there is none yet.
func trained(s *pb.StatusReply) *pb.DatasetStatus {
	for _, d := range s.Datasets {
		if d.Kind == pb.TaskKind_TASK_KIND_TRAINING || d.Kind == pb.TaskKind_TASK_KIND_UNSPECIFIED {
			return d
		}
	}
	return nil
}

// training is the progress of the first training dataset.
func (p *Progress) training(s *pb.StatusReply) string {
	d := trained(s)
	text := fmt.Sprintf("pass %d/%d  tasks %d done %d pending %d todo", d.Pass, d.Passes, d.Done, d.Pending, d.Todo+d.Retry)
	if d.SetAside > 0 {
		text += fmt.Sprintf(" %d SET ASIDE", d.SetAside)
	}
	if s.Status == pb.JobStatus_JOB_STATUS_PAUSED {
		text += fmt.Sprintf("  %s; continue it with: master resume", WithReason("PAUSED", s.Reason))
	}
	if s.Totals != nil {
		if p.rated {
			text += fmt.Sprintf("  %.0f records/s", s.Totals.RecordsPerSecond)
		}
		if s.Totals.MeanLoss != nil {
			text += fmt.Sprintf("  loss %.4f", *s.Totals.MeanLoss)
		}
	}
	return text
}

func (p *Progress) draw(text string, done, total int64) {
	if p.bar != nil {
		p.bar.ChangeMax64(max(total, 1))
		p.bar.Describe(text)
		_ = p.bar.Set64(done) // a terminal that went away
		return
	}
	if text != p.last && (p.final || time.Since(p.lines) >= plainEvery) {
		p.lines, p.last = time.Now(), text
		fmt.Fprintln(p.out, text)
	}
}

// NextRound returns the number of the evaluation round to show next.
func (p *Progress) NextRound() uint64 { return p.rounds + 1 }

// ShowRound shows the figures of the next evaluation round, which has ended.
func (p *Progress) ShowRound(e Evaluation) {
	p.rounds = e.Round
	if p.bar != nil {
		_ = p.bar.Clear() // a terminal that went away
	}
	fmt.Fprintln(p.out, e.line())
	if p.metrics != nil && e.Trainer == "" {
		_ = rounds.WriteFigures(p.metrics, e.Figures) // of a disk that is full
	}
}

// Finish ends the output: a bar stays if the job has ended, and is removed if it has not.
func (p *Progress) Finish() {
	switch {
	case p.bar == nil:
	case p.final:
		_ = p.bar.Finish() // a terminal that went away
		fmt.Fprintln(p.out)
	default:
		_ = p.bar.Clear() // the same
	}
}
