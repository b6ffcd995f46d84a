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
	pb "trainmaster/proto/trainmaster/v1"
)

const (
	pollEvery   = 200 * time.Millisecond
	pollTimeout = time.Second // then there may be another leader
	plainEvery  = 2 * time.Second
)

// progress shows how far a job is: a bar on a terminal, a line now and then elsewhere.
type progress struct {
	out   io.Writer
	bar   *progressbar.ProgressBar // nil: plain lines
	lines time.Time                // of the last plain line
	last  string

	registering time.Time // since when
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions64(1, progressbar.OptionSetWriter(f), progressbar.OptionSetWidth(24),
			progressbar.OptionThrottle(65*time.Millisecond), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetTheme(progressbar.Theme{Saucer: "━", SaucerHead: "╸", SaucerPadding: " ", BarStart: "", BarEnd: ""}))
	}
	return p
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
		total := int64(d.Passes) * int64(d.Tasks)
		p.draw(training(s), int64(max(d.Pass, 1)-1)*int64(d.Tasks)+int64(d.Done), total)
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
		text += fmt.Sprintf("  PAUSED: %s; go on with: master resume", s.Reason)
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
	if text != p.last && time.Since(p.lines) >= plainEvery {
		p.lines, p.last = time.Now(), text
		fmt.Fprintln(p.out, text)
	}
}

func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Finish() // a terminal that went away
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
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
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
