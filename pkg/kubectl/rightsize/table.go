package rightsize

import (
	"fmt"
	"io"
	"strings"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// Write prints an advice for people. over is the time that counts.
func Write(w io.Writer, screen terminal.Screen, a Advice, over string) error {
	if err := screen.Write(w, table(a)); err != nil {
		return err
	}
	var text strings.Builder
	for _, sentence := range summary(a, over) {
		text.WriteString("\n" + strings.Join(screen.Lines(sentence, 0), "\n"))
	}
	_, err := fmt.Fprintln(w, text.String())
	return err
}

// table has a row per shape.
func table(a Advice) terminal.Table {
	t := terminal.Table{Columns: []terminal.Column{
		{Title: "SHAPE"}, {Title: "PRODUCT", Spare: 1}, {Title: "MEMORY", Right: true}, {Title: "USED", Right: true},
		{Title: "BUSY", Right: true}, {Title: "VERDICT", Wrapped: true},
	}}
	for _, o := range a.Options {
		verdict := terminal.Cell{Text: a.words(o)}
		switch {
		case a.Best != nil && o.Shape == *a.Best:
			verdict.Style = terminal.Good
		case o.Verdict != Fits:
			verdict.Style = terminal.Faint
		}
		row := terminal.Texts(o.Name(), o.Product, terminal.Gibibytes(o.MemoryBytes), part(a.Peak.PeakBytes, o.MemoryBytes), percent(o.Busy))
		t.Rows = append(t.Rows, append(row, verdict))
	}
	return t
}

// words say whether a shape does, and whether it is the one that is held.
func (a Advice) words(o Option) string {
	words := map[Verdict]string{
		Fits:       "fits",
		TooSmall:   "too little memory: it needs " + terminal.Gibibytes(a.NeedBytes),
		TooSlow:    fmt.Sprintf("too little compute: it would be busy for more than %.0f %% of the time", 100*mostBusy),
		NotKnown:   "enough memory; whether it has enough compute is not known",
		OtherModel: "enough memory; the compute of another product cannot be compared",
	}[o.Verdict]
	if a.Best != nil && o.Shape == *a.Best {
		words = "the smallest that fits"
	}
	if o.Shape == a.Held {
		words += "; held now"
	}
	return words
}

// summary is what is known of the workload, and the answer, in sentences.
func summary(a Advice, over string) []string {
	pods := map[string]bool{}
	for _, u := range a.Uses {
		pods[u.Pod] = true
	}
	busy := "how busy they were is not known"
	if a.Busy != nil {
		busy = fmt.Sprintf("the busiest was in use for %s of the time (95th percentile)", percent(a.Busy))
	}
	held := "a device that is not offered any more"
	if a.Held != (Shape{}) {
		held = strings.TrimSuffix(a.Held.Name()+" of "+a.Held.Product, " of ")
	}
	sentences := []string{
		fmt.Sprintf("%s in %s, of %s and %s: peak memory %s of %s (%s), by pod %s; %s.",
			a.Workload, over, count(len(pods), "pod"), count(len(a.Uses), "device"), terminal.Gibibytes(a.Peak.PeakBytes), terminal.Gibibytes(a.Peak.TotalBytes), held, a.Peak.Pod, busy),
	}
	switch smaller := a.Smaller(); {
	case smaller != nil:
		sentences = append(sentences, fmt.Sprintf("A smaller shape would do: %s, with %s.", smaller.Name(), terminal.Gibibytes(smaller.MemoryBytes)))
	case a.Best != nil && a.Best.MemoryBytes > a.Held.MemoryBytes:
		sentences = append(sentences, fmt.Sprintf("It needs more than it has: the next shape is %s, with %s.", a.Best.Name(), terminal.Gibibytes(a.Best.MemoryBytes)))
	case a.Best != nil:
		sentences = append(sentences, "It has the smallest shape that fits.")
	default:
		sentences = append(sentences, "No shape is known to fit: see why in each row.")
	}
	return append(sentences, a.Notes...)
}

func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// part is nothing where the whole is not known.
func part(of, whole int64) string {
	if whole == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*float64(of)/float64(whole))
}

func percent(part *float64) string {
	if part == nil {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100**part)
}
