package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/dataset"
	"trainmaster/master"
	"trainmaster/taskqueue"
)

// datasetFlags are the flags for the datasets that a master registers itself.
type datasetFlags struct {
	training   []string
	prediction []string
}

func (d *datasetFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&d.training, "dataset", nil, "training dataset as `NAME=PATH[,OPTION]`, repeatable. Options: weight=W, its share of the tasks (default 1); passes=N (default --passes); online, it grows while it is trained. The same name again adds paths. Default: a trainer reports the dataset")
	cmd.Flags().StringSliceVar(&d.prediction, "prediction-data", nil, "paths and `globs` of RecordIO or TFRecord files to predict when the training has ended, by trainers with --predict-out (default: nothing is predicted)")
}

// parse returns the datasets of the flags.
func (d *datasetFlags) parse(cmd *cobra.Command) (list []master.Dataset, err error) {
	weights := map[string]string{}
	for _, text := range d.training {
		one, weight, err := parseDataset(text)
		if err != nil {
			return nil, cli.ElementErrorf(cmd, "dataset", text, "%w", err)
		}
		if weight != "" && weights[one.Name] != "" {
			return nil, cli.ElementErrorf(cmd, "dataset", text, "expected the weight of %s once, found %s before", one.Name, weights[one.Name])
		}
		if weight != "" {
			weights[one.Name] = weight
		}
		at := slices.IndexFunc(list, func(other master.Dataset) bool { return other.Name == one.Name })
		if at < 0 {
			list = append(list, one)
			continue
		}
		if one.Passes > 0 && list[at].Passes > 0 {
			return nil, cli.ElementErrorf(cmd, "dataset", text, "expected the passes of %s once, found %d before", one.Name, list[at].Passes)
		}
		list[at].Online = list[at].Online || one.Online
		list[at].Paths, list[at].Passes = append(list[at].Paths, one.Paths...), max(list[at].Passes, one.Passes)
	}
	if len(list) > mostDatasets {
		return nil, cli.UsageErrorf("--dataset: expected at most %d datasets, found %d", mostDatasets, len(list))
	}
	integers, err := wholeWeights(list, weights)
	if err != nil {
		return nil, cli.UsageErrorf("--dataset: %w", err)
	}
	for i := range list {
		s := &list[i].SetSpec
		s.Weight = integers[i]
		if list[i].Paths, err = withShards(list[i].Paths); err != nil {
			return nil, cli.UsageErrorf("%s: %w", list[i].From, err)
		}
	}
	if len(d.prediction) > 0 {
		list = append(list, master.Dataset{SetSpec: taskqueue.SetSpec{Kind: taskqueue.Prediction}, Paths: d.prediction, From: "--prediction-data"})
	}
	return list, nil
}

// mostDatasets leaves room for the datasets of evaluation and prediction.
const mostDatasets = taskqueue.MaxSets - 2

// options of a dataset are read from the end, so that a path may contain commas and equals signs.
var datasetOption = regexp.MustCompile(`^(.*),(weight|passes)=([^,]*)$`)

// likeOption matches the end of a path that looks like a misspelled option.
var likeOption = regexp.MustCompile(`,[a-z]+(=[0-9.]*)?$`)

// decimal is a weight.
var decimal = regexp.MustCompile(`^[0-9]{1,7}(\.[0-9]{1,6})?$`)

// parseDataset reads NAME=PATH[,weight=W][,passes=N][,online]. weight is its text; "": none is given.
func parseDataset(text string) (d master.Dataset, weight string, err error) {
	const form = "expected NAME=PATH[,weight=W][,passes=N][,online]"
	name, path, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return d, "", fmt.Errorf("%s, found no NAME=", form)
	}
	passes, online := "", false
	for {
		if before, found := strings.CutSuffix(path, ",online"); found {
			path, online = before, true
			continue
		}
		parts := datasetOption.FindStringSubmatch(path)
		if parts == nil {
			break
		}
		into := &weight
		if parts[2] == "passes" {
			into = &passes
		}
		if *into != "" || parts[3] == "" {
			return d, "", fmt.Errorf("%s, found %s= twice or without a value", form, parts[2])
		}
		path, *into = parts[1], parts[3]
	}
	if path == "" {
		return d, "", fmt.Errorf("%s, found no path", form)
	}
	d = master.Dataset{SetSpec: taskqueue.SetSpec{Name: name, Online: online}, Paths: []string{path}, From: "--dataset " + name}
	if passes != "" {
		if d.Passes, err = strconv.Atoi(passes); err != nil || d.Passes < 1 || d.Passes > math.MaxInt32 {
			return d, "", fmt.Errorf("expected passes=N with N from 1, found %q", passes)
		}
	}
	if weight != "" && (!decimal.MatchString(weight) || strings.Trim(weight, "0.") == "") {
		return d, "", fmt.Errorf("expected weight=W with a decimal number above 0 of at most 6 decimal places, such as 0.3, found %q", weight)
	}
	if name == taskqueue.Evaluation.String() || name == taskqueue.Prediction.String() {
		return d, "", fmt.Errorf("expected another name than %q, which is the name of another dataset of a job", name)
	}
	return d, weight, d.Validate()
}

// wholeWeights multiplies the weights by the smallest power of ten that makes all of them integers. A weight that is not given is 1.
func wholeWeights(list []master.Dataset, weights map[string]string) (integers []int, err error) {
	places := 0
	for _, text := range weights {
		_, decimals, _ := strings.Cut(text, ".")
		places = max(places, len(strings.TrimRight(decimals, "0")))
	}
	for _, d := range list {
		text := weights[d.Name]
		if text == "" {
			text = "1"
		}
		whole, decimals, _ := strings.Cut(text, ".")
		decimals = strings.TrimRight(decimals, "0")
		n, err := strconv.Atoi(whole + decimals + strings.Repeat("0", places-len(decimals)))
		if err != nil || n > taskqueue.MaxWeight {
			return nil, fmt.Errorf("weight of %s: expected at most %d after all weights are multiplied by %d to make them integers, found %s", d.Name, taskqueue.MaxWeight, int(math.Pow10(places)), text)
		}
		integers = append(integers, n)
	}
	return integers, nil
}

// checkFiles returns an error for missing files. An online dataset may have none yet.
func (d *datasetFlags) checkFiles(ctx context.Context, config master.Config) error {
	for _, set := range config.Datasets {
		if set.Online {
			for _, path := range set.Paths {
				if _, err := (dataset.Source{Roots: config.Roots}).Paths(ctx, []string{path}); err != nil && !errors.Is(err, dataset.ErrNoMatch) {
					return cli.UsageErrorf("%s: %w", set.From, err)
				}
			}
			continue
		}
		if _, err := (dataset.Source{Roots: config.Roots}).List(ctx, set.Paths); err != nil {
			for _, path := range set.Paths {
				if at := likeOption.FindString(path); at != "" {
					return cli.UsageErrorf("%s: %w: if %q is an option, expected weight=W, passes=N or online", set.From, err, at[1:])
				}
			}
			return cli.UsageErrorf("%s: %w", set.From, err)
		}
	}
	return nil
}
