#include "go_asm.h"
#include "textflag.h"

// The loops, eight elements at a time. No multiplication is fused with an
// addition: the bits are those of the plain loops. A constant of numbers has a
// register from Y8 on for itself.

#define CONSTANT(offset, register) VBROADCASTSS offset(AX), register

// params are at DI, grad at SI, first at R8 and second at R9, each plus CX, which
// counts from minus the number of bytes to 0.
#define BEGIN \
	LEAQ k+0(FP), AX       \
	MOVQ params+56(FP), DI \
	MOVQ grad+64(FP), SI   \
	MOVQ first+72(FP), R8  \
	MOVQ second+80(FP), R9 \
	MOVQ n+88(FP), CX      \
	SHLQ $2, CX            \
	ADDQ CX, DI            \
	ADDQ CX, SI            \
	ADDQ CX, R8            \
	ADDQ CX, R9            \
	NEGQ CX

// NEXT goes on with the next vector.
#define NEXT \
	ADDQ $32, CX    \
	JNZ  more       \
	VZEROUPPER      \
	RET

// func clampAVX2(k numbers, params, grad, first, second *float32, n int)
//
// limit params to [-limit, limit]. The second operand wins where nothing is less:
// NaNs and zeros stay as they are.
TEXT ·clampAVX2(SB), NOSPLIT, $0-96
	BEGIN
	CONSTANT(numbers_limit, Y8)
	VXORPS Y9, Y9, Y9
	VSUBPS Y8, Y9, Y9

more:
	VMINPS  (DI)(CX*1), Y8, Y0
	VMAXPS  Y0, Y9, Y0
	VMOVUPS Y0, (DI)(CX*1)
	NEXT

// func sgdAVX2(k numbers, params, grad, first, second *float32, n int)
//
// params += rate*grad
TEXT ·sgdAVX2(SB), NOSPLIT, $0-96
	BEGIN
	CONSTANT(numbers_rate, Y8)

more:
	VMULPS  (SI)(CX*1), Y8, Y0
	VADDPS  (DI)(CX*1), Y0, Y0
	VMOVUPS Y0, (DI)(CX*1)
	NEXT

// func momentumAVX2(k numbers, params, grad, first, second *float32, n int)
//
// first = momentum*first + grad; params += rate*first
TEXT ·momentumAVX2(SB), NOSPLIT, $0-96
	BEGIN
	CONSTANT(numbers_rate, Y8)
	CONSTANT(numbers_momentum, Y9)

more:
	VMULPS  (R8)(CX*1), Y9, Y0
	VADDPS  (SI)(CX*1), Y0, Y0
	VMOVUPS Y0, (R8)(CX*1)
	VMULPS  Y8, Y0, Y0
	VADDPS  (DI)(CX*1), Y0, Y0
	VMOVUPS Y0, (DI)(CX*1)
	NEXT

// func nesterovAVX2(k numbers, params, grad, first, second *float32, n int)
//
// first = momentum*first + grad; params += rate*(grad + momentum*first)
TEXT ·nesterovAVX2(SB), NOSPLIT, $0-96
	BEGIN
	CONSTANT(numbers_rate, Y8)
	CONSTANT(numbers_momentum, Y9)

more:
	VMOVUPS (SI)(CX*1), Y1
	VMULPS  (R8)(CX*1), Y9, Y0
	VADDPS  Y1, Y0, Y0
	VMOVUPS Y0, (R8)(CX*1)
	VMULPS  Y9, Y0, Y0
	VADDPS  Y1, Y0, Y0
	VMULPS  Y8, Y0, Y0
	VADDPS  (DI)(CX*1), Y0, Y0
	VMOVUPS Y0, (DI)(CX*1)
	NEXT

// func adagradAVX2(k numbers, params, grad, first, second *float32, n int)
//
// first += grad*grad; params -= rate*grad / (root(first) + epsilon)
TEXT ·adagradAVX2(SB), NOSPLIT, $0-96
	BEGIN
	CONSTANT(numbers_rate, Y8)
	CONSTANT(numbers_epsilon, Y9)

more:
	VMOVUPS (SI)(CX*1), Y1
	VMULPS  Y1, Y1, Y0
	VADDPS  (R8)(CX*1), Y0, Y0
	VMOVUPS Y0, (R8)(CX*1)
	VSQRTPS Y0, Y0
	VADDPS  Y9, Y0, Y0
	VMULPS  Y8, Y1, Y1
	VDIVPS  Y0, Y1, Y1
	VMOVUPS (DI)(CX*1), Y2
	VSUBPS  Y1, Y2, Y2
	VMOVUPS Y2, (DI)(CX*1)
	NEXT

// func adamAVX2(k numbers, params, grad, first, second *float32, n int)
//
// first = beta1*first + rest1*grad; second = beta2*second + rest2*grad*grad;
// params -= decay*params + rate*first / (root(second)*inverse + epsilon)
TEXT ·adamAVX2(SB), NOSPLIT, $0-96
	BEGIN
	CONSTANT(numbers_rate, Y8)
	CONSTANT(numbers_epsilon, Y9)
	CONSTANT(numbers_beta1, Y10)
	CONSTANT(numbers_rest1, Y11)
	CONSTANT(numbers_beta2, Y12)
	CONSTANT(numbers_rest2, Y13)
	CONSTANT(numbers_inverse, Y14)
	CONSTANT(numbers_decay, Y15)

more:
	VMOVUPS (SI)(CX*1), Y0
	VMULPS  Y0, Y0, Y1
	VMULPS  Y13, Y1, Y1
	VMULPS  (R9)(CX*1), Y12, Y2
	VADDPS  Y1, Y2, Y2
	VMOVUPS Y2, (R9)(CX*1)
	VMULPS  Y11, Y0, Y0
	VMULPS  (R8)(CX*1), Y10, Y1
	VADDPS  Y0, Y1, Y1
	VMOVUPS Y1, (R8)(CX*1)
	VSQRTPS Y2, Y2
	VMULPS  Y14, Y2, Y2
	VADDPS  Y9, Y2, Y2
	VMULPS  Y8, Y1, Y1
	VDIVPS  Y2, Y1, Y1
	VMOVUPS (DI)(CX*1), Y3
	VMULPS  Y15, Y3, Y0
	VADDPS  Y1, Y0, Y0
	VSUBPS  Y0, Y3, Y3
	VMOVUPS Y3, (DI)(CX*1)
	NEXT

// func ftrlAVX2(k numbers, params, grad, first, second *float32, n int)
//
// after = root(second + grad*grad), of which second becomes the argument;
// first += scale*grad - (after - root(second))*inverse*params;
// params = (first limited to [-l1, l1] - first) / ((beta + after)*inverse + l2)
TEXT ·ftrlAVX2(SB), NOSPLIT, $0-96
	BEGIN
	CONSTANT(numbers_beta, Y8)
	CONSTANT(numbers_l1, Y9)
	CONSTANT(numbers_l2, Y10)
	CONSTANT(numbers_inverse, Y11)
	CONSTANT(numbers_scale, Y12)
	VXORPS Y13, Y13, Y13
	VSUBPS Y9, Y13, Y13

more:
	VMOVUPS (SI)(CX*1), Y0
	VMOVUPS (R9)(CX*1), Y1
	VMULPS  Y0, Y0, Y2
	VADDPS  Y2, Y1, Y2
	VMOVUPS Y2, (R9)(CX*1)
	VSQRTPS Y1, Y1
	VSQRTPS Y2, Y2
	VSUBPS  Y1, Y2, Y1
	VMULPS  Y11, Y1, Y1
	VMULPS  (DI)(CX*1), Y1, Y1
	VMULPS  Y12, Y0, Y0
	VSUBPS  Y1, Y0, Y0
	VADDPS  (R8)(CX*1), Y0, Y0
	VMOVUPS Y0, (R8)(CX*1)
	VADDPS  Y8, Y2, Y2
	VMULPS  Y11, Y2, Y2
	VADDPS  Y10, Y2, Y2
	VMINPS  Y0, Y9, Y3
	VMAXPS  Y3, Y13, Y3
	VSUBPS  Y0, Y3, Y3
	VDIVPS  Y2, Y3, Y3
	VMOVUPS Y3, (DI)(CX*1)
	NEXT
