package evaluation

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseEvery(t *testing.T) {
	for text, want := range map[string]Every{
		"":                     {},
		"500steps":             {Steps: 500},
		"1step":                {Steps: 1},
		"2passes,1h30m,9steps": {Steps: 9, Passes: 2, Time: 90 * time.Minute},
		"1pass,1.5s":           {Passes: 1, Time: 1500 * time.Millisecond},
	} {
		if found, err := ParseEvery(text); err != nil || found != want {
			t.Errorf("%q: expected %+v, found %+v, %v", text, want, found, err)
		}
	}
	for text, words := range map[string]string{
		"500":                       `interval of rounds "500": expected "500steps", "1pass" or a time such as "10m", found "500"`,
		"500 steps":                 `a number above 0 before steps, found "500 steps"`,
		"0steps":                    `a number above 0 before steps, found "0steps"`,
		"-1pass":                    `a number above 0 before pass, found "-1pass"`,
		"steps":                     `found "steps"`,
		"1pass,":                    `found ""`,
		"1pass,2passes":             `expected each unit once, found "2passes"`,
		"1s,2m":                     `expected each unit once, found "2m"`,
		"100ms":                     `expected a time of 1s or more, in milliseconds, found "100ms"`,
		"1.0001s":                   `in milliseconds, found "1.0001s"`,
		"3epochs":                   `found "3epochs"`,
		"99999999999999999999steps": "found",
	} {
		if found, err := ParseEvery(text); !errors.Is(err, ErrBadSetting) || !strings.Contains(err.Error(), words) || found != (Every{}) {
			t.Errorf("%q: expected %q, found %+v, %v", text, words, found, err)
		}
	}
}

func TestParseGoal(t *testing.T) {
	if g, err := ParseGoal("digits.f1:max"); err != nil || g != (Goal{"digits.f1", true}) {
		t.Errorf("found %v, %v", g, err)
	}
	if g, err := ParseGoal("loss:min"); err != nil || g != (Goal{Figure: "loss"}) {
		t.Errorf("found %v, %v", g, err)
	}
	for _, text := range []string{"", "loss", ":max", "loss:", "loss:most", "a:min:max"} {
		if _, err := ParseGoal(text); !errors.Is(err, ErrBadSetting) || !strings.Contains(err.Error(), `such as "accuracy:max"`) {
			t.Errorf("%q: found %v", text, err)
		}
	}
}

func TestInvalidConfigIsNamed(t *testing.T) {
	nan := math.NaN()

	for words, c := range map[string]Config{
		"time between rounds":     {Every: Every{Time: -1}},
		"models to keep":          {KeepBest: 101},
		"rounds without progress": {Patience: -1},
		"a finite number":         {Target: &nan},
		"divergence":              {Diverged: 1},
		"above 1, found NaN":      {Diverged: nan},
	} {
		if err := c.Validate(); !errors.Is(err, ErrBadSetting) || !strings.Contains(err.Error(), words) {
			t.Errorf("expected %q, found %v", words, err)
		}
	}
	if err := (Config{}).Validate(); err != nil {
		t.Error(err)
	}
}
