package metric

import "fmt"

// MaxClasses is the largest number of classes of a confusion matrix.
const MaxClasses = 100

// newConfusion returns a matrix from its rows: counts[label][prediction].
func newConfusion(counts [][]int64) (*metric, error) {
	classes := len(counts)
	if classes < 2 || classes > MaxClasses {
		return nil, fmt.Errorf("%w: expected 2 to %d classes, found %d", ErrBadShape, MaxClasses, classes)
	}
	m := &metric{kind: KindConfusion, classes: classes, cells: make([]int64, 0, classes*classes)}
	for label, row := range counts {
		if len(row) != classes {
			return nil, fmt.Errorf("%w: label %d: expected %d predictions, found %d", ErrBadShape, label, classes, len(row))
		}
		m.cells = append(m.cells, row...)
	}
	var err error
	m.count, err = counted(m.cells)
	return m, err
}

// scores returns accuracy and the macro averages of precision, recall and F1. A macro average is over the classes that occur as a label
// or as a prediction. A class that is never predicted has precision 0, and a class without labels has recall 0.
func (m *metric) scores() (accuracy, precision, recall, f1 float64) {
	var right, present int64
	for c := range m.classes {
		var labels, predictions int64
		for other := range m.classes {
			labels += m.cells[c*m.classes+other]
			predictions += m.cells[other*m.classes+c]
		}
		if labels+predictions == 0 {
			continue
		}
		present++
		hits := m.cells[c*m.classes+c]
		right += hits
		precision += ratio(hits, predictions)
		recall += ratio(hits, labels)
		f1 += ratio(2*hits, labels+predictions)
	}
	n := float64(present)
	return ratio(right, m.count), precision / n, recall / n, f1 / n
}

func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
