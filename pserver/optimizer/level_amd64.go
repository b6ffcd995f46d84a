package optimizer

import "golang.org/x/sys/cpu"

// levels are what this processor can do, the fastest first. With AVX-512 a loop is
// no faster once parameters come from memory.
var levels = processorLevels()

func processorLevels() (list []*level) {
	if cpu.X86.HasAVX2 {
		list = append(list, &level{"avx2", 8, [loops]kernel{
			loopClamp: clampAVX2, loopSGD: sgdAVX2, loopMomentum: momentumAVX2, loopNesterov: nesterovAVX2,
			loopAdagrad: adagradAVX2, loopAdam: adamAVX2, loopFTRL: ftrlAVX2,
		}})
	}
	return append(list, plainLevel)
}

//go:noescape
func clampAVX2(k numbers, params, grad, first, second *float32, n int)

//go:noescape
func sgdAVX2(k numbers, params, grad, first, second *float32, n int)

//go:noescape
func momentumAVX2(k numbers, params, grad, first, second *float32, n int)

//go:noescape
func nesterovAVX2(k numbers, params, grad, first, second *float32, n int)

//go:noescape
func adagradAVX2(k numbers, params, grad, first, second *float32, n int)

//go:noescape
func adamAVX2(k numbers, params, grad, first, second *float32, n int)

//go:noescape
func ftrlAVX2(k numbers, params, grad, first, second *float32, n int)
