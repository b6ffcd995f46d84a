package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/internal/safetensors"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
	"trainmaster/pserver/wire"
)

func modelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Inspect, compare, export and evaluate models",
		Long: `Model reads what parameter servers keep under --checkpoint-dir; no server has to run. DIR is that directory, or URL, and stands for
the newest set of checkpoints in it, which all servers wrote at one cut; SET is the file of a set, DIR/sets/<number>.json. Evaluate reads the file of a saved model.`,
		Example: `  master model inspect checkpoints
  # a bucket; credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)
  # or from ~/.aws
  master model inspect "s3://bucket/job?region=eu-central-1"`,
	}
	cmd.AddCommand(modelExportCommand(), modelInspectCommand(), modelDiffCommand(), modelEvaluateCommand())
	return cmd
}

// checkpoints is what DIR or SET stands for.
type checkpoints struct {
	checkpoint.Store
	one    func(context.Context) (*checkpoint.Set, error) // nil: DIR
	folder string                                         // DIR on the disk; "": a SET or a bucket
}

// openCheckpoints opens DIR or SET; close the place after use.
func openCheckpoints(arg string) (checkpoints, error) {
	if storage.IsURL(arg) {
		return openBucket(arg)
	}
	stat, err := os.Stat(arg)
	if err != nil {
		return checkpoints{}, fmt.Errorf("%q: a directory of checkpoints, or the file of a set in it: %w", arg, cmp.Or(cli.CheckFolder(arg), err))
	}
	if stat.IsDir() {
		return checkpoints{Store: checkpoint.Store{Place: checkpoint.Disk(arg)}, folder: arg}, nil
	}
	if _, ok := checkpoint.SetNumber(filepath.Base(arg)); !ok {
		return checkpoints{}, cli.UsageErrorf("%s: expected a directory of checkpoints, a set in it, sets/<number>.json, or (diff only) a .safetensors file", arg)
	}
	return checkpoints{Store: checkpoint.Store{Place: checkpoint.Disk(filepath.Dir(filepath.Dir(arg)))}, one: func(context.Context) (*checkpoint.Set, error) {
		text, err := os.ReadFile(arg)
		if err != nil {
			return nil, err
		}
		set, err := checkpoint.ParseSet(text)
		if err != nil {
			return nil, fmt.Errorf("%s: expected the file of a set: %w", arg, err)
		}
		return set, nil
	}}, nil
}

// openBucket opens the URL of a DIR or a SET.
func openBucket(arg string) (c checkpoints, err error) {
	u, err := url.Parse(arg)
	if err != nil {
		return c, cli.UsageErrorf("%w", err)
	}
	if dir := path.Dir(u.Path); path.Base(dir) == checkpoint.SetsDir {
		number, ok := checkpoint.SetNumber(path.Base(u.Path))
		if !ok {
			return c, cli.UsageErrorf("%s: expected the file of a set, sets/<number>.json with 8 digits", arg)
		}
		u.Path = path.Dir(dir)
		c.one = func(ctx context.Context) (*checkpoint.Set, error) { return c.ReadSet(ctx, number) }
	}
	if c.Place, err = storage.Open(u.String()); err != nil {
		return c, cli.UsageErrorf("%w", err)
	}
	return c, nil
}

// newest is the set that DIR or SET stands for.
func (c checkpoints) newest(ctx context.Context) (*checkpoint.Set, error) {
	if c.one != nil {
		return c.one(ctx)
	}
	set, err := c.Newest(ctx)
	if errors.Is(err, checkpoint.ErrNoSet) {
		err = fmt.Errorf("%w: expected %s/<number>.json in it%s", err, checkpoint.SetsDir, c.below())
	}
	return set, err
}

// below names a directory in DIR that has sets, as checkpoints does in the directory of a run.
func (c checkpoints) below() string {
	if c.folder == "" {
		return ""
	}
	sets, err := fs.Glob(os.DirFS(c.folder), "*/"+checkpoint.SetsDir+"/*.json")
	if err != nil || len(sets) == 0 {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", filepath.Join(c.folder, path.Dir(path.Dir(sets[0]))))
}

// openSet opens the checkpoints of the set that DIR or SET stands for; close the place after use.
func openSet(ctx context.Context, arg string) (c checkpoints, set *checkpoint.Set, parts []*checkpoint.Checkpoint, err error) {
	if c, err = openCheckpoints(arg); err != nil {
		return c, nil, nil, err
	}
	if set, err = c.newest(ctx); err == nil {
		if parts, err = c.Open(ctx, set); err != nil && !errors.Is(err, checkpoint.ErrUnavailable) {
			err = fmt.Errorf("the set is damaged, or not complete; name an older one, DIR/sets/<number>.json: %w", err)
		}
	}
	if err != nil {
		return c, nil, nil, errors.Join(err, c.Place.Close())
	}
	return c, set, parts, nil
}

// exported is what `master model export` says.
type exported struct {
	File    string `json:"file"`
	Set     uint64 `json:"set"`
	Version uint64 `json:"version"`
	Tensors int    `json:"tensors"`
	Tables  int    `json:"tables"`
	Bytes   int64  `json:"bytes"`
}

func modelExportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export DIR|SET",
		Short: "Make one safetensors file of a set of checkpoints",
		Long: `Export joins the shares of all parameter servers: each tensor is whole in the file, under its own name,
and each table of embeddings is NAME.ids, ascending, with NAME.rows. With --layout pytorch each matrix that is
named NAME.weight is transposed to [outputs, inputs], the shape of PyTorch's nn.Linear, so that
load_state_dict(safetensors.torch.load_file(...)) takes the tensors. Every digest is checked.
A file of that name is kept unless --force is given.`,
		Example: `  # the newest set, for load_state_dict(safetensors.torch.load_file("model.safetensors")) in Python
  master model export checkpoints --file model.safetensors
  # with the state of the optimizer for each parameter, as tensor.NAME
  master model export checkpoints --file with-optimizer.safetensors --optimizer`,
		Args: cobra.ExactArgs(1),
	}
	path := cmd.Flags().StringP("file", "f", "model.safetensors", "`file` to write")
	state := cmd.Flags().Bool("optimizer", false, "the optimizer's state too")
	layout := cli.AddChoice(cmd, "layout", "", "shape of the weights of linear layers: [outputs, inputs] (pytorch), or [inputs, outputs] (stored)", layoutPyTorch, layoutStored)
	force := cmd.Flags().Bool("force", false, "replace a file that exists")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if found, err := os.Lstat(*path); err == nil && found.Mode().IsRegular() && !*force {
			return fmt.Errorf("%s: expected no such file, found one: use --force to replace it", *path)
		}
		if err := cli.CheckNew(*path, *force); err != nil {
			return fmt.Errorf("%s: %w", *path, err)
		}
		store, set, parts, err := openSet(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		defer store.Place.Close()
		m := checkpoint.Join(parts, *state)
		version, err := m.Version()
		if err != nil {
			return err
		}
		if err := exportModel(*path, m, set.Number, version, *layout); err != nil {
			return err
		}
		stat, err := os.Stat(*path)
		if err != nil {
			return err
		}
		e := exported{*path, set.Number, version, len(m.Tensors()), len(m.Tables()), stat.Size()}
		return cli.Render(cmd.OutOrStdout(), *format, e, func(w io.Writer) {
			fmt.Fprintf(w, "file\t%s, %s\nset\t%v\nversion\t%d\ntensors\t%d\ntables\t%d\n", e.File, cli.Thousands(uint64(e.Bytes))+" bytes", set, e.Version, e.Tensors, e.Tables)
		})
	}
	return cmd
}

func exportModel(path string, m *checkpoint.Model, set, version uint64, layout string) error {
	meta := map[string]string{"version": strconv.FormatUint(version, 10), "set": strconv.FormatUint(set, 10)}
	infos := slices.Clone(m.Tensors())
	var turned []string
	if layout == layoutPyTorch {
		for i, t := range infos {
			if isLinear(t, m.State()) {
				infos[i].Shape = []int{t.Shape[1], t.Shape[0]}
				turned = append(turned, t.Name)
			}
		}
		list, err := json.Marshal(turned)
		if err != nil {
			return err
		}
		meta["format"], meta[transposedKey] = "pt", string(list)
	}
	for k := range m.Tables() {
		table, err := tableTensors(m, k)
		if err != nil {
			return err
		}
		infos = append(infos, table...)
	}
	return safetensors.Create(path, func(w io.Writer) error {
		buffered := bufio.NewWriterSize(w, 1<<20)
		out, err := safetensors.NewWriter(buffered, infos, meta)
		if err != nil {
			return err
		}
		for _, t := range m.Tensors() {
			values, err := m.Read(t.Name)
			if err != nil {
				return err
			}
			if slices.Contains(turned, t.Name) {
				values = transposed(values, t.Shape[0], t.Shape[1])
			}
			if _, err := out.Write(wire.FloatBytes(values)); err != nil {
				return err
			}
		}
		for k := range m.Tables() {
			if err := exportTable(out, m, k); err != nil {
				return err
			}
		}
		if err := out.Close(); err != nil {
			return err
		}
		return buffered.Flush()
	})
}

// setReport is what `master model inspect` says of a set.
type setReport struct {
	Set       uint64         `json:"set"` // 0: what was saved when all were stopped
	Mode      string         `json:"mode"`
	Version   uint64         `json:"version"`
	JobEpoch  uint32         `json:"job_epoch"`
	Complete  bool           `json:"complete"`
	Problem   string         `json:"problem"`
	Optimizer string         `json:"optimizer"`
	Shards    []shardReport  `json:"shards"`
	Tensors   []tensorReport `json:"tensors"`
	Tables    []tableReport  `json:"tables"` // of a complete set
}

type shardReport struct {
	Shard      int    `json:"shard"`
	Generation string `json:"generation"`
	Bytes      int64  `json:"bytes"`
	Blocks     int    `json:"blocks"`
}

type tensorReport struct {
	Name  string `json:"name"`
	Shape []int  `json:"shape"`
	Bytes int64  `json:"bytes"`
}

func modelInspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect DIR|SET",
		Short: "Say what sets of checkpoints there are, and whether they are whole",
		Long: `Inspect reads all files of each set and checks their digests: the sets of a directory, or one. It exits with 1 when one of them
is damaged or not complete, and names what is.`,
		Example: `  master model inspect checkpoints
  master model inspect checkpoints -o json | jq '.[0].tensors'`,
		Args: cobra.ExactArgs(1),
	}
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		reports, err := inspectSets(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if err := cli.Render(cmd.OutOrStdout(), *format, reports, func(w io.Writer) { setsTable(w, reports) }); err != nil {
			return err
		}
		for _, r := range reports {
			if !r.Complete {
				return fmt.Errorf("%s", r.Problem)
			}
		}
		return nil
	}
	return cmd
}

func inspectSets(ctx context.Context, arg string) (reports []setReport, err error) {
	c, err := openCheckpoints(arg)
	if err != nil {
		return nil, err
	}
	defer c.Place.Close()
	newest, err := c.newest(ctx)
	if errors.Is(err, checkpoint.ErrUnavailable) || c.one != nil && err != nil {
		return nil, err
	}
	if c.one != nil {
		return []setReport{reportSet(ctx, c.Store, newest)}, nil
	}
	numbers, listErr := c.Sets(ctx)
	if listErr != nil || len(numbers) == 0 && err != nil {
		return nil, cmp.Or(err, listErr)
	}
	if err == nil && newest.Number == 0 {
		reports = append(reports, reportSet(ctx, c.Store, newest))
	}
	for _, n := range numbers {
		report := setReport{Set: n}
		if set, err := c.ReadSet(ctx, n); err != nil {
			report.Problem = err.Error()
		} else {
			report = reportSet(ctx, c.Store, set)
		}
		if _, err := c.ReadSet(ctx, n); !report.Complete && errors.Is(err, fs.ErrNotExist) {
			continue // the job has removed it since, because newer sets exist
		}
		reports = append(reports, report)
	}
	return reports, nil
}

func reportSet(ctx context.Context, store checkpoint.Store, set *checkpoint.Set) setReport {
	r := setReport{Set: set.Number, Mode: set.Mode, Version: set.Version, JobEpoch: set.JobEpoch}
	parts, err := store.Open(ctx, set)
	if err != nil {
		r.Problem = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	r.Complete = err == nil
	var whole *checkpoint.Checkpoint
	for i, p := range set.Shards {
		shard := shardReport{Shard: i, Generation: p.Generation.String()}
		if c := parts[i]; c != nil {
			whole = c
			shard.Blocks = len(c.Share.Blocks)
			for _, e := range c.Manifest.Files {
				shard.Bytes += e.Size
			}
		}
		r.Shards = append(r.Shards, shard)
	}
	if whole == nil {
		return r
	}
	r.Optimizer = whole.Manifest.Optimizer.String()
	for _, t := range whole.Share.Table.Tensors {
		r.Tensors = append(r.Tensors, tensorReport{t.Name, append([]int{}, t.Shape...), int64(4 * t.Elements())})
	}
	if r.Complete {
		m := checkpoint.Join(parts, false)
		if r.Tables, err = reportTables(m); err == nil {
			r.Version, err = m.Version()
		}
		if err != nil {
			r.Complete, r.Problem = false, err.Error()
		}
	}
	return r
}

func setsTable(w io.Writer, reports []setReport) {
	fmt.Fprintln(w, "SET\tMODE\tVERSION\tSHARDS\tBYTES\tSTATE")
	for _, r := range reports {
		total := int64(0)
		for _, s := range r.Shards {
			total += s.Bytes
		}
		name, state := strconv.FormatUint(r.Set, 10), "complete"
		if r.Set == 0 {
			name = "stop"
		}
		if !r.Complete {
			state = "DAMAGED: " + r.Problem
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n", name, r.Mode, r.Version, len(r.Shards), cli.Thousands(uint64(total)), state)
	}
	if len(reports) == 0 || len(reports[0].Tensors) == 0 {
		return
	}
	fmt.Fprintf(w, "\noptimizer\t%s\n\nTENSOR\tSHAPE\tBYTES\n", reports[0].Optimizer)
	for _, t := range reports[0].Tensors {
		fmt.Fprintf(w, "%s\t%v\t%s\n", t.Name, t.Shape, cli.Thousands(uint64(t.Bytes)))
	}
	if len(reports[0].Tables) == 0 {
		return
	}
	fmt.Fprintln(w, "\nTABLE\tDIM\tROWS")
	for _, t := range reports[0].Tables {
		fmt.Fprintf(w, "%s\t%d\t%s\n", t.Name, t.Dim, cli.Thousands(uint64(t.Rows)))
	}
}
