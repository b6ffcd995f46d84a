package httpapi

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"trainmaster/ledger"
	"trainmaster/master"
)

// collectTimeout bounds one scrape's look at the state.
const collectTimeout = 5 * time.Second

var (
	descLeading  = desc("leading", "1 while this master leads the job.")
	descWarm     = desc("warm", "1 while this master is on standby with the task tables loaded.")
	descCommits  = desc("commits_total", "Commits of this term.")
	descRefused  = desc("commits_refused_total", "Commits of this term that the store refused; their callers received the error.")
	descTasks    = desc("tasks", "Tasks of the oldest open pass, by state.", "dataset", "state")
	descPass     = desc("pass", "The oldest open pass.", "dataset")
	descCounted  = desc("commit_number", "Number of the last commit, over all terms.")
	descTrainers = desc("trainers", "Sessions of trainers.")
	descStore    = desc("store_bytes", "Size of etcd's database.")
	descSealed   = desc("ledger_sealed_commit", "The last commit whose ledger is sealed, out of etcd's way.")
	descKept     = desc("ledger_sealed_bytes", "Size of the sealed ledger that is kept.")
	descUnsealed = desc("ledger_seal_failures_total", "Attempts of this process to seal the ledger that failed. Entries stay in etcd.")
	descHangs    = desc("ledger_hang_seconds", "How long the ledger's directory has not answered; 0 while an access takes less than 10 s. Entries stay in etcd.")
	descPods     = desc("pods", "Pods that the master creates, by phase.", "role", "phase")
	descPodEnds  = desc("pod_ends_total", "Ends of pods that this process has handled, by outcome.", "role", "outcome")
	descKube     = desc("kube_requests_total", "Requests of this process to the Kubernetes API; the code 0 is no answer.", "verb", "code")
	descQuota    = desc("store_quota_bytes", "Size at which etcd stops taking writes; 0 when it does not say.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("trainmaster_"+name, help, labels, nil)
}

// collector reads the committed state at each scrape.
type collector struct {
	master *master.Master
	size   Size
	log    *logrus.Entry
}

// Describe lists the metrics, whether or not this master leads.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLeading, descWarm, descCommits, descRefused, descTasks, descPass, descCounted, descTrainers, descSealed, descKept, descUnsealed, descHangs, descStore, descQuota, descPods, descPodEnds, descKube} {
		out <- d
	}
}

// Collect reads the state. A master that does not lead has only its role to say.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	gauge(descLeading, truth(c.master.Leading()))
	gauge(descWarm, truth(c.master.Warm()))
	if c.size != nil {
		if used, quota, err := c.size(ctx); err == nil {
			gauge(descStore, float64(used))
			gauge(descQuota, float64(quota))
		} else {
			c.log.WithError(err).Debug("the size of the store is not known")
		}
	}
	s, err := c.master.Status(ctx)
	if err != nil {
		return // not the leader
	}
	c.collectPods(out)
	out <- prometheus.MustNewConstMetric(descCommits, prometheus.CounterValue, float64(s.Commits))
	out <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(s.Refused))
	gauge(descCounted, float64(s.Commit))
	gauge(descTrainers, float64(len(s.Trainers)))
	ledger := cmp.Or(s.Ledger, &ledger.Status{})
	gauge(descSealed, float64(ledger.Sealed))
	gauge(descKept, float64(ledger.Bytes))
	gauge(descHangs, ledger.Hangs.Seconds())
	out <- prometheus.MustNewConstMetric(descUnsealed, prometheus.CounterValue, float64(ledger.Failures))
	for i, d := range s.Sets {
		set := strconv.Itoa(i)
		gauge(descPass, float64(d.Pass), set)
		for state, n := range map[string]int{"todo": d.Todo, "pending": d.Pending, "retry": d.Retry, "done": d.Done, "set_aside": d.SetAside} {
			gauge(descTasks, float64(n), set, state)
		}
	}
}

// collectPods has the metrics of pods, on a master that creates them.
func (c *collector) collectPods(out chan<- prometheus.Metric) {
	s, err := c.master.Pods()
	if err != nil {
		return
	}
	phases := map[[2]string]int{}
	for _, p := range s.Pods {
		phases[[2]string{string(p.Role), p.Phase}]++
	}
	for labels, n := range phases {
		out <- prometheus.MustNewConstMetric(descPods, prometheus.GaugeValue, float64(n), labels[:]...)
	}
	for cause, n := range s.Relaunches {
		out <- prometheus.MustNewConstMetric(descPodEnds, prometheus.CounterValue, float64(n), string(cause.Role), cause.Outcome)
	}
	for r, n := range s.Requests {
		out <- prometheus.MustNewConstMetric(descKube, prometheus.CounterValue, float64(n), r.Verb, strconv.Itoa(r.Code))
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
