package sample_test

import (
	"fmt"
	"log"

	"trainmaster/dataset/sample"
)

// A record of pixels is written and read.
func ExampleDecode() {
	rec := sample.Append(nil, sample.Sample{Label: 9, Scale: 1.0 / 16, Pixels: []byte{0, 4, 16}})

	var s sample.Sample // declared outside the loop over records to reuse its memory
	if err := sample.Decode(rec, &s); err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range s.Pixels {
		fmt.Print(float32(p)*s.Scale, " ")
	}
	fmt.Println("is a", s.Label)
	// Output: 0 0.25 1 is a 9
}

// A record of categories has one id for each field. The same text in two fields has two ids.
func ExampleAppendCategorical() {
	ids := []int64{sample.CategoryID(0, "red"), sample.CategoryID(1, "red")}
	record := sample.AppendCategorical(nil, sample.Categorical{Label: 1, Classes: 2, IDs: ids})

	var c sample.Categorical
	if err := sample.DecodeCategorical(record, &c); err != nil {
		log.Fatal(err)
	}
	fmt.Println("label", c.Label, "fields", len(c.IDs), "equal ids", c.IDs[0] == c.IDs[1])
	// Output: label 1 fields 2 equal ids false
}
