package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// sealed wraps a record's text in a sound envelope.
func sealed(body string) string {
	return fmt.Sprintf(`{"schemaVersion":1,"crc32c":"%08x","record":%s}`, crc32.Checksum([]byte(body), castagnoli), body)
}

func TestFileFormatIsStable(t *testing.T) {
	const want = `{"schemaVersion":1,"crc32c":"90ffa7c3","record":` +
		`{"claimUID":"a","namespace":"team-a","name":"claim-of-a","bootID":"5b1ac1a5-3d2c-4c8e-9a0c-0d6c7c9a3e11","state":"prepared","devices":[` +
		`{"request":"gpu","pool":"node-1","device":"gpu-0","uuid":"GPU-0","cdiDeviceIDs":["k8s.gpu.nvidia.com/claim=a-gpu-0"],"shape":"whole","type":"gpu","steps":["disable-mig"]},` +
		`{"request":"look","pool":"node-1","device":"gpu-1","uuid":"GPU-1","adminAccess":true,"shareID":"share","shape":"whole","type":"gpu"}]}}` + "\n"
	got, err := encode(record("a"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("got  %swant %s", got, want)
	}
}

// A record with a partition, one that is only intended, and one by a build that
// knows more of it.
func TestPartitionsInTheFile(t *testing.T) {
	for name, partition := range map[string]string{
		"made":         `{"profileID":14,"start":2,"size":2,"uuid":"MIG-1","instanceID":4,"computeID":1}`,
		"intended":     `{"profileID":19,"size":1}`,
		"whole":        `{"size":8,"uuid":"MIG-1"}`,
		"foreign":      `{"profileID":9,"start":4,"size":4,"foreign":true,"uuid":"MIG-2","instanceID":2}`,
		"with a later": `{"profileID":9,"size":4,"later":[1,2.50]}`,
	} {
		body := `{"claimUID":"a","state":"intent","devices":[{"device":"gpu-0","shape":"partition","partition":` + partition + `}]}`
		read, bad := decode("a.json", []byte(sealed(body)))
		if bad != nil {
			t.Fatalf("%s: %v", name, bad)
		}
		written, err := encode(read.Clone())
		if err != nil || strings.TrimSpace(string(written)) != sealed(body) {
			t.Errorf("%s: got  %s, %v\nwant %s", name, written, err, sealed(body))
		}
	}
	if _, bad := decode("a.json", []byte(sealed(`{"claimUID":"a","state":"intent","devices":[{"partition":{"start":"2"}}]}`))); bad == nil || !strings.Contains(bad.detail, `field "start"`) {
		t.Errorf("got %+v for a start that is a text", bad)
	}
}

// A build that knows nothing of sharing refuses records that speak of it, and reads
// all others.
func TestTheSchemaOfShares(t *testing.T) {
	for name, tc := range map[string]struct {
		device string
		schema int
	}{
		"a device for itself":     {`{"device":"gpu-0","uuid":"GPU-0","shape":"whole"}`, 1},
		"one of several shares":   {`{"device":"gpu-0-timeslice","shareID":"s","shape":"whole","shares":4,"sharing":"timeslice"}`, 2},
		"an interval":             {`{"device":"gpu-0","shape":"whole","interval":"Long"}`, 2},
		"a client of MPS":         {`{"device":"gpu-0-mps","shape":"whole","shares":4,"mps":{"daemon":"gpu-0-mps","computeMode":"Default","memoryBytes":1048576,"cores":25}}`, 2},
		"a daemon of the claim's": {`{"device":"gpu-0","shape":"whole","mps":{"daemon":"claim-a-0","cores":50,"multiUser":true,"later":{"x":1}}}`, 2},
	} {
		t.Run(name, func(t *testing.T) {
			body := `{"claimUID":"a","state":"prepared","devices":[{"device":"gpu-1","shape":"static"},` + tc.device + `]}`
			want := strings.Replace(sealed(body), `"schemaVersion":1`, fmt.Sprintf(`"schemaVersion":%d`, tc.schema), 1)
			read, bad := decode("a.json", []byte(want))
			if bad != nil {
				t.Fatal(bad)
			}
			written, err := encode(read.Clone())
			if err != nil || strings.TrimSpace(string(written)) != want {
				t.Errorf("got  %s, %v\nwant %s", written, err, want)
			}
		})
	}
}

func TestBadFilesAreReported(t *testing.T) {
	sound, err := encode(record("a"))
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		file, content string
		text          string // part of the error's
	}{
		"empty":            {"a.json", "", "is empty"},
		"truncated":        {"a.json", string(sound[:40]), "ends after 40 bytes"},
		"one byte short":   {"a.json", strings.TrimSuffix(string(sound), "}\n"), "ends after"},
		"blank":            {"a.json", "\n\n", "ends after 2 bytes"},
		"zeroes":           {"a.json", strings.Repeat("\x00", 4096), "is not a record"},
		"binary":           {"a.json", "\xff\xfe\x00\x01", "is not a record"},
		"not an object":    {"a.json", "[1,2]", "is not a record"},
		"null":             {"a.json", "null", "has no schema version"},
		"no version":       {"a.json", `{"crc32c":"0","record":{}}`, "has no schema version"},
		"version zero":     {"a.json", `{"schemaVersion":0,"crc32c":"0","record":{}}`, "has no schema version"},
		"textual version":  {"a.json", `{"schemaVersion":"1","crc32c":"0","record":{}}`, "has no schema version"},
		"no checksum":      {"a.json", `{"schemaVersion":1,"record":{}}`, "were expected"},
		"no record":        {"a.json", `{"schemaVersion":1,"crc32c":"00000000"}`, "were expected"},
		"more fields":      {"a.json", `{"schemaVersion":1,"crc32c":"0","record":{},"more":1}`, "were expected"},
		"text behind":      {"a.json", string(sound) + "{}", "something behind"},
		"flipped bit":      {"a.json", strings.Replace(string(sound), "gpu-0", "gpu-1", 1), "has been damaged"},
		"other white":      {"a.json", strings.Replace(string(sound), `{"claimUID"`, `{ "claimUID"`, 1), "has been damaged"},
		"wrong type":       {"a.json", sealed(`{"claimUID":7}`), `field "claimUID"`},
		"null record":      {"a.json", sealed(`null`), "found null"},
		"list for record":  {"a.json", sealed(`[]`), "cannot be read"},
		"null device":      {"a.json", sealed(`{"claimUID":"a","state":"intent","devices":[7]}`), `field "devices"`},
		"unknown state":    {"a.json", sealed(`{"claimUID":"a","state":"half"}`), `the state "half"`},
		"path as UID":      {"a.json", sealed(`{"claimUID":"../a","state":"intent"}`), `"../a" is not the UID`},
		"other claim":      {"b.json", string(sound), `holds the record of claim "a"`},
		"name of no claim": {"what is this.json", string(sound), "has the name of no claim"},
		"longest name":     {strings.Repeat("x", 250) + ".json", "", "has the name of no claim"},
		"too large":        {"a.json", string(sound) + strings.Repeat(" ", maxFileSize), "larger than 65536 bytes"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			j := open(t)
			writeFile(t, j, tc.file, tc.content)
			put(t, j, record("good"))
			records, corrupt := list(t, j)
			if !reflect.DeepEqual(uids(records), []string{"good"}) || len(corrupt) != 1 {
				t.Fatalf("List = %v, %v", uids(records), corrupt)
			}
			got := corrupt[0]
			if got.Newer || got.Known || !strings.Contains(got.Error(), tc.text) {
				t.Errorf("reported as %+v: %v; want %q", *got, got, tc.text)
			}
			if got.ClaimUID != "" && !strings.Contains(got.Error(), "claim "+got.ClaimUID+" will be prepared again") {
				t.Errorf("the text does not say what happens now: %v", got)
			}
			assertFiles(t, j, slices.Sorted(slices.Values([]string{tc.file, "good.json"}))...)
			if _, again := list(t, j); len(again) != 1 || !again[0].Known {
				t.Errorf("the second time: %v", again)
			}
			if got.ClaimUID == "" {
				return
			}
			for range 2 {
				if _, found, err := j.Get(got.ClaimUID); found || !errors.As(err, &got) {
					t.Errorf("Get = %v, %v", found, err)
				}
			}
			put(t, j, record(got.ClaimUID))
			if records, corrupt := list(t, j); len(records) != 2 || len(corrupt) != 0 {
				t.Errorf("after Put: %v, %v", records, corrupt)
			}
		})
	}
}

// A newer version needs its records, and may be running.
func TestTheRecordOfANewerVersionStays(t *testing.T) {
	const content = `{"schemaVersion":4,"format":{}}`
	j := open(t)
	writeFile(t, j, "a.json", content)
	put(t, j, record("good"))
	records, corrupt := list(t, j)
	if !reflect.DeepEqual(uids(records), []string{"good"}) || len(corrupt) != 1 || !corrupt[0].Newer {
		t.Fatalf("List = %v, %v", uids(records), corrupt)
	}
	for _, want := range []string{"was written by a newer version of the plugin (schema version 4, this one knows up to 3)", "left alone: install that version again"} {
		if !strings.Contains(corrupt[0].Error(), want) {
			t.Errorf("%v does not say %q", corrupt[0], want)
		}
	}
	if _, again := list(t, j); len(again) != 1 || !again[0].Known {
		t.Errorf("the second time: %v", again)
	}
	var bad *Corrupt
	for range 2 {
		if _, found, err := j.Get("a"); found || !errors.As(err, &bad) || !bad.Newer || bad.ClaimUID != "a" {
			t.Errorf("Get = %v, %v", found, err)
		}
	}
	assertFiles(t, j, "a.json", "good.json")
	if data, err := os.ReadFile(j.path("a.json")); err != nil || string(data) != content {
		t.Errorf("it holds %s, %v", data, err)
	}
}

func TestUnknownFieldsAreKept(t *testing.T) {
	const body = `{"claimUID":"a","State":"not ours","later":{"x":[1,2]},"state":"intent","devices":[{"device":"gpu-0","migUUID":"MIG-1"}]}`
	j := open(t)
	writeFile(t, j, "a.json", sealed(body))
	r, found, err := j.Get("a")
	if err != nil || !found {
		t.Fatalf("Get = %v, %v", found, err)
	}
	if r.State != Intent || r.Devices[0].Device != "gpu-0" {
		t.Errorf("got %+v", r)
	}
	r.State = Prepared
	put(t, j, r)
	data, err := os.ReadFile(j.path("a.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"later":{"x":[1,2]}`, `"State":"not ours"`, `"migUUID":"MIG-1"`, `"state":"prepared"`} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("%s was lost: %s", want, data)
		}
	}
}

func FuzzDecode(f *testing.F) {
	sound, err := encode(record("a"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("a.json", sound)
	f.Add("a.json", sound[:30])
	f.Add("b.json", sound)
	f.Add("../a.json", []byte(sealed(`{"claimUID":"../a","state":"intent"}`)))
	f.Add("a.json", []byte(sealed(`{"claimUID":"a","state":"intent","x":{"y":null},"devices":[{"z":1.50}]}`)))
	f.Add("a.json", []byte(sealed(`{"claimUID":"a","state":"intent","devices":[{"partition":{"profileID":19,"start":1,"size":1,"later":{}}},{"partition":null}]}`)))
	f.Add("a.json", []byte(`{"schemaVersion":99999999999999999999}`))
	f.Add("a.json", bytes.Repeat([]byte("["), 20000))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		checkDecode(t, name, data)
		// A checksum is too hard a riddle for a fuzzer: give it the answer.
		var compact bytes.Buffer
		if json.Compact(&compact, data) == nil {
			checkDecode(t, name, []byte(sealed(compact.String())))
		}
	})
}

// checkDecode asserts that what was accepted can be written, and that what was
// written reads as the same and is written as the same bytes.
func checkDecode(t *testing.T, name string, data []byte) {
	first, bad := decode(name, data)
	if bad != nil {
		if bad.detail == "" {
			t.Errorf("a fault without a text: %+v", bad)
		}
		return
	}
	if first.ClaimUID+extension != name || strings.ContainsAny(name, "/\x00") {
		t.Errorf("the record of claim %q was accepted from a file named %q", first.ClaimUID, name)
	}
	written, err := encode(first)
	if err != nil {
		if len(data) > maxFileSize/8 {
			return // escapes can make a record larger than it was
		}
		t.Fatalf("%+v was read and cannot be written: %v", first, err)
	}
	second, bad := decode(name, written)
	if bad != nil {
		t.Fatalf("%s was written and is refused: %s", written, bad.detail)
	}
	again, err := encode(second)
	if err != nil || !bytes.Equal(written, again) {
		t.Errorf("wrote %s and then %s, %v", written, again, err)
	}
}
