package params_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// A value that is infinite only as bfloat16 is refused, and the gradients do not change.
func TestBFloat16RefusesWhatItCannotHold(t *testing.T) {
	addrs, _ := startShards(t, 1, pserver.Config{})
	cfg := config(addrs, params.Async)
	cfg.WireDType = params.BFloat16
	c := connect(t, cfg)
	values, grads := tensors(1), tensors(0.1)
	if err := c.Init(within(t), values); err != nil {
		t.Fatal(err)
	}
	for value, want := range map[float64]string{
		-math.MaxFloat32: `gradient "w": element 300000 is -3.4028235e+38, which is -Inf as bfloat16`,
		math.NaN():       `gradient "w": element 300000 is NaN`,
		math.Inf(1):      `gradient "w": element 300000 is +Inf`,
	} {
		grads[0].Data[300_000] = float32(value)
		if _, err := c.PushPull(within(t), 1, 1, grads, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, expected %q", value, err, want)
		}
	}
	if grads[0].Data[1] != 0.1 || !holds(values, 1) {
		t.Errorf("gradients became %v, parameters %v", grads[0].Data[1], values[0].Data[0])
	}
	cfg.WireDType = "float8"
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), `"float8": expected float32 or bfloat16`) {
		t.Errorf("another type: %v", err)
	}
}

// Clipping happens before the sum and the rounding of the first attempt.
func TestClippedGradientsArriveTheFirstTime(t *testing.T) {
	for _, dtype := range params.WireDTypes() {
		t.Run(dtype, func(t *testing.T) {
			var lines bytes.Buffer
			log := logrus.New()
			log.SetOutput(&lines)
			log.SetLevel(logrus.DebugLevel)
			addrs, _ := startShards(t, 1, pserver.Config{})
			cfg := config(addrs, params.Async)
			cfg.Log, cfg.WireDType = logrus.NewEntry(log), params.WireDType(dtype)
			cfg.Optimizer.ClipNorm = float32(math.Sqrt(500_042)) / 2
			c := connect(t, cfg)
			values := tensors(0)
			if err := c.Init(within(t), values); err != nil {
				t.Fatal(err)
			}
			if _, err := c.PushPull(within(t), 1, 1, tensors(-1), values); err != nil {
				t.Fatal(err)
			}
			grads := tensors(-1)
			grads[1].Data[2] = float32(math.NaN())
			if _, err := c.PushPull(within(t), 2, 1, grads, values); err == nil || !strings.Contains(err.Error(), `gradient "b": element 2 is NaN`) {
				t.Errorf("a gradient whose norm is NaN: %v", err)
			}
			if got := values[0].Data[0]; math.Abs(float64(got)-0.5) > 1e-3 {
				t.Errorf("parameters are %v after a gradient of -1 that was clipped to -0.5", got)
			}
			if strings.Contains(lines.String(), "patience") || strings.Contains(lines.String(), "lost") {
				t.Errorf("it was sent more than once:\n%s", &lines)
			}
		})
	}
}
