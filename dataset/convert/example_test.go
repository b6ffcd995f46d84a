package convert_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"trainmaster/dataset/convert"
)

// A table of pixels with the label in the last column is converted to a training shard and a held-out shard.
func ExampleCSV() {
	dir, err := os.MkdirTemp("", "convert")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	table := "0,16,1\n16,0,0\n0,12,1\n13,1,0\n"
	result, err := convert.CSV(context.Background(), strings.NewReader(table), convert.Options{
		Prefix: filepath.Join(dir, "tiny"), HeldOut: 0.25, Seed: 1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, split := range []convert.Split{result.Train, result.Test} {
		fmt.Println(filepath.Base(split.Paths[0]), split.Records)
	}
	// Output:
	// tiny-00000-of-00001 3
	// tiny-test-00000-of-00001 1
}
