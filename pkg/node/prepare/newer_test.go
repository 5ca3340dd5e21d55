package prepare

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
)

const newerSchema = 99

// newerFile is a record as a newer version may have written it.
func newerFile(t testing.TB, file string, edit func(record, device map[string]any)) string {
	t.Helper()
	var envelope struct {
		Record map[string]any `json:"record"`
	}
	must(t, json.Unmarshal([]byte(file), &envelope))
	devices, _ := envelope.Record["devices"].([]any)
	device, _ := devices[0].(map[string]any)
	edit(envelope.Record, device)
	body, err := json.Marshal(envelope.Record)
	must(t, err)
	return fmt.Sprintf(`{"schemaVersion":%d,"crc32c":"%08x","record":%s}`, newerSchema, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)), body)
}

// What a newer version has given to a claim stays the claim's when that version is taken back,
// whatever of its record this one can still read.
func TestTheDevicesOfANewerVersionAreHeld(t *testing.T) {
	// What is kept from other claims.
	const (
		nothing = iota
		place
		entire // the GPU
		all    // the node's GPUs
	)
	same := func(map[string]any, map[string]any) {}
	for name, test := range map[string]struct {
		edit  func(record, device map[string]any)
		spoil func(file string) string
		held  int
	}{
		"in a schema with the same fields": {same, nil, place},
		"of a shape and with steps that are not known": {func(_, device map[string]any) {
			device["form"].(map[string]any)["base"], device["steps"], device["type"] = 5, 7, nil
		}, nil, place},
		"of a state that is not known":     {func(record, _ map[string]any) { record["state"] = []int{1} }, nil, place},
		"of a claim whose name is missing": {func(record, _ map[string]any) { delete(record, "name"); delete(record, "namespace") }, nil, place},
		"in a place that cannot be read":   {func(_, device map[string]any) { device["form"].(map[string]any)["placement"] = "first half" }, nil, entire},
		"in a place without a size": {func(_, device map[string]any) {
			device["form"].(map[string]any)["placement"] = map[string]any{"start": 0}
		}, nil, entire},
		"in a place that starts nowhere": {func(_, device map[string]any) {
			device["form"].(map[string]any)["placement"].(map[string]any)["start"] = "0"
		}, nil, entire},
		"on a GPU without a UUID":        {func(_, device map[string]any) { delete(device, "uuid") }, nil, all},
		"on a GPU that cannot be read":   {func(_, device map[string]any) { device["uuid"] = 0 }, nil, all},
		"in devices that are no list":    {func(record, _ map[string]any) { record["devices"] = "gpu-0" }, nil, all},
		"in devices that are no objects": {func(record, _ map[string]any) { record["devices"] = []any{nil} }, nil, all},
		"without devices":                {func(record, _ map[string]any) { delete(record, "devices") }, nil, all},
		"of a boot that is not known":    {func(record, _ map[string]any) { record["bootID"] = 5 }, nil, place},
		"of another boot":                {func(record, _ map[string]any) { record["bootID"] = "boot-0" }, nil, nothing},
		"that it only looks at":          {func(_, device map[string]any) { device["adminAccess"] = true }, nil, nothing},
		"and may only look at":           {func(_, device map[string]any) { device["adminAccess"] = "perhaps" }, nil, place},
		"with a checksum that is wrong":  {same, func(file string) string { return strings.Replace(file, "uid-newer", "uid-never", 1) }, all},
		"in another envelope":            {same, func(string) string { return `{"schemaVersion":99,"sealed":"AAECAw=="}` }, all},
		"in a file that ends too soon":   {same, func(file string) string { return file[:len(file)-20] }, all},
		"in a file that is too large":    {func(record, _ map[string]any) { record["later"] = strings.Repeat("x", 80<<10) }, nil, all},
	} {
		t.Run(name, func(t *testing.T) {
			r := newMIGRig(t)
			newer := r.allocated("newer", small0)
			prepare(t, r.startMIG(t, nil), newer)
			file := newerFile(t, read(t, r.record(newer)), test.edit)
			if test.spoil != nil {
				file = test.spoil(file)
			}
			write(t, r.record(newer), file)
			forgetCopy(t, r.rig, newer)
			r.api.remove(newer)

			p := r.startMIG(t, nil, func(o *Options) { o.ReleaseWait = time.Millisecond })
			for device, needs := range map[string]int{small0: place, big0: entire, elsewhere: all} {
				claim := r.allocated("on-"+device, device)
				_, err := p.Prepare(testContext(t), claim)
				if held := test.held >= needs; held {
					fixture.Sentence(t, err, "claim default/on-"+device, "was given a GPU", "uid-newer", "newer version of the plugin", "install that version again")
				} else if err != nil && test.held != nothing {
					t.Errorf("%s: %v", device, err)
				}
				unprepare(t, p, claim)
			}
			for index, needs := range []int{place, all} {
				release, idle, err := p.Idle(testContext(t), r.uuid(index))
				if err != nil || idle != (test.held < needs) {
					t.Errorf("GPU %d is idle: %t, %v", index, idle, err)
				}
				if idle {
					release()
				}
			}
			if now := read(t, r.record(newer)); now != file {
				t.Errorf("its record was changed to %.200s", now)
			}
			if test.held != nothing && len(r.instances()) != 1 {
				t.Errorf("the instances are %q", r.instances())
			}
		})
	}
}

// What a GPU needs for a claim of a newer version stays when the last claim of this one leaves it.
func TestWhatANewerVersionMayNeedStays(t *testing.T) {
	r, p := runShares(t)
	newer, older := r.sharing("newer", servedGPU), r.sharing("older", servedGPU)
	prepare(t, p, newer)
	prepare(t, p, older)
	write(t, r.record(newer), newerFile(t, read(t, r.record(newer)), func(_, device map[string]any) { delete(device, "steps") }))
	forgetCopy(t, r.rig, newer)
	p = r.startShares(t, nil)
	unprepare(t, p, older)
	if running := r.daemons.all(); len(running) != 1 {
		t.Errorf("the daemons are %v", running)
	}
	if mode, err := r.library.ComputeMode(r.uuid(0)); err != nil || mode != nvml.ExclusiveProcess {
		t.Errorf("the compute mode is %s, %v", mode, err)
	}
}

// forgetCopy has the copy of a claim's record be of a newer version, too.
func forgetCopy(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) {
	t.Helper()
	write(t, r.spec(claim), regexp.MustCompile(`schemaVersion\\":\d`).ReplaceAllString(read(t, r.spec(claim)), `schemaVersion\":99`))
}
