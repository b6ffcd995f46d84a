package failpoint

import (
	"errors"
	"testing"
)

func TestHookSeesStepsAndFailsThem(t *testing.T) {
	var seen []string
	hook := Hook(func(step string) error {
		if seen = append(seen, step); step == "synced" {
			return ErrCrash
		}
		return nil
	})
	hook.Observe("written")
	if err := hook.Reach("synced"); !errors.Is(err, ErrCrash) {
		t.Errorf("found %v, expected the error of the hook", err)
	}
	if len(seen) != 2 || seen[0] != "written" || seen[1] != "synced" {
		t.Errorf("the hook saw %v", seen)
	}
}

func TestHookThatFailsAFinalStepPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("expected a panic: the step cannot fail")
		}
	}()
	Hook(func(string) error { return ErrCrash }).Observe("written")
}

func TestNilHookDoesNothing(t *testing.T) {
	var hook Hook
	hook.Observe("written")
	if err := hook.Reach("synced"); err != nil {
		t.Error(err)
	}
}
