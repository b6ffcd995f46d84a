package model

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// gonum cuts a product into blocks of 64 x 64 and starts goroutines for four blocks or more. Tiles of at most one block
// by three stay on the calling goroutine and allocate nothing. (The inner index stays whole: cutting it was no faster.)
const (
	tileRows = 64
	tileCols = 3 * 64
)

// matrix views row-major data as rows x cols.
func matrix(rows, cols int, data []float32) blas32.General {
	return blas32.General{Rows: rows, Cols: cols, Stride: max(1, cols), Data: data[:rows*cols]}
}

// addProduct adds a·b to c.
func addProduct(c, a, b blas32.General) {
	for row := 0; row < c.Rows; row += tileRows {
		height := min(tileRows, c.Rows-row)
		for col := 0; col < c.Cols; col += tileCols {
			width := min(tileCols, c.Cols-col)
			blas32.Gemm(blas.NoTrans, blas.NoTrans, 1,
				tile(a, row, 0, height, a.Cols), tile(b, 0, col, b.Rows, width),
				1, tile(c, row, col, height, width))
		}
	}
}

// addTransposedProduct adds aᵀ·b to c.
func addTransposedProduct(c, a, b blas32.General) {
	if a.Rows == 0 {
		return
	}
	for row := 0; row < c.Rows; row += tileRows {
		height := min(tileRows, c.Rows-row)
		for col := 0; col < c.Cols; col += tileCols {
			width := min(tileCols, c.Cols-col)
			blas32.Gemm(blas.Trans, blas.NoTrans, 1,
				tile(a, 0, row, a.Rows, height), tile(b, 0, col, b.Rows, width),
				1, tile(c, row, col, height, width))
		}
	}
}

// tile is the part of m that starts at (row, col).
func tile(m blas32.General, row, col, rows, cols int) blas32.General {
	m.Data = m.Data[row*m.Stride+col : (row+rows-1)*m.Stride+col+cols]
	m.Rows, m.Cols = rows, cols
	return m
}

// transpose sets dst to srcᵀ.
func transpose(dst, src blas32.General) {
	for i := range src.Rows {
		for j, v := range row(src, i) {
			dst.Data[j*dst.Stride+i] = v
		}
	}
}

// setRows sets every row of m to values.
func setRows(m blas32.General, values []float32) {
	for i := range m.Rows {
		copy(row(m, i), values)
	}
}

// sumRows sets sums to the sum of the rows of m, in their order.
func sumRows(sums []float32, m blas32.General) {
	clear(sums)
	for i := range m.Rows {
		for j, v := range row(m, i) {
			sums[j] += v
		}
	}
}

func row(m blas32.General, i int) []float32 { return m.Data[i*m.Stride : i*m.Stride+m.Cols] }
