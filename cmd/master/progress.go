package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"trainmaster/etcdstore"
	"trainmaster/master/grpcapi"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

const (
	pollEvery   = 200 * time.Millisecond
	pollTimeout = time.Second // then there may be another leader
	plainEvery  = 2 * time.Second
)

// progress shows the progress of a job: a bar on a terminal, otherwise a line every 2 s.
type progress struct {
	out    io.Writer
	bar    *progressbar.ProgressBar // nil: plain lines
	lines  time.Time                // of the last plain line
	last   string
	final  bool   // the next line is the last
	passes uint32 // passes of the job, as a master reported

	registering time.Time // since when

	trainerLog string    // of own trainers; "": trainers are built in
	idle       time.Time // since when tasks wait and no trainer has a task
	warned     bool      // of that
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = newBar(f)
	}
	return p
}

func newBar(out io.Writer) *progressbar.ProgressBar {
	return progressbar.NewOptions64(1, progressbar.OptionSetWriter(out), progressbar.OptionSetWidth(24),
		progressbar.OptionThrottle(65*time.Millisecond),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "━", SaucerHead: "╸", SaucerPadding: " ", BarStart: "", BarEnd: ""}))
}

// show takes a status of the job.
func (p *progress) show(s *pb.StatusReply) {
	switch {
	case s.Registration != nil:
		if p.registering.IsZero() {
			p.registering = time.Now()
		}
		if r := newRegistration(s.Registration); p.bar != nil || time.Since(p.registering) >= plainEvery { // a short one is worth no line
			p.draw(r.String(), int64(r.Done), int64(r.Total))
		}
	case len(s.Datasets) > 0:
		d := s.Datasets[0]
		p.passes = d.Passes
		p.warnOfIdle(s)
		total := int64(d.Passes) * int64(d.Tasks)
		p.draw(training(s), int64(max(d.Pass, 1)-1)*int64(d.Tasks)+int64(d.Done+d.SetAside), total)
	}
}

// showEnd takes the stored status of a job that has ended. Its masters may have left before they were asked for it.
func (p *progress) showEnd(s *pb.StatusReply) {
	if len(s.Datasets) == 0 {
		return
	}
	p.final = true
	s.Totals = nil // nothing is trained any more
	d := s.Datasets[0]
	d.Passes = max(p.passes, d.Pass) // the setting of a master, which the state does not have
	p.show(s)
}

// idleAfter is the time without a dispatched task after which own trainers are said to take none.
const idleAfter = time.Minute

// warnOfIdle names the log of a trainer, once, if no trainer takes a task for idleAfter: a trainer may hang, or never join.
func (p *progress) warnOfIdle(s *pb.StatusReply) {
	d := s.Datasets[0]
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

// training says how far the first dataset is.
func training(s *pb.StatusReply) string {
	d := s.Datasets[0]
	text := fmt.Sprintf("pass %d/%d  tasks %d done %d pending %d todo", d.Pass, d.Passes, d.Done, d.Pending, d.Todo+d.Retry)
	if d.SetAside > 0 {
		text += fmt.Sprintf(" %d SET ASIDE", d.SetAside)
	}
	if s.Status == pb.JobStatus_JOB_STATUS_PAUSED {
		text += fmt.Sprintf("  %s; continue it with: master resume", withReason("PAUSED", s.Reason))
	}
	if s.Totals != nil {
		text += fmt.Sprintf("  %.0f records/s", s.Totals.RecordsPerSecond)
		if s.Totals.MeanLoss != nil {
			text += fmt.Sprintf("  loss %.4f", *s.Totals.MeanLoss)
		}
	}
	return text
}

func (p *progress) draw(text string, done, total int64) {
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

func (p *progress) finish() {
	switch {
	case p.bar == nil:
	case p.final:
		_ = p.bar.Finish() // a terminal that went away
		fmt.Fprintln(p.out)
	default:
		_ = p.bar.Clear() // the same
	}
}

// watchJob shows the progress of a job until ctx ends. A master that is away is waited for.
func watchJob(ctx context.Context, config etcdstore.Config, p *progress) {
	defer p.finish()
	store, err := etcdstore.OpenRetry(ctx, config, nil)
	if err != nil {
		return
	}
	l := &leader{place: place{etcd: &config}, store: store, close: func() { _ = store.Close() }} // nothing was written
	defer l.hangUp()
	followJob(ctx, l, p)
}

func followJob(ctx context.Context, l *leader, p *progress) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			showStoredEnd(ctx, l, p)
			return
		case <-ticker.C:
		}
		asking, cancel := context.WithTimeout(ctx, pollTimeout)
		_ = l.ask(asking, func(ctx context.Context, o pb.OperatorClient) error {
			status, err := o.Status(ctx, &pb.StatusRequest{})
			if err == nil {
				p.show(status)
			}
			return err
		}) // without an answer there is no leader, or it is being replaced
		cancel()
	}
}

// showStoredEnd shows how a job ended, if it has.
func showStoredEnd(ctx context.Context, l *leader, p *progress) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), pollTimeout)
	defer cancel()
	queue, _, err := readQueue(bounded, l.store, l.place)
	if err != nil { // etcd is away: the job has not ended
		return
	}
	if v := queue.Overview(); v.Status == taskqueue.Ended {
		p.showEnd(grpcapi.StatusReply(&v))
	}
}
