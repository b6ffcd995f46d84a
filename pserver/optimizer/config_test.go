package optimizer

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestConfigsThatMakeNoSense(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for want, c := range map[string]Config{
		`optimizer "lion": expected one of sgd, momentum`:                     {Kind: "lion", LearningRate: 1},
		`"sgd": learning-rate is 0: expected a positive number`:               {Kind: SGD},
		`"sgd": learning-rate is -1: expected 0 or more`:                      {Kind: SGD, LearningRate: -1},
		`"sgd": learning-rate is +Inf`:                                        {Kind: SGD, LearningRate: inf},
		`"momentum": learning-rate is NaN`:                                    {Kind: Momentum, LearningRate: nan},
		`"sgd": momentum is 0.5: expected no value without`:                   {Kind: SGD, LearningRate: 1, Momentum: 0.5},
		`"momentum": momentum is 1: expected 0 or more, and less than 1`:      {Kind: Momentum, LearningRate: 1, Momentum: 1},
		`"momentum": momentum is -0.5`:                                        {Kind: Momentum, LearningRate: 1, Momentum: -0.5},
		`"nesterov": momentum is NaN`:                                         {Kind: Nesterov, LearningRate: 1, Momentum: nan},
		`"adam": beta1 is 1: expected`:                                        {Kind: Adam, Beta1: 1},
		`"adamw": beta2 is -1: expected`:                                      {Kind: AdamW, Beta2: -1},
		`"adagrad": beta2 is 0.5: expected no value without --optimizer adam`: {Kind: Adagrad, Beta2: 0.5},
		`"ftrl": weight-decay is 0.1: expected no value`:                      {Kind: FTRL, WeightDecay: 0.1},
		`"adam": l1 is 0.1: expected no value without --optimizer ftrl`:       {Kind: Adam, L1: 0.1},
		`"adam": clip-norm is -1`:                                             {Kind: Adam, ClipNorm: -1},
		`"adam": clip-value is NaN`:                                           {Kind: Adam, ClipValue: nan},
		`"adam": schedule is sine: expected one of`:                           {Kind: Adam, Schedule: Schedule{Kind: "sine"}},
		`"adam": schedule-steps is 10: expected no value`:                     {Kind: Adam, Schedule: Schedule{Steps: 10}},
		`"adam": schedule-steps is 10: expected more than`:                    {Kind: Adam, Schedule: Schedule{Kind: Cosine, Steps: 10, Warmup: 10}},
		`"adam": schedule-steps is 0: expected more than`:                     {Kind: Adam, Schedule: Schedule{Kind: Linear}},
		`"adam": schedule-end is 1.5: expected 1 at most`:                     {Kind: Adam, Schedule: Schedule{Kind: Linear, Steps: 10, End: 1.5}},
		`"adam": schedule-every is 0: expected 1 or more`:                     {Kind: Adam, Schedule: Schedule{Kind: Stairs}},
		`"adam": schedule-factor is 2: expected 1 at most`:                    {Kind: Adam, Schedule: Schedule{Kind: Stairs, Every: 5, Factor: 2}},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, expected %q", c, err, want)
		}
	}
}

// A config that is still to be completed may lack what Validate asks for, and
// nothing else.
func TestConfigsAsGiven(t *testing.T) {
	for _, c := range []Config{{}, {LearningRate: 0.1, Momentum: 0.9}, {ClipNorm: 1, WeightDecay: 0.1}, {Kind: Adam}, {Schedule: Schedule{Kind: Cosine, Steps: 9}}} {
		if err := c.CheckGiven(); err != nil {
			t.Errorf("%v: %v", c, err)
		}
	}
	for want, c := range map[string]Config{"beta1": {Beta1: 0.5}, "learning-rate": {LearningRate: -1}, "momentum": {Kind: Adam, Momentum: 0.5}} {
		var wrong *FieldError
		if err := c.CheckGiven(); !errors.As(err, &wrong) || wrong.Setting != want {
			t.Errorf("%v: %v, expected an error about %s", c, err, want)
		}
	}
}

func TestDefaults(t *testing.T) {
	for text, c := range map[string]Config{
		"--optimizer adam --learning-rate 0.001 --beta1 0.9 --beta2 0.999 --epsilon 1e-08":  {Kind: Adam},
		"--optimizer adamw --learning-rate 0.001 --beta1 0.9 --beta2 0.999 --epsilon 1e-08": {Kind: AdamW, Schedule: Schedule{Kind: Constant}},
		"--optimizer adagrad --learning-rate 0.01 --epsilon 1e-10":                          {Kind: Adagrad},
		"--optimizer ftrl --learning-rate 0.1 --ftrl-beta 1":                                {Kind: FTRL},
		"--optimizer momentum --learning-rate 0.5":                                          {Kind: Momentum, LearningRate: 0.5},
		"--optimizer sgd --learning-rate 2 --schedule step --schedule-every 5 --schedule-factor 0.1": {
			Kind: SGD, LearningRate: 2, Schedule: Schedule{Kind: Stairs, Every: 5}},
	} {
		if got := validated(t, c); got.String() != text {
			t.Errorf("%q, expected %q", got, text)
		}
	}
}

// Every field has a setting, and comes back from text and from JSON as it was.
func TestConfigsSurviveTheWay(t *testing.T) {
	var full Config
	fields := 0
	for i, s := range full.Settings() {
		value := map[bool]string{true: "0.1234567", false: "37"}[s.Type() == "float"]
		if s.Words != nil {
			value = s.Words[len(s.Words)-1]
		}
		if err := s.Set(value); err != nil {
			t.Fatal(err)
		}
		if fields++; s.String() != value || s.isZero() {
			t.Errorf("setting %d, %s, is %q, expected %q", i, s.Name, s, value)
		}
	}
	if want := reflect.TypeFor[Config]().NumField() - 1 + reflect.TypeFor[Schedule]().NumField(); fields != want {
		t.Errorf("%d settings for %d fields", fields, want)
	}
	for _, c := range append(everyKind(t), full, Config{}) {
		parsed, err := Parse(c.String())
		if err != nil || parsed != c {
			t.Errorf("parsed %+v, %v, expected %+v", parsed, err, c)
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var read Config
		if err := json.Unmarshal(text, &read); err != nil || read != c {
			t.Errorf("read %+v, %v from %s", read, err, text)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"--optimizer":                "has no value",
		"optimizer adam":             `"optimizer" is none`,
		"--speed 3":                  `"--speed" is none`,
		"--optimizer lion":           "expected one of",
		"--beta1 x":                  "invalid syntax",
		"--warmup-steps -1":          "invalid syntax",
		"--learning-rate 1e99":       "out of range",
		"--optimizer adam --beta1 0": "0 selects the default, 0.9",
		"--beta2 0.0":                "0 selects the default, 0.999",
		"--epsilon 1e-60":            "0 selects the default, 1e-8",
		"--ftrl-beta -0":             "0 selects the default, 1",
		"--schedule-factor 0":        "0 selects the default, 0.1",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, expected %q", text, err, want)
		}
	}
}

// No field whose default is another number takes 0: it would get that.
func TestZeroIsNotTheDefault(t *testing.T) {
	for _, kind := range Kinds() {
		for _, schedule := range Schedules() {
			plain := Config{Kind: kind, LearningRate: 1, Schedule: Schedule{Kind: schedule, Steps: 9, Every: 9}}
			if schedule != Stairs {
				plain.Schedule.Every = 0
			}
			if schedule != Linear && schedule != Cosine {
				plain.Schedule.Steps = 0
			}
			c := validated(t, plain)
			for i, s := range c.Settings() {
				v, isNumber := s.number()
				if was, _ := plain.Settings()[i].number(); !isNumber || v == was {
					continue
				}
				if err := s.Set("0"); err == nil {
					t.Errorf("%s, %s: --%s takes 0, and makes it %v", kind, schedule, s.Name, v)
				}
			}
		}
	}
}
