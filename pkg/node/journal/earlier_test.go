package journal

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What builds wrote that knew no shapes and steps, and what they mean by it. They were
// written by such a build.
var earlier = map[string][]string{
	"whole":                  {"whole gpu  [disable-mig]", "whole gpu  [disable-mig]"},
	"partitions":             {"partition mig  [make-partition]", "partition mig  [make-partition]"},
	"intent":                 {"partition mig  [make-partition]"},
	"static":                 {"static mig  []"},
	"admin":                  {"static mig  []", "partition mig  []", "whole gpu  []", "whole mps mps []"},
	"slices":                 {"whole timeslice timeslice [disable-mig set-time-slice]"},
	"clients":                {"whole mps mps [disable-mig set-compute-mode run-daemon]"},
	"slices-of-a-partition":  {"partition mig-timeslice timeslice [make-partition]", "partition mig-timeslice timeslice [make-partition]"},
	"clients-of-a-partition": {"partition mig-mps mps [make-partition run-daemon]"},
	"slices-of-a-static":     {"static mig-timeslice timeslice []"},
	"an-interval-of-its-own": {"whole gpu  [disable-mig set-time-slice]"},
	"a-daemon-of-its-own":    {"whole gpu  [disable-mig set-compute-mode run-daemon]", "whole gpu  [disable-mig set-compute-mode run-daemon]"},
}

func readEarlier(t *testing.T, name string) (content string, record Record) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "earlier", "uid-"+name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	record, err = Decode("uid-"+name, data)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), record
}

func TestRecordsOfEarlierBuildsAreRead(t *testing.T) {
	if files, err := os.ReadDir("testdata/earlier"); err != nil || len(files) != len(earlier) {
		t.Errorf("%d files, %d are known, %v", len(files), len(earlier), err)
	}
	for name, want := range earlier {
		_, record := readEarlier(t, name)
		var got []string
		for _, d := range record.Devices {
			got = append(got, fmt.Sprint(d.Shape, " ", d.Type, " ", d.Sharing, " ", d.Steps))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// A downgrade works: of every shape that earlier builds knew, they find in a record what
// they would have written themselves, in the version that they know. What is added they
// keep, as of any field that they do not know.
func TestEarlierBuildsReadTheRecordsOfThisOne(t *testing.T) {
	for name := range earlier {
		content, record := readEarlier(t, name)
		data, err := encode(record)
		if err != nil {
			t.Fatal(err)
		}
		if got := withoutShapes(t, data); got != content {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, content)
		}
	}
}

// withoutShapes is what an earlier build understands of a record.
func withoutShapes(t *testing.T, data []byte) string {
	t.Helper()
	var envelope struct {
		SchemaVersion int    `json:"schemaVersion"`
		Record        Record `json:"record"`
	}
	if err := json.Unmarshal(data, &envelope); err != nil {
		t.Fatal(err)
	}
	for i := range envelope.Record.Devices {
		d := &envelope.Record.Devices[i]
		d.Shape, d.Type, d.Sharing, d.Steps = "", "", "", nil
	}
	body, err := json.Marshal(envelope.Record)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(sealed(string(body)), `"schemaVersion":1`, fmt.Sprint(`"schemaVersion":`, envelope.SchemaVersion), 1) + "\n"
}

// A downgrade is refused for what earlier builds would take for something else: they
// leave alone what is of a version that they do not know.
func TestEarlierBuildsRefuseWhatTheyDoNotKnow(t *testing.T) {
	for name, device := range map[string]Device{
		"a shape":   {Device: "gpu-0", Shape: "later"},
		"a sharing": {Device: "gpu-0", Shape: "whole", Shares: 2, Sharing: "later"},
		"a step":    {Device: "gpu-0", Shape: "whole", Steps: []Step{DisableMIG, "later"}},
	} {
		r := record("a")
		r.Devices = append(r.Devices, device)
		data, err := encode(r)
		if err != nil || !strings.HasPrefix(string(data), `{"schemaVersion":3,`) {
			t.Errorf("%s: got %s, %v", name, data, err)
		}
		if back, err := Decode("a", data); err != nil || back.Devices[2].Shape != device.Shape {
			t.Errorf("%s: got %+v, %v", name, back, err)
		}
	}
}

func TestADeviceWithoutAShapeIsNotWritten(t *testing.T) {
	r := record("a")
	r.Devices[0].Shape = ""
	if _, err := encode(r); err == nil || !strings.Contains(err.Error(), `device "gpu-0" has no shape`) {
		t.Errorf("got %v", err)
	}
}
