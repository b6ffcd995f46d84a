package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/internal/filekind"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/modelfile"
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
		Short: "Export a checkpoint set to a safetensors file",
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
	layout := cli.AddChoice(cmd, "layout", "", "shape of the weights of linear layers: [outputs, inputs] (pytorch), or [inputs, outputs] (stored)", modelfile.LayoutPyTorch, modelfile.LayoutStored)
	force := cmd.Flags().Bool("force", false, "replace a file that exists")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if found, err := os.Lstat(*path); err == nil && found.Mode().IsRegular() && !*force {
			return fmt.Errorf("%s: expected no such file, found one: use --force to replace it", *path)
		}
		if err := filekind.CheckNew(*path, *force); err != nil {
			return fmt.Errorf("%s: %w", *path, err)
		}
		store, set, parts, err := modelfile.OpenSet(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		defer store.Place.Close()
		m := checkpoint.Join(parts, *state)
		version, err := m.Version()
		if err != nil {
			return err
		}
		if err := modelfile.Export(*path, m, set.Number, version, *layout); err != nil {
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

func modelInspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect DIR|SET",
		Short: "List checkpoint sets and check their files",
		Long: `Inspect reads all files of each set and checks their digests: the sets of a directory, or one. It exits with 1 when one of them
is damaged or not complete, and names what is.`,
		Example: `  master model inspect checkpoints
  master model inspect checkpoints -o json | jq '.[0].tensors'`,
		Args: cobra.ExactArgs(1),
	}
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		reports, err := modelfile.Inspect(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if err := cli.Render(cmd.OutOrStdout(), *format, reports, func(w io.Writer) { view.SetsTable(w, reports) }); err != nil {
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
