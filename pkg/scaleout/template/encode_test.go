package template

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestEncodedTemplatesComeBack(t *testing.T) {
	for _, machine := range []string{"g4dn.xlarge", "p5.48xlarge", "mig-static"} {
		node := liveNode()
		given := Learn(node, append(liveSlices(t, machine, node), otherDriver(node)), nil, StartupTaints{}, learnedAt)
		data, err := Encode(given)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Encode(given)
		if err != nil || !bytes.Equal(data, again) {
			t.Errorf("%s: the same template is written in two ways: %v", machine, err)
		}
		read, err := Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(given, read, cmp.AllowUnexported(Template{})); diff != "" {
			t.Errorf("%s (-given +read):\n%s", machine, diff)
		}
		t.Logf("%s: %d bytes", machine, len(data))
	}
}

func compressed(t testing.TB, text string) []byte {
	t.Helper()
	var buffer bytes.Buffer
	writer := gzip.NewWriter(&buffer)
	if _, err := writer.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func TestDecodeRefuses(t *testing.T) {
	slice := func(name, node, pool string, count int) string {
		return fmt.Sprintf(`{"name":%q,"spec":{"driver":"d","nodeName":%q,"pool":{"name":%q,"generation":1,"resourceSliceCount":%d}}}`, name, node, pool, count)
	}
	with := func(slices ...string) string {
		return `{"schemaVersion":1,"source":"Learned","node":{"name":"n"},"slices":[` + strings.Join(slices, ",") + `]}`
	}
	for name, test := range map[string]struct {
		data []byte
		says string
	}{
		"nothing":               {nil, "EOF"},
		"no gzip":               {[]byte("{}"), "EOF"},
		"something else":        {[]byte("something else that is longer"), "gzip"},
		"cut off":               {compressed(t, with())[:20], "EOF"},
		"something behind":      {append(compressed(t, with()), 'x'), "something follows"},
		"a second stream":       {append(compressed(t, with()), compressed(t, with())...), "something follows"},
		"a bomb":                {compressed(t, strings.Repeat(" ", maxDecoded+1)), "more than 8388608 bytes"},
		"too long":              {make([]byte, v1alpha1.MaxTemplateBytes+1), "at most 524288"},
		"no JSON":               {compressed(t, "?"), "invalid character"},
		"two values":            {compressed(t, with()+"{}"), "invalid character"},
		"no version":            {compressed(t, "{}"), "schema version is 0"},
		"another version":       {compressed(t, `{"schemaVersion":2}`), "schema version is 2, and this controller reads 1"},
		"an unknown field":      {compressed(t, `{"schemaVersion":1,"colour":"red"}`), "colour"},
		"no node":               {compressed(t, `{"schemaVersion":1,"source":"Learned"}`), "no name"},
		"no source":             {compressed(t, `{"schemaVersion":1,"node":{"name":"n"}}`), "source"},
		"a slice without name":  {compressed(t, with(slice("", "n", "p", 1))), "no name"},
		"two of one name":       {compressed(t, with(slice("s", "n", "p", 2), slice("s", "n", "p", 2))), `two slices are named "s"`},
		"a slice of another":    {compressed(t, with(slice("s", "m", "p", 1))), "not of node n"},
		"a slice without pool":  {compressed(t, with(slice("s", "n", "", 1))), "pool"},
		"a pool too short":      {compressed(t, with(slice("s", "n", "p", 2))), "1 of its 2 slices"},
		"a pool that disagrees": {compressed(t, with(slice("s", "n", "p", 2), slice("r", "n", "p", 3))), "two numbers"},
		"a quantity of letters": {compressed(t, `{"schemaVersion":1,"source":"Learned","node":{"name":"n","allocatable":{"cpu":"many"}}}`), "no quantity"},
		"a quantity that would take for ever": {
			compressed(t, `{"schemaVersion":1,"source":"Learned","node":{"name":"n","capacity":{"cpu":"1e-99999999"}}}`), "no quantity",
		},
		"one that is a number, below a key in other letters": {
			compressed(t, `{"schemaVersion":1,"source":"Learned","node":{"name":"n","Allocatable":{"cpu":1e-99999999}}}`), "no quantity",
		},
		"one of a device": {
			compressed(t, with(`{"name":"s","spec":{"driver":"d","nodeName":"n","pool":{"name":"p","generation":1,"resourceSliceCount":1},"devices":[{"name":"x","capacity":{"memory":{"value":"1","requestPolicy":{"validRange":{"min":"1e-99999999"}}}}}]}}`)), "no quantity",
		},
		"one of a counter": {
			compressed(t, with(`{"name":"s","spec":{"driver":"d","nodeName":"n","pool":{"name":"p","generation":1,"resourceSliceCount":1},"sharedCounters":[{"name":"x","counters":{"memory":{"value":"1e-99999999"}}}]}}`)), "no quantity",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(test.data)
			fixture.Sentence(t, err, "learned template", test.says, "learned again")
		})
	}
	if _, err := Decode(compressed(t, with(slice("s", "n", "p", 1)))); err != nil {
		t.Errorf("a good one is refused: %v", err)
	}
}

// What does not fit into a status is not written there.
func TestEncodeRefusesWhatDoesNotFit(t *testing.T) {
	node := liveNode()
	learned := Learn(node, liveSlices(t, "g5.12xlarge", node), nil, StartupTaints{}, learnedAt)
	noise := make([]byte, 2*v1alpha1.MaxTemplateBytes)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	learned.Node.Labels["noise"] = hex.EncodeToString(noise)
	_, err := Encode(learned)
	fixture.Sentence(t, err, node.Name, "524288", "catalogue")
}

// FuzzDecode holds that no bytes are taken for a template that planning could stumble over.
func FuzzDecode(f *testing.F) {
	node := liveNode()
	good, err := Encode(Learn(node, liveSlices(f, "g5.12xlarge", node), nil, StartupTaints{}, learnedAt))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, true)
	f.Add([]byte(`{"schemaVersion":1,"source":"Learned","node":{"name":"n"},"slices":[]}`), false)
	f.Add([]byte(`{"schemaVersion":1,"source":"Learned","node":{"name":"n"},"slices":[{"name":"s","spec":{"driver":"d","nodeName":"n","pool":{"name":"p","generation":1,"resourceSliceCount":1},"devices":[{"name":"x","attributes":{"a":{}}}]}}]}`), false)
	f.Fuzz(func(t *testing.T, data []byte, isCompressed bool) {
		if !isCompressed { // most mutations of gzip are no gzip
			data = compressed(t, string(data))
		}
		read, err := Decode(data)
		if err != nil {
			return
		}
		again, err := Encode(read)
		if err != nil {
			return // it may be too long, written with all its fields
		}
		if _, err := Decode(again); err != nil {
			t.Errorf("what was read cannot be read again: %v", err)
		}
		read.Summary()
		Missing(driver, read, read.Node, read.Slices)
		if difference := Difference(driver, read, read.Node, read.Slices); difference != "" {
			t.Errorf("a template differs from itself: %s", difference)
		}
		var slices []*resourceapi.ResourceSlice
		Difference(driver, read, node, slices)
	})
}
