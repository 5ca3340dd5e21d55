package terminal

import (
	"io"
	"slices"
	"strings"
)

const (
	// gap is the space between two columns.
	gap = 3
	// leastWrapped is the least width of a wrapped column.
	leastWrapped = 20
)

// Table is rows under titles. On a narrow screen, the texts of the Wrapped column are broken into lines,
// and then columns with the highest Spare are left out.
type Table struct {
	Columns []Column
	Rows    []Row
}

// Column describes a column of cells.
type Column struct {
	Title string
	// Wrapped texts may take several lines. Only the last column of a table may be wrapped.
	Wrapped bool
	// Spare columns are left out on a narrow screen, the highest number first. 0: never.
	Spare int
	// Right aligns numbers.
	Right bool
}

// Row has a cell for each column. Missing cells are empty.
type Row []Cell

// Cell is a text in a style. A Wrapped cell may have several lines.
type Cell struct {
	Text  string
	Style Style
}

// Texts returns a row of plain cells.
func Texts(texts ...string) Row {
	row := make(Row, len(texts))
	for i, text := range texts {
		row[i].Text = text
	}
	return row
}

// Write prints a table. A table without rows prints nothing.
func (s Screen) Write(w io.Writer, t Table) error {
	if len(t.Rows) == 0 {
		return nil
	}
	widths := make([]int, len(t.Columns))
	for i := range t.Columns {
		widths[i] = t.width(i)
	}
	shown := t.fit(s, widths)
	heading := make(Row, len(t.Columns))
	for i, column := range t.Columns {
		heading[i] = Cell{Text: column.Title, Style: Strong}
	}
	var out strings.Builder
	for _, row := range append([]Row{heading}, t.Rows...) {
		s.row(&out, t, row, shown, widths)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// width is the width of a column's longest line.
func (t Table) width(column int) int {
	widest := length(t.Columns[column].Title)
	for _, row := range t.Rows {
		for line := range strings.SplitSeq(row.at(column).Text, "\n") {
			widest = max(widest, length(line))
		}
	}
	return widest
}

// fit returns the columns that the screen has room for.
func (t Table) fit(s Screen, widths []int) []int {
	var shown []int
	total := -gap
	least := func(i int) int {
		if t.Columns[i].Wrapped {
			return min(widths[i], leastWrapped) + gap
		}
		return widths[i] + gap
	}
	for i := range t.Columns {
		shown = append(shown, i)
		total += least(i)
	}
	for s.Width > 0 && total > s.Width {
		spare := slices.MaxFunc(shown, func(a, b int) int { return t.Columns[a].Spare - t.Columns[b].Spare })
		if t.Columns[spare].Spare == 0 {
			break
		}
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == spare })
		total -= least(spare)
	}
	return shown
}

func (r Row) at(column int) Cell {
	if column >= len(r) {
		return Cell{}
	}
	return r[column]
}

// row prints as many lines as the row's highest cell has.
func (s Screen) row(out *strings.Builder, t Table, row Row, shown, widths []int) {
	taken, height := 0, 1
	lines := make([][]string, len(t.Columns))
	for _, i := range shown {
		lines[i] = []string{row.at(i).Text}
		if t.Columns[i].Wrapped {
			lines[i] = s.wrapped(row.at(i).Text, taken)
		}
		taken += widths[i] + gap
		height = max(height, len(lines[i]))
	}
	for n := range height {
		spaces := 0 // they are written before a text, so that no line ends in one
		for _, i := range shown {
			text := ""
			if n < len(lines[i]) {
				text = lines[i][n]
			}
			left, right := 0, max(widths[i]-length(text), 0)
			if t.Columns[i].Right {
				left, right = right, 0
			}
			if text == "" {
				spaces += left + right + gap
				continue
			}
			out.WriteString(strings.Repeat(" ", spaces+left) + s.Paint(text, row.at(i).Style))
			spaces = right + gap
		}
		out.WriteString("\n")
	}
}
