package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// sample holds the metrics of a master at a point in time.
type sample struct {
	at      time.Duration // since the start
	master  int
	leading bool
	values  map[string]float64
}

// Names of the metrics.
const (
	metricLeading    = "trainmaster_leading"
	metricPass       = `trainmaster_pass{dataset="0"}`
	metricDone       = `trainmaster_tasks{dataset="0",state="done"}`
	metricAside      = `trainmaster_tasks{dataset="0",state="set_aside"}`
	metricStore      = "trainmaster_store_bytes"
	metricGoroutines = "go_goroutines"
	metricMemory     = "process_resident_memory_bytes"
	metricFiles      = "process_open_fds"
)

var metrics = []string{metricLeading, metricPass, metricDone, metricAside, metricStore, metricGoroutines, metricMemory, metricFiles}

// passed returns the number of tasks of all passes that are done or set aside. ok is false unless a leader sent the sample.
func (s *sample) passed() (tasks int, ok bool) {
	pass, ok := s.values[metricPass]
	if !s.leading || !ok {
		return 0, false
	}
	return int(max(pass, 1)-1)*tasksPerPass + int(s.values[metricDone]+s.values[metricAside]), true
}

// scraper uses a new connection for each request: an open connection to a paused master would hang.
var scraper = http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

const scrapePatience = 2 * time.Second

// scrape reads the metrics at host:port.
func scrape(ctx context.Context, addr string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapePatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := scraper.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	values := map[string]float64{}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ')
		if at < 0 {
			continue
		}
		for _, name := range metrics {
			if lines.Text()[:at] != name {
				continue
			}
			if values[name], err = strconv.ParseFloat(lines.Text()[at+1:], 64); err != nil {
				return nil, fmt.Errorf("metric %s of %s: %w", name, addr, err)
			}
		}
	}
	return values, lines.Err()
}
