package terminal

import (
	"io"
	"slices"
	"strings"
)

const (
	// gap is between two columns.
	gap = 3
	// leastWrapped is how narrow a column may become whose texts are broken into lines. With less
	// room, they stand beneath the row.
	leastWrapped = 20
)

// Table is rows under titles. Where it is too wide for the screen, first the texts of the Wrapped
// column are broken into lines; then columns with the highest Spare are left out; then the Wrapped
// column stands beneath each row; what is still too wide is printed as a paragraph per row. Only
// columns that can be spared are left out, and never of a paragraph.
type Table struct {
	Columns []Column
	Rows    []Row
}

// Column says how a column of cells is printed.
type Column struct {
	Title string
	// Wrapped texts may take several lines. At most one column of a table is wrapped: the last.
	Wrapped bool
	// Spare columns are left out on a narrow screen, those with the highest number first.
	// 0: never.
	Spare int
	// Right aligns numbers.
	Right bool
	// Key columns tell rows apart, and begin the paragraph of each. Without any, the first does.
	Key bool
}

// Row has a cell for each column. Missing ones are empty.
type Row []Cell

// Cell is a text, and what it means. Its lines begin a new line in a Wrapped column.
type Cell struct {
	Text  string
	Style Style
}

// Texts makes a row of plain cells.
func Texts(texts ...string) Row {
	row := make(Row, len(texts))
	for i, text := range texts {
		row[i].Text = text
	}
	return row
}

// Write prints a table. One without rows prints nothing: say in words what was looked for.
func (s Screen) Write(w io.Writer, t Table) error {
	if len(t.Rows) == 0 {
		return nil
	}
	var out strings.Builder
	all, above := t.columns()
	if shown, fits := t.fit(s, all); fits {
		s.rows(&out, t, shown)
	} else if shown, fits := t.fit(s, above); fits && len(above) < len(all) {
		s.rowsAbove(&out, t, shown)
	} else {
		s.paragraphs(&out, t)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// columns are all by their index, and those that are not wrapped.
func (t Table) columns() (all, above []int) {
	for i, column := range t.Columns {
		all = append(all, i)
		if !column.Wrapped {
			above = append(above, i)
		}
	}
	return all, above
}

// fit leaves out columns that can be spared, until the others fit.
func (t Table) fit(s Screen, columns []int) (shown []int, fits bool) {
	shown = slices.Clone(columns)
	for s.Width > 0 && t.least(shown) > s.Width {
		out := -1
		for at, i := range shown {
			if t.Columns[i].Spare > 0 && (out < 0 || t.Columns[i].Spare > t.Columns[shown[out]].Spare) {
				out = at
			}
		}
		if out < 0 {
			return nil, false
		}
		shown = slices.Delete(shown, out, out+1)
	}
	return shown, true
}

// least is how wide columns are at least.
func (t Table) least(shown []int) int {
	total := -gap
	for _, i := range shown {
		width := t.width(i)
		if t.Columns[i].Wrapped {
			width = min(width, leastWrapped)
		}
		total += width + gap
	}
	return total
}

// width is that of a column whose texts are not broken.
func (t Table) width(column int) int {
	widest := length(t.Columns[column].Title)
	for _, row := range t.Rows {
		for _, line := range strings.Split(row.at(column).Text, "\n") {
			widest = max(widest, length(line))
		}
	}
	return widest
}

func (r Row) at(column int) Cell {
	if column >= len(r) {
		return Cell{}
	}
	return r[column]
}

func (s Screen) rows(out *strings.Builder, t Table, shown []int) {
	widths, taken := t.widths(shown)
	for _, row := range append([]Row{t.heading()}, t.Rows...) {
		s.row(out, t, row, shown, widths, taken)
	}
}

// widths are those of columns by their index, and of all that are not wrapped together.
func (t Table) widths(shown []int) (widths []int, taken int) {
	widths = make([]int, len(t.Columns))
	for _, i := range shown {
		widths[i] = t.width(i)
		if !t.Columns[i].Wrapped {
			taken += widths[i] + gap
		}
	}
	return widths, taken
}

func (t Table) heading() Row {
	heading := make(Row, len(t.Columns))
	for i, column := range t.Columns {
		heading[i] = Cell{Text: column.Title, Style: Strong}
	}
	return heading
}

// row prints the lines of a row: as many as its highest cell has.
func (s Screen) row(out *strings.Builder, t Table, row Row, shown, widths []int, taken int) {
	lines, high := map[int][]string{}, 1
	for _, i := range shown {
		lines[i] = []string{row.at(i).Text}
		if t.Columns[i].Wrapped {
			lines[i] = nil
			for _, paragraph := range strings.Split(row.at(i).Text, "\n") {
				lines[i] = append(lines[i], wrap(paragraph, s.room(taken))...)
			}
		}
		high = max(high, len(lines[i]))
	}
	for n := range high {
		before := 0
		for at, i := range shown {
			text := ""
			if n < len(lines[i]) {
				text = lines[i][n]
			}
			pad := strings.Repeat(" ", max(widths[i]-length(text), 0))
			// Spaces are written only before a text, so that no line ends in one.
			if text != "" {
				if t.Columns[i].Right {
					before += len(pad)
					pad = ""
				}
				out.WriteString(strings.Repeat(" ", before) + s.Paint(text, row.at(i).Style))
				before = 0
			}
			before += len(pad)
			if at < len(shown)-1 {
				before += gap
			}
		}
		out.WriteString("\n")
	}
}
