package terminal

import (
	"slices"
	"strings"
)

// indent is how far what belongs to a row stands to its right.
const indent = 2

// rowsAbove prints rows with their wrapped texts beneath them.
func (s Screen) rowsAbove(out *strings.Builder, t Table, shown []int) {
	widths, taken := t.widths(shown)
	for _, row := range append([]Row{t.heading()}, t.Rows...) {
		s.row(out, t, row, shown, widths, taken)
		for i, column := range t.Columns {
			if column.Wrapped && row.at(i).Text != "" {
				s.lines(out, row.at(i), indent)
			}
		}
	}
}

// paragraphs prints each row by itself: what tells it apart, and under it the other texts with their
// titles.
func (s Screen) paragraphs(out *strings.Builder, t Table) {
	keyed := slices.ContainsFunc(t.Columns, func(c Column) bool { return c.Key })
	for _, row := range t.Rows {
		var keys []string
		var others []titled
		for i, column := range t.Columns {
			cell := row.at(i)
			switch {
			case cell.Text == "":
			case column.Key, !keyed && i == 0:
				keys = append(keys, cell.Text)
			default:
				others = append(others, titled{column.Title + ": ", cell})
			}
		}
		s.lines(out, Cell{strings.Join(keys, " "), Strong}, 0)
		s.titled(out, others)
	}
}

// titled is a text with its title.
type titled struct {
	title string
	cell  Cell
}

// titled prints texts with their titles, as many in a line as there is room for. One that takes
// several lines stands under its title.
func (s Screen) titled(out *strings.Builder, all []titled) {
	taken := 0
	end := func() {
		if taken > 0 {
			out.WriteString("\n")
		}
		taken = 0
	}
	for _, one := range all {
		needs := length(one.title) + length(one.cell.Text)
		if strings.Contains(one.cell.Text, "\n") || indent+needs > s.Width {
			end()
			s.lines(out, Cell{strings.TrimSpace(one.title), Strong}, indent)
			s.lines(out, one.cell, 2*indent)
			continue
		}
		before := gap
		if taken == 0 || taken+gap+needs > s.Width {
			end()
			before = indent
		}
		taken += before + needs
		out.WriteString(strings.Repeat(" ", before) + s.Paint(one.title, Strong) + s.Paint(one.cell.Text, one.cell.Style))
	}
	end()
}

// lines prints a text to the right of so many characters.
func (s Screen) lines(out *strings.Builder, cell Cell, indent int) {
	for _, paragraph := range strings.Split(cell.Text, "\n") {
		for _, line := range wrap(paragraph, s.room(indent)) {
			out.WriteString(strings.Repeat(" ", indent) + s.Paint(line, cell.Style) + "\n")
		}
	}
}
