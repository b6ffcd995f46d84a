// Package optimizer has the rules by which gradients change parameters: SGD,
// momentum, Nesterov, Adagrad, Adam, AdamW and FTRL-Proximal, with weight decay,
// clipping, and schedules of the learning rate.
//
// A [Config] says which rule and with what numbers; it is the same for all
// trainers and servers of a job. Its [Rule] works on slices of float32: the
// parameters, the gradient, and as many slices of state as the rule has slots.
// A Rule keeps nothing itself. Nothing here allocates, waits, or knows what
// time it is.
//
// # The same bits
//
// Every element is computed by itself, so that a tensor may be stepped in
// pieces of any size, by any number of goroutines. Every product is rounded to
// float32 before it is added, also where the processor could do both at once.
// So the bits depend on the arguments only, and not on whether a processor has
// the loops with vectors (AVX2) or those in plain Go. A NaN may be another NaN.
//
// # The order of things
//
// g is the mean gradient over the records of a step; w are the parameters.
//
//  1. ClipNorm: the trainer multiplies its gradient, all tensors of the model
//     together, so that their norm is ClipNorm at most ([ClipFactor]). Only the
//     trainer has the whole of it: the blocks lie on many servers.
//  2. ClipValue: the rule limits every element of g to [-ClipValue, ClipValue].
//  3. WeightDecay: g += WeightDecay * w; in AdamW w shrinks instead, see below.
//  4. The rule.
//
// # The rules
//
// r is the learning rate of the step: LearningRate times the schedule's factor
// times whatever the caller multiplies it by; t counts the updates of these
// parameters from 1; state starts at 0 where nothing is said. The conventions are
// PyTorch's, so that settings may be taken from there, but FTRL's.
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
// Sources: momentum as Polyak 1964 in the form of Sutskever et al. 2013 that
// PyTorch uses (the rate multiplies v, so that a change of the rate is felt at
// once); Nesterov as torch.optim.SGD(nesterov=True); Adagrad Duchi et al. 2011,
// epsilon outside the root, as in PyTorch and other than in TensorFlow; Adam
// Kingma and Ba 2015, algorithm 1 with epsilon outside the root and after the
// correction of the bias, as in PyTorch, where TensorFlow's "epsilon hat" stands
// before it; AdamW Loshchilov and Hutter 2019, decay times the learning rate, as in
// PyTorch; FTRL-Proximal McMahan et al. 2013, algorithm 1.
//
// FTRL differs from the paper, where all parameters start at 0, in two points. z
// starts so that the parameters are what they are given as: without L1 and L2
// nothing is forgotten, and the rule is SGD with the rate LearningRate /
// (FTRLBeta + sqrt(n)) for each parameter. And a schedule multiplies the gradient
// in z, not LearningRate in q: that would scale all parameters up and down with it.
package optimizer
