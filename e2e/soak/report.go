package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// report is the result of a soak.
type report struct {
	Passed   bool           `json:"passed"`
	Seed     uint64         `json:"seed"`
	Minutes  float64        `json:"minutes"` // with faults
	Etcd     int            `json:"etcd_members"`
	Masters  int            `json:"masters"`
	Trainers int            `json:"trainers"`
	Faults   map[string]int `json:"faults"`
	Skipped  int            `json:"skipped"` // faults whose target was missing or claimed

	Passes       int     `json:"passes"`
	Tasks        int     `json:"tasks_per_pass"`
	Counted      int     `json:"counted"`
	Redelivered  int     `json:"redelivered"`
	Sessions     int     `json:"sessions"`      // of trainers
	LostSessions int     `json:"lost_sessions"` // sessions that ended without a leave
	Terms        int     `json:"terms"`         // observed changes of the leader
	LongestPause float64 `json:"longest_pause_s"`

	Missing      int `json:"missing"`
	CountedTwice int `json:"counted_twice"`
	SetAside     int `json:"set_aside"`
	Stuck        int `json:"stuck"` // 1 if the job made no progress or did not end

	Flat     []flatness `json:"flat"`
	Failures []string   `json:"failures"`
	Dir      string     `json:"dir,omitempty"` // logs and journals of a failed soak
}

func (r *report) total() (n int) {
	for _, made := range r.Faults {
		n += made
	}
	return n
}

// print writes the report as text.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "\nseed %d: %.1f minutes with %d faults (%d more skipped), %d terms of leadership, longest pause %.1f s\n",
		r.Seed, r.Minutes, r.total(), r.Skipped, r.Terms, r.LongestPause)
	for _, name := range slices.Sorted(maps.Keys(r.Faults)) {
		fmt.Fprintf(w, "  %4d  %s\n", r.Faults[name], name)
	}
	fmt.Fprintf(w, "%d passes of %d tasks: %d counted, %d delivered again; %d sessions of %d trainers, %d of them lost\n",
		r.Passes, r.Tasks, r.Counted, r.Redelivered, r.Sessions, r.Trainers, r.LostSessions)
	for _, f := range r.Flat {
		fmt.Fprintf(w, "  %-42s early %13.0f  late %13.0f  bound %13.0f\n", f.Figure, f.Early, f.Late, f.Bound)
	}
	for _, text := range r.Failures {
		fmt.Fprintf(w, "FAILED: %s\n", text)
	}
	if r.Dir != "" {
		fmt.Fprintf(w, "logs and journals: %s\n", r.Dir)
	}
	verdict := "passed"
	if !r.Passed {
		verdict = "failed"
	}
	fmt.Fprintf(w, "soak %s: %d lost, %d counted twice, %d set aside, %d stuck\n", verdict, r.Missing, r.CountedTwice, r.SetAside, r.Stuck)
}

// seconds rounds for a report.
func seconds(d time.Duration) float64 { return d.Round(100 * time.Millisecond).Seconds() }
