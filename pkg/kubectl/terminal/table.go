package terminal

import (
	"io"
	"strings"
)

const (
	// gap is between two columns.
	gap = 3
	// leastWrapped is how narrow a column may become whose texts are broken into lines. With less
	// room, each row becomes a paragraph.
	leastWrapped = 20
)

// Table is rows under titles. Where it is too wide for the screen, first the texts of the Wrapped
// column are broken into lines; then columns with the highest Spare are left out; what is still too
// wide is printed as a paragraph per row, with a line per column. Nothing is cut short.
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
	shown := t.fit(s)
	if s.Width > 0 && t.least(shown) > s.Width {
		s.paragraphs(&out, t)
	} else {
		s.rows(&out, t, shown)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// fit chooses columns by their index: all, or without those that can be spared.
func (t Table) fit(s Screen) []int {
	shown := make([]int, 0, len(t.Columns))
	for i := range t.Columns {
		shown = append(shown, i)
	}
	for s.Width > 0 && t.least(shown) > s.Width {
		out := -1
		for at, i := range shown {
			if t.Columns[i].Spare > 0 && (out < 0 || t.Columns[i].Spare > t.Columns[shown[out]].Spare) {
				out = at
			}
		}
		if out < 0 {
			break
		}
		shown = append(shown[:out], shown[out+1:]...)
	}
	return shown
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
	widths, taken := make([]int, len(t.Columns)), 0
	for _, i := range shown {
		widths[i] = t.width(i)
		if !t.Columns[i].Wrapped {
			taken += widths[i] + gap
		}
	}
	heading := make(Row, len(t.Columns))
	for i, column := range t.Columns {
		heading[i] = Cell{Text: column.Title, Style: Strong}
	}
	for _, row := range append([]Row{heading}, t.Rows...) {
		s.row(out, t, row, shown, widths, taken)
	}
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

// paragraphs prints each row by itself, a line per column that has a text.
func (s Screen) paragraphs(out *strings.Builder, t Table) {
	const indent = 2
	for n, row := range t.Rows {
		if n > 0 {
			out.WriteString("\n")
		}
		for i, column := range t.Columns {
			cell := row.at(i)
			if cell.Text == "" {
				continue
			}
			title := column.Title + ": "
			lines := strings.Split(cell.Text, "\n")
			var broken []string
			for _, line := range lines {
				broken = append(broken, wrap(line, s.room(indent))...)
			}
			if len(broken) == 1 && length(title)+length(broken[0]) <= s.Width {
				out.WriteString(s.Paint(title, Strong) + s.Paint(broken[0], cell.Style) + "\n")
				continue
			}
			out.WriteString(s.Paint(strings.TrimSpace(title), Strong) + "\n")
			for _, line := range broken {
				out.WriteString(strings.Repeat(" ", indent) + s.Paint(line, cell.Style) + "\n")
			}
		}
	}
}
