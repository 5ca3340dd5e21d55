package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the drawings in testdata anew")

func TestAScreenIsDrawn(t *testing.T) {
	const printed = "\x1b[1mNODE\x1b[0m     GPU     HEALTH\r\nnode-a   gpu-0   \x1b[32mok\x1b[0m\r\nnode-a   gpu-1   \x1b[31msick\x1b[0m   \r\n\r\n" +
		"\x1b[33mwarning\x1b[0m  a < b && c\r\n\x1b[2m  faint\x1b[0m\r\n"
	var out bytes.Buffer
	if err := run(strings.NewReader(printed), &out, []string{"kubectl gpu list"}); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("testdata/list.svg", out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/list.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if text := textOf(t, out.String()); !strings.Contains(text, "a < b && c") || !strings.Contains(text, "kubectl gpu list") {
		t.Errorf("the drawing says %q", text)
	}
}

func TestWhatCannotBeDrawnIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		printed string
		args    []string
		want    string
	}{
		"no command":             {"x", nil, "the only one"},
		"nothing printed":        {" \r\n", []string{"x"}, "printed nothing"},
		"too much":               {strings.Repeat("x", limit+1), []string{"x"}, "choose less"},
		"a color without style":  {"\x1b[35mx\x1b[0m", []string{"x"}, "no style here"},
		"a sequence without end": {"\x1b[3", []string{"x"}, "cannot be read"},
	} {
		if err := run(strings.NewReader(test.printed), io.Discard, test.args); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error that says %q", name, err, test.want)
		}
	}
}

// textOf reads a drawing as XML, and what it says.
func textOf(t *testing.T, drawing string) string {
	t.Helper()
	var text strings.Builder
	decoder := xml.NewDecoder(strings.NewReader(drawing))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		if err != nil {
			t.Fatalf("the drawing is no XML: %v", err)
		}
		if data, is := token.(xml.CharData); is {
			text.Write(data)
		}
	}
}
