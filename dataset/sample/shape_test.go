package sample_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset/sample"
)

func TestNumericGoldenBytes(t *testing.T) {
	for want, s := range map[string]sample.Sample{
		"03010000" + "0000803d" + "07000000" + "0b000000" + "000810":           {Label: 7, Classes: 11, Scale: 0.0625, Pixels: []byte{0, 8, 16}},
		"03020000" + "0000803f" + "01000000" + "02000000" + "0000c03f000020c1": {Label: 1, Classes: 2, Scale: 1, Numbers: []float32{1.5, -10}},
	} {
		record := sample.Append(nil, s)
		if got := hex.EncodeToString(record); got != want {
			t.Errorf("encoding is %s, want %s", got, want)
		}
		var back sample.Sample
		if err := sample.Decode(record, &back); err != nil || back.Label != s.Label || back.Classes != s.Classes || !slices.Equal(back.AppendFeatures(nil), s.AppendFeatures(nil)) {
			t.Errorf("%+v: decoded as %+v, %v", s, back, err)
		}
	}
	const want = "02010300" + "02000000" + "0500000000000000"
	if got := hex.EncodeToString(sample.AppendCategorical(nil, sample.Categorical{Label: 2, Classes: 3, IDs: []int64{5}})); got != want {
		t.Errorf("encoding of categories is %s, want %s", got, want)
	}
}

func TestDescribe(t *testing.T) {
	for name, c := range map[string]struct {
		record []byte
		want   sample.Shape
	}{
		"version 1":  {sample.Append(nil, sample.Sample{Label: 3, Scale: 0.5, Pixels: []byte{1, 2}}), sample.Shape{Kind: sample.Pixels, Features: 2, Scale: 0.5}},
		"pixels":     {sample.Append(nil, sample.Sample{Label: 3, Classes: 4, Scale: 0.5, Pixels: []byte{1, 2}}), sample.Shape{Kind: sample.Pixels, Features: 2, Classes: 4, Scale: 0.5}},
		"numbers":    {sample.Append(nil, sample.Sample{Classes: 4, Scale: 1, Numbers: []float32{1, 2, 3}}), sample.Shape{Kind: sample.Numbers, Features: 3, Classes: 4, Scale: 1}},
		"categories": {sample.AppendCategorical(nil, sample.Categorical{IDs: []int64{1, 2}}), sample.Shape{Kind: sample.Categories, Features: 2, Scale: 1}},
		"stated":     {sample.AppendCategorical(nil, sample.Categorical{Classes: 2, IDs: []int64{1, 2}}), sample.Shape{Kind: sample.Categories, Features: 2, Classes: 2, Scale: 1}},
	} {
		got, err := sample.Describe(c.record)
		label, _ := sample.Label(c.record)
		if err != nil || got.Kind != c.want.Kind || got.Features != c.want.Features || got.Classes != c.want.Classes || got.Scale != c.want.Scale || label < 0 {
			t.Errorf("%s: found %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

func TestNumericRecordRefused(t *testing.T) {
	good := sample.Append(nil, sample.Sample{Label: 1, Classes: 2, Scale: 1, Numbers: []float32{1, 2}})
	damaged := func(at int, to byte) []byte {
		rec := bytes.Clone(good)
		rec[at] = to
		return rec
	}
	for want, rec := range map[string][]byte{
		"not written by `master recordio convert`":        []byte("1,2,3,4,5,6,7,8,9,10"),
		"type 1 or 2, found 9":                            damaged(1, 9),
		"reserved":                                        damaged(2, 1),
		"label 2 of 2 classes":                            damaged(8, 2),
		"found 7 bytes":                                   good[:len(good)-1],
		"found 0 bytes":                                   good[:sample.HeaderSize],
		"feature 1: expected a finite number":             sample.Append(nil, sample.Sample{Classes: 1, Scale: 1, Numbers: []float32{1, float32(math.NaN())}}),
		"feature 0: expected a finite number, found +Inf": sample.Append(nil, sample.Sample{Classes: 1, Scale: 1, Numbers: []float32{float32(math.Inf(1))}}),
		"use --model logistic or --model fm":              sample.AppendCategorical(nil, sample.Categorical{IDs: []int64{1, 2}}),
	} {
		s := sample.Sample{Label: 42}
		if err := sample.Decode(rec, &s); !errors.Is(err, sample.ErrMalformed) || !strings.Contains(err.Error(), want) || s.Label != 42 {
			t.Errorf("Decode: found error %v, expected an error with %q", err, want)
		}
	}
	var c sample.Categorical
	if err := sample.DecodeCategorical(good, &c); !errors.Is(err, sample.ErrMalformed) || !strings.Contains(err.Error(), "use --model softmax or --model mlp") {
		t.Errorf("numbers as categories: found error %v", err)
	}
}
