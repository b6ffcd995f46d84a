package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"trainmaster/internal/filekind"
	"trainmaster/local"
)

// A setting is a flag, an environment variable or a key of the config file, all three under one name. The flag takes precedence over
// the variable, and the variable over the key. Without any of them, the default of the flag applies.

const (
	envPrefix     = "TRAINMASTER_"
	sourceKey     = "trainmaster/source" // annotation of a flag that the environment or the file has set
	sourceDefault = "its default"
	sourceArgs    = "the command line"
)

// notSettings are flags that only a command line can have.
var notSettings = []string{"help", "version", "config"}

// EnvName is the environment twin of a flag: --lease-ttl is TRAINMASTER_LEASE_TTL.
func EnvName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// ApplySettings fills the flags of cmd that the command line left alone from the environment, then from the config file.
// An empty variable counts as absent.
func ApplySettings(cmd *cobra.Command) error {
	file, err := readConfig(cmd)
	if err != nil {
		return err
	}
	embeddedAsked, err := asksForEmbedded(cmd)
	if err != nil {
		return err
	}
	var firstErr error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if firstErr != nil || f.Changed || slices.Contains(notSettings, f.Name) || f.Name == "endpoints" && embeddedAsked {
			return
		}
		if value := os.Getenv(EnvName(f.Name)); value != "" {
			firstErr = setFrom(cmd, f, "the environment variable "+EnvName(f.Name), value)
			return
		}
		if value, ok := file.values[f.Name]; ok {
			firstErr = setFrom(cmd, f, "the config file "+file.path, value...)
		}
	})
	return firstErr
}

// asksForEmbedded reports whether the command line asks for the etcd in a directory. Then it wins over --endpoints that the
// environment or the file has.
func asksForEmbedded(cmd *cobra.Command) (bool, error) {
	folder, endpoints := cmd.Flags().Lookup("data-dir"), cmd.Flags().Lookup("endpoints")
	if folder == nil || endpoints == nil || !folder.Changed {
		return false, nil
	}
	if endpoints.Changed {
		return false, UsageErrorf("--data-dir %s and --endpoints %s: expected one of them, the directory of an embedded etcd or the address of another", folder.Value, strings.Join(endpoints.Value.(pflag.SliceValue).GetSlice(), ","))
	}
	return true, nil
}

// ofKubernetes matches the variables of a service named trainmaster or trainmaster-..., which Kubernetes sets in every pod of its namespace.
var ofKubernetes = regexp.MustCompile(`(^|_)(PORT|SERVICE_HOST|SERVICE_PORT)(_|$)`)

// UnknownVariables lists the environment's settings that no command has, each with the most similar known setting.
func UnknownVariables(root *cobra.Command, environ []string) (list []string) {
	known := []string{EnvName("config"), local.TrainerVariable, EnvName("bin")} // TRAINMASTER_BIN is of the Python SDK
	for _, name := range SettingNames(root) {
		known = append(known, EnvName(name))
	}
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		if ours && !slices.Contains(known, name) && !ofKubernetes.MatchString(rest) {
			list = append(list, "the environment variable "+name+" is no setting of any command, and is ignored"+didYouMean(name, known))
		}
	}
	slices.Sort(list)
	return list
}

// setFrom sets a flag to one value, or to several if it takes a list.
func setFrom(cmd *cobra.Command, f *pflag.Flag, source string, values ...string) error {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[sourceKey] = []string{source}
	if list, ok := f.Value.(pflag.SliceValue); ok && len(values) != 1 {
		if err := list.Replace(values); err != nil {
			return badValue(f, strings.Join(values, ","), err)
		}
		f.Changed = true
		return nil
	}
	if len(values) != 1 {
		return UsageErrorf("bad value for --%s from %s: expected one value, found a list of %d", f.Name, source, len(values))
	}
	if err := cmd.Flags().Set(f.Name, values[0]); err != nil {
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			err = invalid.Unwrap()
		}
		return badValue(f, values[0], plainly(err))
	}
	return nil
}

// plainly replaces an error that names a library function by the expected form of the value.
func plainly(err error) error {
	number, ok := errors.AsType[*strconv.NumError](err)
	switch {
	case !ok && strings.HasPrefix(err.Error(), "time: "):
		return errors.New("expected a duration such as 5s, 500ms or 1h30m")
	case !ok:
		return err
	case number.Func == "ParseBool":
		return errors.New("expected true or false")
	case errors.Is(err, strconv.ErrRange):
		return errors.New("expected a smaller number")
	case number.Func == "ParseUint":
		return errors.New("expected a number, 0 or more")
	}
	return errors.New("expected a number")
}

func badValue(f *pflag.Flag, value string, err error) error {
	return UsageErrorf("bad value %q for --%s from %s: %w", value, f.Name, sourceOf(f), err)
}

// SettingErrorf is a usage error about the value of a flag of cmd, found after parsing. It names where the value came from.
func SettingErrorf(cmd *cobra.Command, flag, format string, args ...any) error {
	f := cmd.Flags().Lookup(flag)
	if f == nil {
		panic("settingErrorf: no flag --" + flag)
	}
	return badValue(f, f.Value.String(), fmt.Errorf(format, args...))
}

// ElementErrorf is SettingErrorf for one element of a flag with several values.
func ElementErrorf(cmd *cobra.Command, flag, element, format string, args ...any) error {
	return UsageErrorf("bad value '%s' for --%s from %s: %w", element, flag, sourceOf(cmd.Flags().Lookup(flag)), fmt.Errorf(format, args...))
}

func sourceOf(f *pflag.Flag) string {
	if source := f.Annotations[sourceKey]; len(source) == 1 {
		return source[0]
	}
	if f.Changed {
		return sourceArgs
	}
	return sourceDefault
}

// config is a config file: for each key, the values it gives to the flag of that name.
type config struct {
	path   string
	values map[string][]string
}

func readConfig(cmd *cobra.Command) (config, error) {
	flag := cmd.Flags().Lookup("config")
	path := flag.Value.String()
	source := "--config"
	if !flag.Changed {
		path, source = os.Getenv(EnvName("config")), EnvName("config")
	}
	if path == "" {
		return config{}, nil
	}
	data, err := readSmall(path)
	if err != nil {
		return config{}, UsageErrorf("%s %q: %w", source, path, err)
	}
	values, err := ParseConfig(data, SettingNames(cmd.Root()))
	if err != nil {
		return config{}, UsageErrorf("config file %s: %w", path, err)
	}
	return config{path, values}, nil
}

// mostConfig is the size of the largest config file.
const mostConfig = 1 << 20

// readSmall reads a regular file of at most mostConfig bytes. It never waits: a pipe, for example, is opened without a writer.
func readSmall(path string) ([]byte, error) {
	if err := filekind.CheckFile(path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if found, err := f.Stat(); err != nil || !found.Mode().IsRegular() {
		return nil, cmp.Or(err, errors.New("expected a regular file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, mostConfig+1))
	if err == nil && len(data) > mostConfig {
		err = fmt.Errorf("expected a file of at most 1 MiB, found a larger one")
	}
	return data, err
}

// ParseConfig reads YAML: one mapping from flag names to scalars or lists of scalars. A key must be a flag of some
// command, not necessarily of the current command, so one file serves a whole job.
func ParseConfig(data []byte, known []string) (map[string][]string, error) {
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, syntaxError(data, err)
	}
	var keys map[string]any
	dec := json.NewDecoder(bytes.NewReader(asJSON))
	dec.UseNumber() // a float64 would turn 10000000 into 1e+07, which no integer flag reads
	if err := dec.Decode(&keys); err != nil {
		return nil, errors.New("expected a mapping from flag names to values, such as `listen: 127.0.0.1:8080`")
	}
	values := make(map[string][]string, len(keys))
	for key, value := range keys {
		if !slices.Contains(known, key) {
			return nil, fmt.Errorf("unknown key %q (keys are flag names without the dashes in front)%s", key, didYouMean(key, known))
		}
		values[key], err = scalars(value)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", key, err)
		}
	}
	return values, nil
}

func scalars(value any) ([]string, error) {
	switch value := value.(type) {
	case string:
		return []string{value}, nil
	case json.Number:
		return []string{value.String()}, nil
	case bool:
		return []string{fmt.Sprint(value)}, nil
	case []any:
		list := make([]string, 0, len(value))
		for _, element := range value {
			one, err := scalars(element)
			if err != nil || len(one) != 1 {
				return nil, errors.New("expected a list of plain values")
			}
			list = append(list, one[0])
		}
		return list, nil
	case nil:
		return nil, errors.New("no value; give one or take the key out")
	}
	return nil, errors.New("expected a plain value or a list of them, found a mapping")
}

// SettingNames lists the flags of all commands, sorted.
func SettingNames(root *cobra.Command) []string {
	var names []string
	for cmd := range Commands(root) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(notSettings, f.Name) {
				names = append(names, f.Name)
			}
		})
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// completions are the names that a word begins, if it stands before a dash there and they are few.
func completions(word string, names []string) (list []string) {
	const most = 3
	for _, name := range names {
		if word != "" && strings.HasPrefix(name, word+"-") && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	if len(list) > most {
		return nil
	}
	return list
}

// FlagError explains a flag that cobra could not parse.
func FlagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		given := unknown.GetSpecifiedName()
		if short := unknown.GetSpecifiedShortnames(); short != "" && strings.Contains(cmd.Use, " ") { // it takes arguments
			return UsageErrorf("%w; a file name? write ./-%s", err, short)
		}
		if given == "addr" && slices.Contains(names, "endpoints") && slices.Contains(names, "data-dir") {
			return UsageErrorf("%w: this command reads etcd, without a master: use --endpoints or --data-dir", err)
		}
		if longer := completions(given, names); len(longer) > 0 {
			return UsageErrorf("%w; did you mean --%s?", err, strings.Join(longer, " or --"))
		}
		if name := nearest(given, names); name != "" {
			return UsageErrorf("%w; did you mean --%s?", err, name)
		}
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return UsageErrorf("bad value %q for --%s from %s: %w", invalid.GetValue(), invalid.GetFlag().Name, sourceArgs, plainly(invalid.Unwrap()))
	}
	return UsageErrorf("%w", err)
}
