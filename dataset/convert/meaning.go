package convert

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Meaning identifies what the numbers in the records of a dataset stand for. Two datasets can have the same shape and other
// meanings: texts of labels are numbered in their order, and features are scaled by the samples to train on.
type Meaning struct {
	Labels  string // digest of the texts of the labels
	Scaling string // digest of the means, deviations and scale of the features
}

var shardEnd = regexp.MustCompile(`-\d{5}-of-\d{5}$`)

// MeaningOf reads the meaning of a shard from the description of its dataset. It is zero if there is no description that names
// the shard.
func MeaningOf(shard string) (Meaning, error) {
	prefix := shardEnd.ReplaceAllString(shard, "")
	if prefix == shard {
		return Meaning{}, nil
	}
	for _, prefix := range []string{prefix, strings.TrimSuffix(prefix, "-test")} {
		text, err := os.ReadFile(DescriptionPath(prefix))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Meaning{}, err
		}
		var d description
		if err := json.Unmarshal(text, &d); err != nil {
			return Meaning{}, fmt.Errorf("%s: expected the description of a dataset in JSON: %w", DescriptionPath(prefix), err)
		}
		if name := filepath.Base(shard); slices.Contains(d.Train.Paths, name) || slices.Contains(d.Test.Paths, name) {
			return d.meaning(), nil
		}
	}
	return Meaning{}, nil
}

func (r Result) meaning() Meaning {
	return Meaning{
		Labels:  digest(fmt.Sprintf("%q", r.Labels)),
		Scaling: digest(fmt.Sprint(r.Scale, r.Means, r.Deviations)),
	}
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}
