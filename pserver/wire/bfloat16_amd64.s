#include "textflag.h"

// ROUND leaves in v the nearest bfloat16, in the lower halves; of a NaN the same
// one, quiet. The greatest of all, moved up and without signs, are kept in Y9.
#define ROUND(v, rounded, nan) \
	VCMPPS    $3, v, v, nan          \
	VPSRLD    $16, v, rounded        \
	VPAND     Y11, rounded, rounded  \
	VPADDD    Y12, rounded, rounded  \
	VPADDD    v, rounded, rounded    \
	VPOR      Y13, v, v              \
	VBLENDVPS nan, v, rounded, v     \
	VPSLLD    $1, v, rounded         \
	VPMAXUD   rounded, Y9, Y9        \
	VPSRLD    $16, v, v

// NOTFINITE is 0 unless one in Y9 has the exponent of infinities and NaNs.
#define NOTFINITE(register) \
	VPCMPEQD  Y8, Y8, Y8  \
	VPSRLD    $24, Y8, Y8 \
	VPSRLD    $24, Y9, Y9 \
	VPCMPEQD  Y8, Y9, Y9  \
	VMOVMSKPS Y9, register

// func narrowAVX2(dst *byte, src *float32, n int) (notFinite uint32)
TEXT ·narrowAVX2(SB), NOSPLIT, $0-28
	MOVQ     dst+0(FP), DI
	MOVQ     src+8(FP), SI
	MOVQ     n+16(FP), CX
	VPXOR    Y9, Y9, Y9
	VPCMPEQD Y11, Y11, Y11
	VPSRLD   $17, Y11, Y12
	VPSRLD   $31, Y11, Y11
	VPSLLD   $22, Y11, Y13 // Y11 is 1, Y12 0x7fff and Y13 the bit that makes a NaN quiet

more:
	VMOVDQU   (SI), Y0
	VMOVDQU   32(SI), Y1
	ROUND(Y0, Y2, Y4)
	ROUND(Y1, Y3, Y5)
	VPACKUSDW Y1, Y0, Y0
	VPERMQ    $0xd8, Y0, Y0
	VMOVDQU   Y0, (DI)
	ADDQ      $64, SI
	ADDQ      $32, DI
	SUBQ      $16, CX
	JNZ       more
	NOTFINITE(AX)
	MOVL      AX, notFinite+24(FP)
	VZEROUPPER
	RET

// func widenAVX2(dst *float32, src *byte, n int) (notFinite uint32)
TEXT ·widenAVX2(SB), NOSPLIT, $0-28
	MOVQ  dst+0(FP), DI
	MOVQ  src+8(FP), SI
	MOVQ  n+16(FP), CX
	VPXOR Y9, Y9, Y9

more:
	// Both are read before one is written: dst may end where src does.
	VPMOVZXWD (SI), Y0
	VPMOVZXWD 16(SI), Y1
	VPSLLD    $16, Y0, Y0
	VPSLLD    $16, Y1, Y1
	VMOVDQU   Y0, (DI)
	VMOVDQU   Y1, 32(DI)
	VPSLLD    $1, Y0, Y2
	VPSLLD    $1, Y1, Y3
	VPMAXUD   Y2, Y9, Y9
	VPMAXUD   Y3, Y9, Y9
	ADDQ      $32, SI
	ADDQ      $64, DI
	SUBQ      $16, CX
	JNZ       more
	NOTFINITE(AX)
	MOVL      AX, notFinite+24(FP)
	VZEROUPPER
	RET
