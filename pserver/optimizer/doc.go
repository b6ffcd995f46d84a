// Package optimizer implements the rules by which gradients change parameters: SGD, momentum, Nesterov, Adagrad, Adam, AdamW and
// FTRL-Proximal, with weight decay, clipping, and schedules of the learning rate.
//
// A [Config] selects a rule and its numbers, the same for all trainers and servers of a job. A [Rule] works on slices of float32: the
// parameters, the gradient, and one slice of state for each slot of the rule. A Rule has no state of its own. The package does not
// allocate, wait, or read the clock.
//
// # Reproducible results
//
// No element depends on another, so any number of goroutines can update a tensor in pieces of any size. Every product is rounded to
// float32 before it is added; fused operations are not used. The bits therefore depend only on the arguments, not on the loops:
// vector loops (AVX2) and plain Go give the same result. Only the bits of a NaN can differ.
//
// # Order of operations
//
// g is the mean gradient over the records of a step; w are the parameters.
//
//  1. ClipNorm: the trainer scales its gradient so that the norm over all tensors of the model is at most ClipNorm ([ClipFactor]).
//     Only the trainer has the whole gradient, since the blocks belong to many servers.
//  2. ClipValue: the rule limits every element of g to [-ClipValue, ClipValue].
//  3. WeightDecay: g += WeightDecay * w; AdamW reduces w instead, see below.
//  4. The rule.
//
// # The rules
//
// r is the learning rate of the step: LearningRate times the schedule's factor times the factor of the caller. t counts the updates
// of these parameters from 1. State starts at 0 unless stated otherwise. Except for FTRL, settings have the same meaning as in
// PyTorch.
//
//	sgd       w -= r*g
//	momentum  v = Momentum*v + g;  w -= r*v
//	nesterov  v = Momentum*v + g;  w -= r*(g + Momentum*v)
//	adagrad   s += g*g;  w -= r*g / (sqrt(s) + Epsilon);  s starts at InitialAccumulator
//	adam      m = Beta1*m + (1-Beta1)*g;  v = Beta2*v + (1-Beta2)*g*g
//	          w -= r * (m / (1-Beta1^t)) / (sqrt(v / (1-Beta2^t)) + Epsilon)
//	adamw     as adam, and w -= r*WeightDecay*w, of the w before the step
//	ftrl      n' = n + g*g;  q = (FTRLBeta + sqrt(n)) / LearningRate, q' the same of n'
//	          z += (r/LearningRate)*g - (q'-q)*w
//	          w = 0 where |z| <= L1, else -(z - sign(z)*L1) / (q' + L2)
//	          n starts at InitialAccumulator, z at -q*w
//
// Sources:
//
//   - Momentum: Polyak 1964 in the form of Sutskever et al. 2013 that PyTorch uses. The rate multiplies v, so a change of the rate has
//     an immediate effect.
//   - Nesterov: torch.optim.SGD(nesterov=True).
//   - Adagrad: Duchi et al. 2011, epsilon outside the root, as in PyTorch and unlike TensorFlow.
//   - Adam: Kingma and Ba 2015, algorithm 1, with epsilon outside the root and after the bias correction, as in PyTorch.
//     TensorFlow's "epsilon hat" is before the correction.
//   - AdamW: Loshchilov and Hutter 2019, decay times the learning rate, as in PyTorch.
//   - FTRL-Proximal: McMahan et al. 2013, algorithm 1.
//
// FTRL differs from the paper, where all parameters start at 0, in two points. First, z starts at the value that reproduces the given
// parameters. Without L1 and L2 the rule is then SGD with the rate LearningRate / (FTRLBeta + sqrt(n)) for each parameter. Second, a
// schedule multiplies the gradient in z, not LearningRate in q, which would scale all parameters.
package optimizer
