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

	"github.com/mica-gpu/mica/pkg/gpu"
)

// sealed wraps a record's text in a sound envelope.
func sealed(body string) string {
	return fmt.Sprintf(`{"schemaVersion":1,"crc32c":"%08x","record":%s}`, crc32.Checksum([]byte(body), castagnoli), body)
}

// A record with a whole GPU, a device that the claim looks at, and a share of a partition.
func TestFileFormatIsStable(t *testing.T) {
	const body = `{"claimUID":"a","namespace":"team-a","name":"claim-of-a","bootID":"5b1ac1a5-3d2c-4c8e-9a0c-0d6c7c9a3e11","state":"prepared","devices":[` +
		`{"request":"gpu","pool":"node-1","device":"gpu-0","uuid":"GPU-0","cdiDeviceIDs":["k8s.gpu.nvidia.com/claim=a-gpu-0"],"form":{"base":"whole"},"type":"gpu","steps":[{"name":"disable-mig"}]},` +
		`{"request":"look","pool":"node-1","device":"gpu-1","uuid":"GPU-1","adminAccess":true,"shareID":"share","cdiDeviceIDs":["x"],"form":{"base":"whole"},"type":"gpu"},` +
		`{"request":"r","pool":"node-1","device":"gpu-2-mig","uuid":"GPU-2","cdiDeviceIDs":["y"],"form":{"base":"partition","placement":{"profileID":19,"profile":"1g.10gb","start":2,"size":1,"instanceID":7},"sharing":"mps","shares":4},` +
		`"type":"mig-mps","partUUID":"MIG-2","part":0.25,"steps":[{"name":"make-partition"},{"name":"run-daemon","data":{"daemon":"d"}}]}]}`
	written := record("a")
	written.Devices = append(written.Devices, Device{
		Request: "r", Pool: "node-1", Device: "gpu-2-mig", UUID: "GPU-2", CDIDeviceIDs: []string{"y"}, Type: "mig-mps", PartUUID: "MIG-2", Part: 0.25,
		Form:  gpu.Form{Base: "partition", Placement: gpu.Placement{ProfileID: 19, Profile: "1g.10gb", Start: 2, Size: 1, InstanceID: 7}, Sharing: "mps", Shares: 4},
		Steps: []Step{{Name: "make-partition"}, {Name: "run-daemon", Data: []byte(`{"daemon":"d"}`)}},
	})
	data, err := Encode(written)
	if want := sealed(body) + "\n"; err != nil || string(data) != want {
		t.Errorf("got  %s, %v\nwant %s", data, err, want)
	}
	if read, err := Decode("a", data); err != nil || !reflect.DeepEqual(read, written) {
		t.Errorf("got  %+v, %v\nwant %+v", read, err, written)
	}
}

func TestBadFilesAreReported(t *testing.T) {
	sound, err := Encode(record("a"))
	must(t, err)
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
		"textual version":  {"a.json", `{"schemaVersion":"1","crc32c":"0","record":{}}`, "is not a record"},
		"no checksum":      {"a.json", `{"schemaVersion":1,"record":{}}`, "has been damaged"},
		"no record":        {"a.json", `{"schemaVersion":1,"crc32c":"00000000"}`, "impossible content"},
		"text behind":      {"a.json", string(sound) + "{}", "is not a record"},
		"flipped bit":      {"a.json", strings.Replace(string(sound), "gpu-0", "gpu-1", 1), "has been damaged"},
		"other white":      {"a.json", strings.Replace(string(sound), `{"claimUID"`, `{ "claimUID"`, 1), "has been damaged"},
		"wrong type":       {"a.json", sealed(`{"claimUID":7}`), "claimUID"},
		"null record":      {"a.json", sealed(`null`), `"" is not the UID`},
		"list for record":  {"a.json", sealed(`[]`), "impossible content"},
		"null device":      {"a.json", sealed(`{"claimUID":"a","state":"intent","devices":[7]}`), "devices"},
		"unknown state":    {"a.json", sealed(`{"claimUID":"a","state":"half"}`), `the state "half"`},
		"path as UID":      {"a.json", sealed(`{"claimUID":"../a","state":"intent"}`), `"../a" is not the UID`},
		"other claim":      {"b.json", string(sound), `the record of claim "a"`},
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
	const content = `{"schemaVersion":2,"format":{}}`
	j := open(t)
	writeFile(t, j, "a.json", content)
	put(t, j, record("good"))
	records, corrupt := list(t, j)
	if !reflect.DeepEqual(uids(records), []string{"good"}) || len(corrupt) != 1 || !corrupt[0].Newer {
		t.Fatalf("List = %v, %v", uids(records), corrupt)
	}
	for _, want := range []string{"was written by a newer version of the plugin (schema version 2, this one knows up to 1)", "left alone: install that version again"} {
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

func FuzzDecode(f *testing.F) {
	sound, err := Encode(record("a"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("a", sound)
	f.Add("a", sound[:30])
	f.Add("b", sound)
	f.Add("../a", []byte(sealed(`{"claimUID":"../a","state":"intent"}`)))
	f.Add("a", []byte(sealed(`{"claimUID":"a","state":"intent","x":{"y":null},"devices":[{"z":1.50}]}`)))
	f.Add("a", []byte(sealed(`{"claimUID":"a","state":"intent","devices":[{"form":{"base":"x","placement":{"start":1,"size":1,"later":{}}}},{"form":null}]}`)))
	f.Add("a", []byte(`{"schemaVersion":99999999999999999999}`))
	f.Add("a", bytes.Repeat([]byte("["), 20000))
	f.Fuzz(func(t *testing.T, uid string, data []byte) {
		checkDecode(t, uid, data)
		// A checksum is too hard a riddle for a fuzzer: give it the answer.
		var compact bytes.Buffer
		if json.Compact(&compact, data) == nil {
			checkDecode(t, uid, []byte(sealed(compact.String())))
		}
	})
}

// checkDecode asserts that what was accepted can be written, and that what was written reads
// as the same and is written as the same bytes.
func checkDecode(t *testing.T, uid string, data []byte) {
	first, err := Decode(uid, data)
	var bad *Corrupt
	if errors.As(err, &bad) {
		if bad.Detail == "" || bad.Newer && len(bad.Record.Devices) == 0 {
			t.Errorf("a fault without a text or devices: %+v", bad)
		}
		return
	}
	if first.ClaimUID != uid || strings.ContainsAny(uid, "/\x00") {
		t.Errorf("the record of claim %q was accepted as that of %q", first.ClaimUID, uid)
	}
	written, err := Encode(first)
	if err != nil {
		if len(data) > maxFileSize/8 {
			return // escapes can make a record larger than it was
		}
		t.Fatalf("%+v was read and cannot be written: %v", first, err)
	}
	second, err := Decode(uid, written)
	if err != nil {
		t.Fatalf("%s was written and is refused: %v", written, err)
	}
	again, err := Encode(second)
	if err != nil || !bytes.Equal(written, again) {
		t.Errorf("wrote %s and then %s, %v", written, again, err)
	}
}
