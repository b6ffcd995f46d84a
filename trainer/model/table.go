package model

// Table is an embedding table: a row of Dim numbers for each category. A model's tables have too many rows to pass with every call.
// The rows of a batch's categories follow its other parameters, as one tensor for each table, and so do their gradients. Rows
// returns their names and shapes.
type Table struct {
	Name      string
	Dim       int
	Deviation float64 // of the normally distributed first values; 0: zeros
}

// Rows returns the names and shapes of the table rows that a batch needs: row i belongs to batch.Categories()[i].
func Rows(tables []Table, batch *Batch) []Tensor {
	rows := make([]Tensor, len(tables))
	for i, t := range tables {
		rows[i] = Tensor{Name: t.Name, Shape: []int{len(batch.Categories()), t.Dim}}
	}
	return rows
}
