package model

// Table is an embedding table: a row of Dim numbers for each category that ever occurs. The rows of a model's tables are too
// many to come with every call. Those of the categories of a batch come behind its other parameters, as one tensor for
// each table, and so do their gradients; Rows says how they are named and shaped.
type Table struct {
	Name      string
	Dim       int
	Deviation float64 // of the normally distributed first values; 0: zeros
}

// Rows are the names and shapes of what a batch needs of tables: row i is that of batch.Categories()[i].
func Rows(tables []Table, batch *Batch) []Tensor {
	rows := make([]Tensor, len(tables))
	for i, t := range tables {
		rows[i] = Tensor{Name: t.Name, Shape: []int{len(batch.Categories()), t.Dim}}
	}
	return rows
}
