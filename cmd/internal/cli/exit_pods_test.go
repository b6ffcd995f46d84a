package cli

import "testing"

func TestPodCodes(t *testing.T) {
	for _, c := range []struct {
		code             int
		failed, signaled bool
		want             int
	}{
		{code: ExitOK, want: 0},
		{code: ExitFailed, want: 1},
		{code: ExitFailed, failed: true, want: 65},
		{code: ExitFailed, failed: true, signaled: true, want: 65},
		{code: ExitFailed, signaled: true, want: 143},
		{code: ExitUsage, want: 64},
		{code: ExitUsage, signaled: true, want: 64},
		{code: ExitStore, want: 75},
		{code: ExitStore, signaled: true, want: 143},
		{code: ExitSetAside, want: 65},
		{code: ExitInterrupted, signaled: true, want: 143},
		{code: ExitPodStopped, signaled: true, want: 143},
	} {
		if got := PodCode(c.code, c.failed, c.signaled); got != c.want {
			t.Errorf("%+v: exit code %d", c, got)
		}
	}
}
