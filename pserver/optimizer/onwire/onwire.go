// Package onwire implements the protobuf form of package optimizer.
package onwire

import (
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/optimizer"
)

// ToProto is c as a message.
func ToProto(c optimizer.Config) *pb.ParameterOptimizer {
	m := &pb.ParameterOptimizer{
		Kind: c.Kind, LearningRate: c.LearningRate, Momentum: c.Momentum,
		Beta1: c.Beta1, Beta2: c.Beta2, Epsilon: c.Epsilon,
		InitialAccumulator: c.InitialAccumulator, FtrlBeta: c.FTRLBeta, L1: c.L1, L2: c.L2,
		WeightDecay: c.WeightDecay, ClipValue: c.ClipValue, ClipNorm: c.ClipNorm,
	}
	if s := c.Schedule; s != (optimizer.Schedule{}) {
		m.Schedule = &pb.LearningRateSchedule{
			Kind: s.Kind, WarmupSteps: s.Warmup, Steps: s.Steps, End: s.End, Every: s.Every, Factor: s.Factor,
		}
	}
	return m
}

// FromProto is the configuration that a message carries, not validated.
func FromProto(m *pb.ParameterOptimizer) optimizer.Config {
	s := m.GetSchedule()
	return optimizer.Config{
		Kind: m.GetKind(), LearningRate: m.GetLearningRate(), Momentum: m.GetMomentum(),
		Beta1: m.GetBeta1(), Beta2: m.GetBeta2(), Epsilon: m.GetEpsilon(),
		InitialAccumulator: m.GetInitialAccumulator(), FTRLBeta: m.GetFtrlBeta(), L1: m.GetL1(), L2: m.GetL2(),
		WeightDecay: m.GetWeightDecay(), ClipValue: m.GetClipValue(), ClipNorm: m.GetClipNorm(),
		Schedule: optimizer.Schedule{
			Kind: s.GetKind(), Warmup: s.GetWarmupSteps(), Steps: s.GetSteps(), End: s.GetEnd(), Every: s.GetEvery(), Factor: s.GetFactor(),
		},
	}
}
