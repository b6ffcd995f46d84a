package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"math"

	"trainmaster/master/evaluation/metric"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// namedMetric is a metric that cannot be taken.
type namedMetric struct {
	name string
	err  error
}

func (e *namedMetric) Error() string {
	return fmt.Sprintf("metrics[%.70q]: %v", e.name, e.err)
}
func (e *namedMetric) Unwrap() error { return e.err }

// metricsOf encodes the metrics of a result; nil: it has none. Loss and accuracy count with the number of records, unless there is a metric with the name.
// The error is a *namedMetric.
func metricsOf(in *pb.TaskResult) ([]byte, error) {
	if b := in.GetEncodedMetrics(); len(b) > 0 {
		if len(in.GetMetrics()) > 0 {
			return nil, badArgument("encoded_metrics", "expected none in a result with metrics, found %d bytes", len(b))
		}
		return b, nil // the merge checks them
	}
	var set metric.Set
	names := map[string]bool{}
	for _, m := range in.GetMetrics() {
		err := addMetric(&set, m)
		if names[m.GetName()] {
			err = fmt.Errorf("%w: expected each name once", metric.ErrBadName)
		}
		if err != nil {
			return nil, &namedMetric{m.GetName(), err}
		}
		names[m.GetName()] = true
	}
	for name, v := range map[string]*float64{"loss": in.Loss, "accuracy": in.Accuracy} { //nolint:protogetter // absent is not 0
		if v == nil || names[name] || in.GetStat().GetRecords() == 0 && !isNotFinite(*v) {
			continue
		}
		if err := set.AddWeighted(name, *v, in.GetStat().GetRecords()); err != nil {
			return nil, &namedMetric{name, err}
		}
	}
	if set.Len() == 0 {
		return nil, nil
	}
	return set.Encode(), nil
}

func isNotFinite(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }

// addMetric adds a metric of a message.
func addMetric(set *metric.Set, m *pb.Metric) error {
	switch v := m.GetValue().(type) {
	case *pb.Metric_Mean:
		return set.AddMean(m.GetName(), v.Mean.GetSum(), v.Mean.GetCount())
	case *pb.Metric_Sum:
		return set.AddSum(m.GetName(), v.Sum)
	case *pb.Metric_ConfusionMatrix:
		classes, counts := int(v.ConfusionMatrix.GetClasses()), v.ConfusionMatrix.GetCounts()
		if classes < 2 || classes > metric.MaxClasses || len(counts) != classes*classes {
			return fmt.Errorf("%w: expected 2 to %d classes with as many counts as their square, found %d classes and %d counts", metric.ErrBadShape, metric.MaxClasses, classes, len(counts))
		}
		rows := make([][]int64, classes)
		for i := range rows {
			rows[i] = counts[i*classes : (i+1)*classes]
		}
		return set.AddConfusion(m.GetName(), rows)
	case *pb.Metric_Histogram:
		return set.AddHistogram(m.GetName(), v.Histogram.GetPositives(), v.Histogram.GetNegatives())
	}
	return fmt.Errorf("%w: expected mean, sum, confusion_matrix or histogram, found none", metric.ErrBadShape)
}

// refuseMetric answers a result with invalid metrics. The name of a metric that is not finite is noted in the round of the task.
func (c *coordinator) refuseMetric(ctx context.Context, in *pb.TaskResult, err error) error {
	named, ok := errors.AsType[*namedMetric](err)
	if !ok {
		return err
	}
	if errors.Is(err, metric.ErrNotFinite) {
		ev := &taskqueue.RefuseMetric{Token: tokenOf(in.GetToken()), Name: named.name}
		if in.GetToken() == nil {
			ev.Task = taskqueue.TaskID(in.GetTaskId())
		}
		//guard:refused-metric-noted
		if err := c.master.RefuseMetric(ctx, ev); err != nil {
			return err
		}
	}
	field := "metrics[" + named.name[:min(len(named.name), 2*metric.MaxName)] + "]"
	if named.name == "loss" || named.name == "accuracy" {
		field = named.name
	}
	return badArgument(field, "%v", named.err)
}
