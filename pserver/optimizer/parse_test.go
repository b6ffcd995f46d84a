package optimizer

import (
	"fmt"
	"slices"
	"strings"
)

// Parse reads the output of String. It does not validate the result.
func Parse(text string) (Config, error) {
	var c Config
	settings := c.Settings()
	words := strings.Fields(text)
	for len(words) > 0 {
		name, dashes := strings.CutPrefix(words[0], "--")
		i := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == name })
		if !dashes || i < 0 {
			return Config{}, fmt.Errorf("optimizer settings %q: %q is none", text, words[0])
		}
		if len(words) < 2 {
			return Config{}, fmt.Errorf("optimizer settings %q: %s has no value", text, words[0])
		}
		if err := settings[i].Set(words[1]); err != nil {
			return Config{}, fmt.Errorf("optimizer settings %q: %s: %w", text, words[0], err)
		}
		words = words[2:]
	}
	return c, nil
}
