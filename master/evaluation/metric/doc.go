// Package metric implements metrics that are merged from the partial results of evaluation tasks: sums, means, confusion matrices, and
// histograms of scores.
//
// # Guarantees
//
//   - A merge is exact. Counts are integers, and a sum of float64 values is an [Accumulator], which never rounds. The merged state has the
//     same bytes for every order and grouping of the results. Only a figure is rounded, once, when it is read.
//   - A merge is done completely or not at all. A bad input changes nothing, and its error names the metric.
//   - Memory and encoded size are bounded: [MaxMetrics] metrics with [MaxCells] counts together, at most [MaxBytes] encoded.
//   - [Decode] accepts exactly the bytes that [Set.Encode] writes. docs/formats/evaluation.md draws them.
//
// # Use
//
// A [Set] has the metrics of one result, or of all results of a round so far. An adapter fills a Set from a message with
// [Set.AddMean], [Set.AddWeighted], [Set.AddSum], [Set.AddConfusion] and [Set.AddHistogram], and merges it into the Set of
// the round with [Set.Merge]. [Set.Figures] returns the numbers that users read.
//
// A result with a loss but without a number of values counts as many times as the task has records: [Set.AddWeighted] adds loss x records
// without rounding the product.
package metric
