package terminal

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/fixture"
)

var gpus = Table{
	Columns: []Column{{Title: "NODE"}, {Title: "GPU"}, {Title: "PRODUCT", Spare: 2}, {Title: "MEMORY", Right: true, Spare: 1}, {Title: "NOTE", Wrapped: true}},
	Rows: []Row{
		Texts("ip-10-0-0-1", "gpu-0", "NVIDIA H100 80GB HBM3", "81559Mi", "has room for one partition 3g.40gb\nand for nothing else"),
		{{Text: "ip-10-0-0-2"}, {Text: "gpu-1"}, {}, {Text: "0"}, {Text: "XID 79: it has fallen off the bus", Style: Bad}},
		Texts("ip-10-0-0-3", "gpu-2", "A100"),
	},
}

func TestTablesFitTheScreen(t *testing.T) {
	var all strings.Builder
	for _, width := range []int{0, 120, 80, 60, 50} {
		var out bytes.Buffer
		if err := (Screen{Width: width}).Write(&out, gpus); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "--- %d\n%s", width, out.String())
		for line := range strings.Lines(out.String()) {
			line = strings.TrimSuffix(line, "\n")
			if width > 0 && length(line) > width {
				t.Errorf("at %d characters a line has %d: %q", width, length(line), line)
			}
			if strings.TrimRight(line, " ") != line {
				t.Errorf("at %d characters a line ends in spaces: %q", width, line)
			}
		}
	}
	fixture.Golden(t, "table.txt", all.String())
}

func TestOnlyATerminalHasColour(t *testing.T) {
	var out bytes.Buffer
	if err := (Screen{Width: 80, Colour: true}).Write(&out, gpus); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\x1b[31mXID 79") {
		t.Errorf("what is bad is not red: %q", out.String())
	}
	plain := strings.NewReplacer("\x1b[31m", "", "\x1b[1m", "", "\x1b[0m", "").Replace(out.String())
	var without bytes.Buffer
	if err := (Screen{Width: 80}).Write(&without, gpus); err != nil {
		t.Fatal(err)
	}
	if plain != without.String() {
		t.Errorf("colour moves the text:\n%s\n%s", plain, without.String())
	}
	if s := Of(pipe(t), os.LookupEnv); s != (Screen{}) {
		t.Errorf("a pipe has %+v", s)
	}
	if s := Of(&out, os.LookupEnv); s != (Screen{}) {
		t.Errorf("a buffer has %+v", s)
	}
}

func pipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return w
}

func TestFormats(t *testing.T) {
	if err := YAML.Check(Tabular, JSON, YAML); err != nil {
		t.Error(err)
	}
	fixture.Sentence(t, Format("xml").Check(Tabular, JSON), "xml", "table, json")
	for format, want := range map[Format]string{JSON: "{\n  \"cel\": \"a >= b\"\n}\n", YAML: "cel: a >= b\n"} {
		var out bytes.Buffer
		if err := format.Encode(&out, map[string]string{"cel": "a >= b"}); err != nil || out.String() != want {
			t.Errorf("%s: got %q, %v, want %q", format, out.String(), err, want)
		}
	}
}

func TestATableWithoutRowsPrintsNothing(t *testing.T) {
	var out bytes.Buffer
	if err := (Screen{}).Write(&out, Table{Columns: gpus.Columns}); err != nil || out.Len() > 0 {
		t.Errorf("got %q, %v", out.String(), err)
	}
}
