package model

import (
	"cmp"
	"slices"
)

// AUC returns the area under the ROC curve: the probability that a record of label 1 has a greater score than a record of label 0.
// Equal scores count half (Mann and Whitney's U over the number of pairs). It is 0.5 when only one label occurs.
func AUC(scores []float64, labels []int) float64 {
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(scores[a], scores[b]) })
	var wins, zeros, ones float64
	for len(order) > 0 {
		ties := 1
		for ties < len(order) && scores[order[ties]] == scores[order[0]] {
			ties++
		}
		onesHere := 0.0
		for _, i := range order[:ties] {
			onesHere += float64(labels[i])
		}
		zerosHere := float64(ties) - onesHere
		wins += onesHere * (zeros + zerosHere/2)
		zeros, ones = zeros+zerosHere, ones+onesHere
		order = order[ties:]
	}
	if zeros == 0 || ones == 0 {
		return 0.5
	}
	return wins / (zeros * ones)
}
